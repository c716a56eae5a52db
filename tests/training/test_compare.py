"""A round's policy plays the same starts with and without its residual, and what does better acts."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.training.test_practice_run import fingerprint, train
from vla_rl.cli.main import main
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.report.sinks import read_records
from vla_rl.training.check import whole_acts
from vla_rl.training.rounds import PracticeRun

OPTIONS = (
    *("--config", "tiny", "task.env=tests.fakes.lucky:make_lucky", "takeover.enabled=false"),
    *("algorithm=residual_td", "learning.td.updates=16", "learning.critic.hidden=[8]", "learning.distill_steps=2"),
    *("exploration=0.2", "budget.compare_episodes=2", "budget.episodes_per_round=10"),
)
TD = ("algorithm=residual_td", "learning.distill_steps=2")
ON_POLICY = (
    *("--config", "tiny", "task.env=tests.fakes.lucky:make_lucky", "takeover.enabled=false", "exploration=0.2"),
    *("algorithm=residual_ppo", "learning.ppo.chunk_ticks=8", "learning.value.steps=2", "budget.steps_per_round=2"),
)


SUCCESSES = {"whole001": 0, "whole002": 2}  # of two; 1 without residual


def unaided(_: PracticeRun, names: Sequence[str]) -> tuple[int, int]:
    return min(SUCCESSES.get(names[0].partition("-")[0], 1), len(names)), len(names)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first residual does worse than no residual, and whose second one makes up for it."""
    run = tmp_path_factory.mktemp("compared") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PracticeRun, "_unaided", unaided)
        train(*OPTIONS, "--out", run)
    return run


@pytest.mark.slow
def test_what_has_done_better_acts_and_of_equals_the_whole_policy(compared: Path) -> None:
    folder = RunFolder(compared)
    chooses = [(folder.policy(version) / CRITIC_FOLDER).is_dir() for version in range(3)]
    assert chooses == [False, False, True]
    assert (folder.candidate(1) / CRITIC_FOLDER).is_dir(), "it can be looked at"
    assert not folder.candidate(2).exists()
    assert not any(folder.plain(version).exists() for version in (1, 2))
    summary = folder.read_summary()
    assert summary["compared"]["1"] == {"whole": [0, 2], "plain": [1, 2], "whole_acts": False}
    assert summary["compared"]["2"] == {"whole": [2, 2], "plain": [1, 2], "whole_acts": True}
    assert [entry["real_episodes"] for entry in summary["evaluations"]] == [3, 3 + 10, 3 + 20]


@pytest.mark.parametrize(
    ("leads", "acts"),
    [
        ((-1,), False),
        ((0,), True),
        ((4, 3, -2), True),  # behind by chance
        ((1, -2), False),
        ((-1, -1, 3), True),
        ((-3, 2), False),
    ],
)
def test_a_verdict_counts_all_comparisons_so_far(leads: Sequence[int], acts: bool) -> None:
    compared = {
        str(version): {"whole": [8 + lead, 16], "plain": [8, 16]} for version, lead in enumerate(leads, start=1)
    }
    later = {str(len(leads) + 1): {"whole": [0 if acts else 16, 16], "plain": [16 if acts else 0, 16]}}
    assert whole_acts(compared | later, len(leads)) is acts


@pytest.mark.slow
def test_both_play_the_same_starts_which_practice_has_not_seen(compared: Path) -> None:
    store = EpisodeStore(RunFolder(compared).episodes, create=False)
    seeds = {
        kind: [store.read_header(name).seed for name in store.ids() if name.startswith(kind)]
        for kind in ("whole001", "plain001", "round001")
    }
    assert seeds["whole001"] == seeds["plain001"]
    assert len({*seeds["whole001"], *seeds["round001"]}) == 2 + 6
    compared_records = [r for r in read_records(compared / "metrics.jsonl") if r["kind"] == "compare"]
    assert [(record["round"], record["episodes"]) for record in compared_records] == [(1, 4), (2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_a_run_that_was_killed_in_its_comparison_comes_to_the_same(
    compared: Path, tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "killed"
    shutil.copytree(compared, run)
    folder = RunFolder(run)
    for later in range(version, 3):
        if folder.candidate(later).exists():
            shutil.rmtree(folder.policy(later))
        else:
            folder.policy(later).rename(folder.candidate(later))  # as it lies before it is compared
    monkeypatch.setattr(PracticeRun, "_unaided", unaided)
    train("--resume", run)
    assert fingerprint(run) == fingerprint(compared)


@pytest.mark.slow
def test_an_algorithm_on_policy_goes_on_from_what_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it finds no episode that its own residual has played."""
    monkeypatch.setattr(PracticeRun, "_unaided", unaided)
    options = ("budget.compare_episodes=1", "budget.evaluate_every_round=false", "budget.evaluation_episodes=1")
    train(*ON_POLICY, *options, "--out", tmp_path / "run")
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    tried = [record["residual_action_std"] for record in records if "residual_action_std" in record]
    assert tried == pytest.approx([0.2, 0.2], abs=1e-4)


@pytest.mark.slow
def test_another_policy_is_not_judged_by_the_episodes_that_are_there(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "other"
    shutil.copytree(compared, run)
    folder = RunFolder(run)
    shutil.rmtree(folder.candidate(1))
    shutil.copytree(folder.policy(2), folder.candidate(1))
    for version in (1, 2):
        shutil.rmtree(folder.policy(version))
    assert main(["train", "--resume", str(run)]) != 0
    said = capsys.readouterr().err
    assert "compare 1: another policy or other settings played 4 of its episodes" in said
    assert f"{folder.episodes}/episodes/plain001-* {folder.episodes}/episodes/whole001-*" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["algorithm=filtered_bc"], "algorithm=filtered_bc makes neither"),
        ([*TD, "budget.check_episodes=1"], "budget.check_episodes lets something else decide"),
        ([*TD, "budget.staleness=1", "workers=1"], "budget.staleness lets something else decide"),
        (
            [*TD, "budget.compare_episodes=3", "budget.episodes_per_round=6"],
            "plays 6 episodes of a round, and budget.epis",
        ),
        ([*TD, "--outcomes"], "budget.compare_episodes=0"),
        ([*TD, "task.also=[vla_rl/LidOnBox-v0]", "--resets"], "budget.compare_episodes=0"),
        ([*TD, "budget.compare_episodes=0", "--outcomes", "answers=-1"], "answers"),
    ],
)
def test_where_nothing_can_be_compared_it_is_refused(tmp_path: Path, capsys, options: list[str], said: str) -> None:
    command = ["train", "--config", "tiny", "budget.compare_episodes=1", *options, "--out", str(tmp_path / "run")]
    assert main(command) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
