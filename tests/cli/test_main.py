"""The command line: bad input is one clear line and exit code 2, and help shows an example."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from vla_rl.cli import main as cli
from vla_rl.cli.main import VERBS, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_error_line(stderr: str, program: str = "vla-rl") -> str:
    lines = [line for line in stderr.splitlines() if line.startswith(f"{program}: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.parametrize(
    ("folder", "declares"), [("lib/site-packages", True), ("lib/site-packages", False), (".", False)]
)
def test_an_error_of_an_installed_part_is_no_fault_of_ours_and_one_of_a_library_is(
    folder: str, declares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / folder / "own_part.py"
    monkeypatch.setattr(cli, "declared_packages", lambda: {"own_part"} if declares else set())
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", file, "exec"))
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this test
    code, line = cli._told(caught.value, "train")
    is_others = declares or folder == "."
    assert code == (2 if is_others else 3)
    assert (f"at {file}:1, which is no part of vla-rl" in line) == is_others


def test_no_verb_and_help_list_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert all(name in out for name in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"Example: vla-rl {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "--config", "demmo"], "Did you mean 'demo'"),
        (["train", "--config", "absent.yaml"], "cannot read the config absent.yaml"),
        (["train", "budget.round=3"], "Did you mean 'rounds'"),
        (["train", "budget.rounds=many"], "budget.rounds"),
        (["train", "budget.demonstrations=0"], "there is nothing to start from"),
        (["train", "learning.credit.rule=papr"], "Did you mean 'paper'"),
        (["train", "--resume", "nowhere"], "holds no run"),
        (["train", "--resume", "nowhere", "seed=1"], "only budget.rounds may grow; leave seed out"),
        (["train", "--resume", "nowhere", "--out", "elsewhere"], "leave --config, --policy, --seed, --out"),
        (["train", "budget.rounds="], "budget.rounds has no value"),
        (["train", "budget.rounds=true"], "budget.rounds is True; expected a number"),
        (["train", "policy.expert.layers=0"], "expert.layers is 0"),
        (["train", "learning.mixture.rollouts=-1"], "mixture.rollouts is -1"),
        (["train", "learning.actor.warmup_steps=-2"], "actor.warmup_steps is -2"),
        (["train", "--policy", "cup"], "Did you mean 'cpu'"),
        (["train", "--from", "nowhere"], "holds no run"),
        (["eval", "nowhere"], "holds no run"),
        (["report", "nowhere"], "holds no run"),
        (["doctor", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in one_error_line(err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sim", "--out", "/dev/null/x"], "cannot make the folder of results"),
        (["dem"], "Did you mean 'demo'"),
    ],
)
def test_bad_input_of_a_benchmark_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    from benchmarks.__main__ import main as measure

    assert measure(arguments) == 2
    assert message in one_error_line(capsys.readouterr().err, "benchmarks")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.env=vla_rl/PegInsrt-v0", "Did you mean 'vla_rl/PegInsert-v0'"),
        ("task.difficulty=7", "difficulty is 7"),
        ("task.renderer=opengl", "opengl"),
        ("algorithm=habcc", "Did you mean 'habc'"),
        ("execution.strategy=synk", "Did you mean 'sync'"),
        ("execution.execute_ticks=0", "expected >= 1"),
        ("gate.stop_after_ms=-1", "expected a time in ms"),
        ("algorithm=recap", "policy.indicator=true"),
        ("device=cudo", "the device 'cudo' cannot be used"),
        ("task.also=[vla_rl/MetaWorldDoorOpen-v0]", "cannot share a policy"),
        ("policy.backbone.folder=nowhere", "nowhere"),
    ],
)
def test_a_wrong_name_inside_a_run_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, message: str
) -> None:
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", str(tmp_path / "run"), override)
    assert code == 2
    assert message in one_error_line(err)
    assert not (tmp_path / "run").exists()  # the mistake is mended and the command given again


def test_a_config_that_is_no_text_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    code, _, err = run(capsys, "train", "--config", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "is not valid YAML" in one_error_line(err)


def test_a_run_folder_that_cannot_be_made_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", "/proc")
    assert code == 2
    assert "cannot make the run folder /proc" in one_error_line(err)


def test_a_missing_package_names_its_extra(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)  # as in the base install
    for name in [name for name in sys.modules if name.startswith(("sim", "vla_rl.training.simulator"))]:
        monkeypatch.delitem(sys.modules, name)
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "install vla-rl[train]" in one_error_line(err)


def test_the_size_of_the_policy_is_chosen_by_name(tmp_path: Path) -> None:
    from vla_rl.cli.run_arguments import add_run_arguments, asked_config

    parser = argparse.ArgumentParser()
    add_run_arguments(parser, config="demo", out=str(tmp_path / "run"))
    config = asked_config(parser.parse_args(["--policy", "small", "policy.horizon=8"]))
    assert (config.policy.expert.width, config.policy.horizon) == (256, 8)


def test_an_unfinished_demo_goes_on_only_with_the_same_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_rl.cli import demo
    from vla_rl.cli.run_arguments import asked_config
    from vla_rl.data.run_folder import RunFolder

    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    RunFolder.create(Path("runs/demo"), asked_config(parser.parse_args([])))
    chosen = {}
    for words in ([], ["budget.rounds=1"]):
        arguments = parser.parse_args(words)
        demo._choose_folder(arguments)
        chosen[len(words)] = (arguments.resume, arguments.out)
    assert chosen == {0: (Path("runs/demo"), None), 1: (None, Path("runs/demo-2"))}
    RunFolder(Path("runs/demo")).write_summary({"finished": True})
    arguments = parser.parse_args([])
    demo._choose_folder(arguments)
    assert arguments.out == Path("runs/demo-2")


def test_a_run_folder_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", str(tmp_path))
    assert code == 2
    assert "--resume" in one_error_line(err)
    assert (tmp_path / "config.yaml").read_text() == "{}"


def test_a_full_disk_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vla_rl.data.store.write_file", full)
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "space" in one_error_line(err).lower() or "full" in one_error_line(err)


def test_cells_of_other_settings_are_refused(tmp_path: Path) -> None:
    from benchmarks.cells import Cells
    from vla_rl.core.errors import UserError

    cells = Cells(tmp_path / "demo", {"rounds": 3})
    cells.write("seed-0", {"success": 0.5})
    again = Cells(tmp_path / "demo", {"rounds": 3})
    assert "seed-0" in again
    assert [cell["success"] for cell in again.read()] == [0.5]
    with pytest.raises(UserError, match="other settings"):
        Cells(tmp_path / "demo", {"rounds": 4})


def test_tables_are_generated_from_results(tmp_path: Path) -> None:
    from benchmarks.tables import with_tables

    result = {
        "command": "python -m benchmarks learner",
        "machine": {"cpu": "a CPU"},
        "parameters": 1_500_000,
        "batch_size": 64,
        "threads": 1,
        "samples_per_s": 1234.4,
        "ratio": 0.95,
        "lerobot_train_ratio": 8.25,
        "lerobot_update_ratio": 1.02,
    }
    page = "# T\n<!-- results: learner -->\nold\n<!-- end of results -->\nrest\n"
    assert "Not measured yet" in with_tables(page, tmp_path)
    (tmp_path / "learner.json").write_text(json.dumps(result))
    renewed = with_tables(page, tmp_path)
    assert "| 1.50 M | 64 | 1 | 1234 | 0.950 | 8.2 x | 1.02 x |" in renewed
    assert "old" not in renewed
    assert renewed.endswith("<!-- end of results -->\nrest\n")
    assert with_tables(renewed, tmp_path) == renewed


def test_the_tables_in_the_tree_agree_with_the_results() -> None:
    from benchmarks.tables import pages, with_tables

    root = Path(__file__).parents[2]
    for page in pages(root):
        assert with_tables(page.read_text(), root / "docs" / "results") == page.read_text(), page.name
