"""A round's policy that does worse than the one before does not act."""

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.test_practice_run import fingerprint, train
from vla_rl.algorithms.base import Algorithm
from vla_rl.core.config import load_config
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training import rounds
from vla_rl.training.algorithms import adopt_saved
from vla_rl.training.check import Check, acting_policy, success_of
from vla_rl.training.config import RunConfig
from vla_rl.training.jobs import StageJobs
from vla_rl.training.plan import Stage
from vla_rl.training.rounds import PracticeRun
from vla_rl.training.simulator import SimulatorWorker

CHECKED = ("--config", "tiny", "budget.check_episodes=2", "exploration=0.2", "task.declare.max_episode_steps=60")


SAY = {
    0.5: "| no better | {} |",
    0.4: "| 10 points worse | {} |",
    0.3: "| 20 points worse | {} |",
    0.2: "| 30 points worse | {} |",
}


def test_every_unaided_episode_of_a_policy_counts_for_it() -> None:
    checks = {
        1: Check(acting=0, practice=(5, 10), check=(4, 5), passes=True),
        2: Check(acting=1, practice=(6, 10), check=(1, 5), passes=False),
        3: Check(acting=1, practice=(8, 10), check=(2, 5), passes=False),
    }
    assert [acting_policy(checks, version) for version in range(4)] == [0, 1, 1, 1]
    assert success_of(checks, 0) == 5 / 10
    assert success_of(checks, 1) == (4 + 6 + 8) / 25


def digests(run: Path, version: int) -> list[str]:
    return sorted(file.name for file in RunFolder(run).policy(version).rglob("*.safetensors"))


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first policy fails its check and whose second one passes."""
    run = tmp_path_factory.mktemp("checked") / "run"
    adopted = []

    def noting(algorithm: Algorithm, folder: Path) -> None:
        adopted.append(folder.name)
        adopt_saved(algorithm, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PracticeRun, "_unaided", unaided)
        patch.setattr(rounds, "adopt_saved", noting)
        train(*CHECKED, "--out", run)
    assert adopted == ["version_0001"], "practice goes on from the policy that stays"
    return run


def unaided(_: PracticeRun, names: Sequence[str]) -> tuple[int, int]:
    return (0 if names[0].startswith("check001") else 1), len(names)


@pytest.mark.slow
def test_a_worse_policy_is_put_aside_and_the_one_before_stays(worse: Path) -> None:
    assert digests(worse, 1) == digests(worse, 0)
    made = sorted(file.name for file in RunFolder(worse).candidate(1).rglob("*.safetensors"))
    assert made != digests(worse, 0), "it was another one, and can be looked at"
    assert digests(worse, 2) != digests(worse, 0), "the second one passes"
    assert not RunFolder(worse).candidate(2).exists()
    evaluations = RunFolder(worse).read_summary()["evaluations"]
    assert [entry["real_episodes"] for entry in evaluations] == [3, 3 + 5, 3 + 10]
    assert evaluations[1]["mean_success_length"] == evaluations[0]["mean_success_length"]
    store = EpisodeStore(RunFolder(worse).episodes, create=False)
    version = {name: store.read_header(name).policy_version for name in store.ids()}
    assert {version[name] for name in version if name.startswith(("check001", "round002"))} == {1}, (
        "what is played in the second round is not older than what the candidate of the first one played"
    )


@pytest.mark.slow
def test_the_policy_before_is_judged_by_what_it_does_without_exploration(worse: Path, tmp_path: Path) -> None:
    """As many episodes as the check has; the others explore."""
    summary = RunFolder(worse).read_summary()
    assert [summary["checks"][version]["practice"] for version in ("1", "2")] == [[1, 2], [1, 2]]
    config = load_config(RunConfig, RunFolder(worse).config_file)
    jobs = StageJobs(RunFolder(worse), config.budget, config.seed, config.task.envs, config.takeover.enabled)
    plain, practice = EpisodeStore(tmp_path / "plain"), EpisodeStore(RunFolder(worse).episodes, create=False)
    worker = SimulatorWorker(replace(config, exploration=0.0))
    list(worker.run([replace(job, store=plain.path) for job in jobs.practice(Stage("collect", 1, 0, 0, 0))]))
    worker.close()
    same = [
        np.array_equal(plain.read(name).action_policy, practice.read(name).action_policy)
        for name in (f"round001-{index:05d}" for index in range(3))
    ]
    assert same == [True, True, False]


def test_the_odds_of_a_check_are_those_that_the_docs_give() -> None:
    """Of a policy at 50 % and one that succeeds as often, or less often by so much: twenty episodes each."""
    chances = {
        success: [math.comb(20, k) * success**k * (1 - success) ** (20 - k) for k in range(21)] for success in SAY
    }
    said = re.sub(r"\s+", " ", Path("docs/algorithms.md").read_text())
    for success, words in SAY.items():
        passes = sum(new * old for k, new in enumerate(chances[success]) for old in chances[0.5][: k + 1])
        assert words.format(f"{100 * passes:.0f} %") in said


@pytest.mark.slow
def test_a_run_that_was_killed_in_its_check_comes_to_the_same(
    worse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fingerprint(worse)
    for version in (1, 2):
        run = tmp_path / f"before-{version}"
        shutil.copytree(worse, run)
        folder = RunFolder(run)
        for later in range(version, 3):
            if not folder.candidate(later).exists():
                folder.policy(later).rename(folder.candidate(later))  # as it lies before it has passed
            shutil.rmtree(folder.policy(later), ignore_errors=True)
        monkeypatch.setattr(PracticeRun, "_unaided", unaided)
        train("--resume", run)
        assert fingerprint(run) == whole
