"""How predictions of policies are compared with what they made: known answers."""

import pytest

from benchmarks.policy_ranking import keys, table

TASKS = ("vla_rl/PegInsert-v0", "vla_rl/LidOnBox-v0")


def cells(made: list[float], told: list[float], task: str = TASKS[0]) -> list[dict]:
    about = {"task": task, "seed": 0, "method": "imagined_edit", "lent_by": "unimagined"}
    return [
        {**about, "version": index, "real": real, "foretold": foretold}
        for index, (real, foretold) in enumerate(zip(made, told, strict=True))
    ]


@pytest.mark.slow
def test_tasks_that_differ_are_no_merit() -> None:
    """Each task in order by itself; then two tasks in the right order, whose policies are in the wrong one."""
    found = keys(cells([0.4, 0.5, 0.6], [0.6, 0.7, 0.8]) + cells([0.2, 0.3], [0.1, 0.2], TASKS[1]))
    assert found["ranking_unseen_pearson"] == pytest.approx(1)
    assert found["mmrv"] == 0
    assert found["foretold_gap_points"] == pytest.approx(8)
    wrong = keys(cells([0.8, 0.9], [0.9, 0.8]) + cells([0.1, 0.2], [0.2, 0.1], TASKS[1]))
    assert wrong["ranking_unseen_pearson"] == pytest.approx(-1)
    assert wrong["mmrv"] == pytest.approx(0.1)


def test_a_row_of_each_method_and_nothing_of_nothing() -> None:
    found = keys(cells([0.4, 0.5, 0.6], [0.6, 0.5, 0.7]))
    row = "| vla_rl/PegInsert-v0, seed 0, `imagined_edit` | `unimagined` | 40%, 50%, 60% | 60%, 50%, 70% |"
    assert row in table(found)
    assert "3 policies" in table(found)
    assert all(-1 <= end <= 1 for end in found["ranking_unseen_pearson_interval"]), "also of policies drawn thrice"
    assert keys([]) == {}
