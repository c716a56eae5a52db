"""What is installed: one version, types, and every file of the packages."""

import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import vla_rl
from vla_rl.cli.main import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert vla_rl.__version__ == version("vla-rl")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vla-rl {version('vla-rl')}\n"
    assert PROJECT["project"]["dynamic"] == ["version"]


def test_another_name_of_the_package_is_still_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'version'"):
        vla_rl.version  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_types_ship_with_every_package(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_file_of_a_package_is_ignored() -> None:
    """The build leaves out what git ignores, tracked or not: a rule ``data/`` would leave vla_rl/data out."""
    files = subprocess.run(["git", "ls-files", *PACKAGES, "configs"], cwd=ROOT, capture_output=True, check=True).stdout
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"], cwd=ROOT, input=files, capture_output=True, check=False
    )
    assert ignored.stdout.decode().split() == []
    assert ignored.returncode == 1  # none of them; 128 would be an error of git
