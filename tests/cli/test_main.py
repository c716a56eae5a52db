"""The command line: bad input is one clear line and exit code 2, and help shows an example."""

import json
from pathlib import Path

import pytest

from vla_rl.cli.main import VERBS, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_error_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("vla-rl: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in stderr
    return lines[0]


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
        (["train", "budget.demonstrations=0"], "at least 1"),
        (["train", "learning.credit.rule=papr"], "Did you mean 'paper'"),
        (["train", "--resume", "nowhere"], "holds no run"),
        (["train", "--resume", "nowhere", "seed=1"], "leave --seed, --from and overrides out"),
        (["train", "--from", "nowhere"], "holds no run"),
        (["eval", "nowhere"], "holds no run"),
        (["report", "nowhere"], "holds no run"),
        (["doctor", "nowhere"], "nowhere"),
        (["bench", "dem"], "Did you mean 'demo'"),
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
    ("override", "message"),
    [
        ("task.env=vla_rl/PegInsrt-v0", "Did you mean 'vla_rl/PegInsert-v0'"),
        ("task.difficulty=7", "difficulty is 7"),
        ("task.renderer=opengl", "opengl"),
        ("algorithm=habcc", "Did you mean 'habc'"),
        ("execution.strategy=synk", "Did you mean 'sync'"),
    ],
)
def test_a_wrong_name_inside_a_run_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, message: str
) -> None:
    code, _, err = run(capsys, "train", "--config", "tiny", "--out", str(tmp_path / "run"), override)
    assert code == 2
    assert message in one_error_line(err)


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


def test_tables_are_generated_from_results(tmp_path: Path) -> None:
    from vla_rl.cli.benchmarks.tables import with_tables

    result = {
        "command": "vla-rl bench learner",
        "machine": {"cpu": "a CPU"},
        "parameters": 1_500_000,
        "batch_size": 64,
        "threads": 1,
        "samples_per_s": 1234.4,
        "ratio": 0.95,
    }
    page = "# T\n<!-- results: learner -->\nold\n<!-- end of results -->\nrest\n"
    assert "Not measured yet" in with_tables(page, tmp_path)
    (tmp_path / "learner.json").write_text(json.dumps(result))
    renewed = with_tables(page, tmp_path)
    assert "| 1.50 M | 64 | 1 | 1234 | 0.950 |" in renewed
    assert "old" not in renewed
    assert renewed.endswith("<!-- end of results -->\nrest\n")
    assert with_tables(renewed, tmp_path) == renewed


def test_the_tables_in_the_tree_agree_with_the_results() -> None:
    from vla_rl.cli.benchmarks.tables import pages, with_tables

    root = Path(__file__).parents[2]
    for page in pages(root):
        assert with_tables(page.read_text(), root / "docs" / "results") == page.read_text(), page.name
