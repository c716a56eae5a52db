"""The site: it builds without a warning and needs no network, every option has a meaning, and links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.docs_commands import ROOT
from benchmarks.docs_picture import PICTURE, draw
from vla_rl.core.registry import names

mkdocs = pytest.importorskip("mkdocs", reason="needs the group docs")
OTHER_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|source|iframe)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)\"""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 35
    for page in pages:
        for match in loaded.finditer(page.read_text()):
            assert not urlsplit(match[1] or match[2]).netloc, f"{page.relative_to(site)} loads {match[0]}"


@pytest.mark.slow
def test_generated_pages_hold_what_they_are_for(site: Path) -> None:
    options = (site / "reference" / "options" / "index.html").read_text()
    assert "--closed-loop EPISODES" in (site / "reference" / "commands" / "index.html").read_text()
    assert 'id="vla_rl.core.types.ActionChunk"' in (site / "reference" / "api" / "core" / "index.html").read_text()
    assert "Largest factor by which" in options, "task.demonstration_speed"
    assert "look_into_a_store-0.svg" in (site / "notebooks" / "look_into_a_store" / "index.html").read_text()


def test_pages_state_how_many_algorithms_there_are() -> None:
    counted = {12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen"}[len(names("algorithms"))]
    for page in ("README.md", "docs/algorithms.md"):
        assert re.search(rf"\b{counted}\b[^.]*\balgorithms", (ROOT / page).read_text(), re.IGNORECASE), page


def test_every_option_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import reference

    without = [
        f"{config.__name__}.{option.name}"
        for _, _, config in reference.every_config()
        for option in reference.options(config)
        if not (option.meaning or option.section or option.kind)
    ]
    assert without == [], "say it under Attributes in the docstring of the class"
    assert reference.documented_share() == 1
    names = [config.__name__ for _, _, config in reference.every_config()]
    assert len(names) == len(set(names)), "headings are named by classes"


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: page.name)
def test_links_of_pages_outside_of_the_site_lead_somewhere(page: Path) -> None:
    from markdown.extensions.toc import slugify

    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        url = urlsplit(target)
        if url.scheme:
            assert url.scheme == "https", target
            assert url.netloc, target
            continue
        file = page.parent / url.path if url.path else page
        assert file.exists(), target
        if url.fragment:
            headings = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert url.fragment in [slugify(heading, "-") for heading in headings], target


def test_the_moving_picture_is_what_the_executor_does() -> None:
    assert (ROOT / PICTURE).read_text() == draw(), "run: python -m benchmarks.docs_picture"
