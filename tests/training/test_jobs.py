"""Which episodes a stage plays: tasks that share their starts."""

from pathlib import Path

import pytest

from vla_rl.data.run_folder import RunFolder
from vla_rl.training.jobs import StageJobs
from vla_rl.training.plan import BudgetConfig, Stage


def test_every_start_is_played_under_the_sentence_of_every_task(tmp_path: Path) -> None:
    tasks = ("vla_rl/PickRed-v0", "vla_rl/PickYellow-v0", "vla_rl/PickViolet-v0")
    budget = BudgetConfig(demonstrations=6, episodes_per_round=6, check_episodes=6)
    stage, jobs = Stage("collect", 1, 1, 0, 0), StageJobs(RunFolder(tmp_path), budget, 3, tasks, takeover=False)
    practice = jobs.practice(stage)
    for played in (jobs.demonstrations(), practice, jobs.check(stage), jobs.evaluation(stage)[:6]):
        assert [job.task for job in played] == [*tasks, *tasks]
        starts = [job.seeds[0] for job in played]
        assert starts == [starts[0]] * 3 + [starts[3]] * 3
        assert starts[0] != starts[3]
    assert not {job.seeds[0] for job in practice} & {job.seeds[0] for job in jobs.check(stage)}
    assert not any(job.collects for job in jobs.check(stage))
    of_one = StageJobs(RunFolder(tmp_path), budget, 3, tasks[:1], takeover=False)
    assert len({job.seeds[0] for job in of_one.practice(stage)}) == 6


@pytest.mark.parametrize(("check", "explore"), [(0, [True] * 4), (3, [False] * 3 + [True]), (5, [False] * 4)])
def test_who_is_compared_with_a_checked_policy_plays_as_many_episodes_like_it(
    check: int, explore: list[bool], tmp_path: Path
) -> None:
    budget = BudgetConfig(episodes_per_round=4, check_episodes=check)
    jobs = StageJobs(RunFolder(tmp_path), budget, 0, ("vla_rl/PegInsert-v0",), takeover=True)
    assert [job.collects for job in jobs.practice(Stage("collect", 1, 0, 0, 0))] == explore
