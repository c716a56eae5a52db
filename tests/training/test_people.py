"""A run with people of different skill, small: who acted is on record, and the report says whose steps help."""

import re

import numpy as np
import pytest

from tests.training.test_practice_run import train
from vla_rl.core.types import OPERATOR, Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.report.sinks import read_records
from vla_rl.training.config import RunConfig, TaskConfig
from vla_rl.training.jobs import StageJobs
from vla_rl.training.people import quality_by_operator
from vla_rl.training.plan import BudgetConfig
from vla_rl.training.simulator import SimulatorWorker

PEOPLE = ("better_1", "worse_2")


@pytest.mark.slow
def test_who_acted_is_on_record_and_in_the_report(tmp_path):
    run = tmp_path / "run"
    train(
        "--config", "tiny", "--out", run,
        f"task.operators=[{','.join(PEOPLE)}]",
        f"takeover.options.operators=[{','.join(PEOPLE)}]",
        "takeover.options.rescue_probability=1",
        "task.declare.max_episode_steps=300",
        "budget.rounds=1",
        "learning.advantage.weighs_people=true",
        "learning.credit.idle_steps=4",
        "learning.credit.takeover_lead_steps=10",
    )  # fmt: skip
    store = EpisodeStore(run / "episodes", create=False)
    acted = {}
    for name in store.ids():
        episode = store.read(name)
        (column,) = (extra for extra in episode.extras if extra.startswith(OPERATOR))
        acted[name] = column.removeprefix(OPERATOR)
        decided = episode.extras[column].astype(bool)
        if name.startswith("demo"):
            assert decided.all()
            np.testing.assert_array_equal(episode.action_policy, episode.action_sent)  # of a person no more is known
        else:
            # Marks are off by half a second at most, either way.
            assert np.count_nonzero(decided != (episode.source == Source.HUMAN)) <= 10 * 3
    assert [acted[f"demo-{index:05d}"] for index in range(3)] == [PEOPLE[0], PEOPLE[1], PEOPLE[0]]
    assert set(acted.values()) == set(PEOPLE)

    newest = [record for record in read_records(run / "metrics.jsonl") if record["kind"] == "operators"][-1]
    assert newest["better_1/demonstrations"] == 2
    assert newest["worse_2/steps"] > newest["better_1/steps"]
    assert newest["better_1/advantage_gate"] > 0
    page = (run / "report.html").read_text()
    table = page[page.index("<h2>Operators") :]
    assert all(re.search(rf"<td[^>]*>{name}</td>", table) for name in PEOPLE)


def test_each_person_demonstrates_each_of_several_tasks(tmp_path):
    tasks = ("vla_rl/PegInsert-v0", "vla_rl/Handover-v0")
    config = RunConfig(task=TaskConfig(tasks[0], also=tasks[1:], image_size=16, operators=PEOPLE))
    worker = SimulatorWorker(config)
    jobs = StageJobs(RunFolder(tmp_path), BudgetConfig(demonstrations=8), 3, tasks, takeover=False).demonstrations()
    turns = [(job.task, worker.operator_of(job)) for job in jobs]
    worker.close()
    assert turns == [(task, person) for person in PEOPLE for task in tasks] * 2


def make_episode(name, source, success, people):
    """An episode in which the steps of each person are given; the state is the step."""
    size = len(source)
    vectors = np.repeat(np.arange(size, dtype=np.float32)[:, None], 2, 1)
    extras = {OPERATOR + person: np.isin(np.arange(size), steps).astype(np.uint8) for person, steps in people.items()}
    demo = source[0] == Source.DEMO
    return Episode(
        name, {}, vectors, vectors, vectors, np.array(source, np.uint8), "", success, success,
        Origin.DEMO if demo else Origin.SIM, -1 if demo else 0, 0, 20.0, "env", extras,
    ).validate()  # fmt: skip


def quality_of(tmp_path, episodes, trace, chunk_ticks=0):
    store = EpisodeStore(tmp_path / "episodes")
    for episode in episodes:
        store.add(episode)
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    return quality_by_operator(cache, store, trace, chunk_ticks)


P, H, D = Source.POLICY, Source.HUMAN, Source.DEMO


def test_several_people_in_one_episode_answer_for_their_own_steps(tmp_path):
    """Ann takes over, is relieved by Bob, who gives back; in another episode Ann is alone."""
    shared = make_episode(
        "round-0", [P] * 4 + [H] * 20 + [P] * 4, True, {"ann": np.arange(4, 12), "bob": np.arange(12, 24)}
    )
    alone = make_episode("round-1", [P] * 10 + [H] * 8, False, {"ann": np.arange(10, 18)})
    demo = make_episode("demo-0", [D] * 6, True, {"bob": np.arange(6)})

    def trace(cache, frames):
        return {"advantage_gate": cache.position[frames]}

    found = quality_of(tmp_path, [shared, alone, demo], trace)
    assert {name: value for name, value in found.items() if name.startswith("ann/")} == {
        "ann/demonstrations": 0,
        "ann/takeovers": 2,
        "ann/rescued": 0.5,
        "ann/person_steps": 16,
        "ann/advantage_gate": np.mean([4, 8, 10, 14]),  # every fourth
    }
    assert {name: value for name, value in found.items() if name.startswith("bob/")} == {
        "bob/demonstrations": 1,
        "bob/steps": 6,
        "bob/takeovers": 1,
        "bob/rescued": 1.0,
        "bob/person_steps": 18,
        "bob/advantage_gate": np.mean([0, 4, 14, 18, 22]),
    }


@pytest.mark.parametrize("column", ["viability", "discounted_value"])
def test_the_value_rises_where_a_person_drives_for_a_whole_chunk(tmp_path, column):
    """By what he does, .02 a step; the leaps where another one takes over, and the end of the episode, are not his."""
    source = [P] * 5 + [H] * 14 + [P] * 6
    episode = make_episode("round-0", source, True, {"ann": np.arange(5, 19)})
    values = np.where(np.array(source) == H, 0.3 + 0.02 * np.arange(25), 0.9)
    demo = make_episode("demo-0", [D] * 11, True, {"bob": np.arange(11)})
    brief = make_episode("round-1", [P] * 5 + [H] * 3, True, {"eve": np.arange(5, 8)})

    def trace(cache, frames):
        episode = np.array([e.episode_id for e in cache.episodes])[cache.episode_index[frames]]
        step = cache.position[frames]
        return {column: np.where(episode == "round-0", values[step], 0.05 * step)}

    found = quality_of(tmp_path, [episode, demo, brief], trace, chunk_ticks=6)
    assert found["ann/value_rise"] == pytest.approx(6 * 0.02)
    assert found["bob/value_rise"] == pytest.approx(6 * 0.05)
    assert "eve/value_rise" not in found  # no chunk is all hers
    assert not any("value_rise" in name for name in quality_of(tmp_path / "other", [episode], trace))
