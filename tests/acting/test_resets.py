"""What brings the world to the start of an attempt: a person, or the policy by a second task."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim import make_expert
from vla_rl.acting.resets import ResetConfig, SecondTask, ask_person, check_world, choose_resets
from vla_rl.acting.task import open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.cli.main import main
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import RunConfig
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob

FORWARD, BACKWARD = "vla_rl/PickPlace-v0", "own_reset:PutBack-v0"
SHORT = ["budget.rounds=1", "budget.episodes_per_round=2", "budget.evaluation_episodes=2", "budget.demonstrations=4"]


class Still:
    """Plans to stay where it is."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.tile(observation.state, (16, 1)), observation.tick, 0, self.version)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Both tasks, with pictures of 16 pixels."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "own_reset"))
    importlib.import_module("own_reset")
    tiny = load_config(RunConfig, config_file("tiny"))
    return replace(tiny, task=TaskConfig(env=FORWARD, also=(BACKWARD,), difficulty=0.4, image_size=16))


def jobs(run: Path, first: int = 0, last: int = 4) -> list[RolloutJob]:
    """Return demonstrations of both tasks in turn."""
    tasks = (FORWARD, BACKWARD)
    return [
        RolloutJob(f"demo-{index:05d}", run / "episodes", tasks[index % 2], (index, index + 100), policy=None)
        for index in range(first, last)
    ]


def begin(run: Path, patience: int = 2) -> Path:
    run.mkdir(exist_ok=True)
    choose_resets(run, ResetConfig(patience))
    return run


def log_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "resets.jsonl").read_text().splitlines()]


def test_each_attempt_goes_on_in_the_world_of_the_one_before(config: RunConfig, tmp_path: Path) -> None:
    run, worlds = begin(tmp_path / "run"), []
    for index in range(4):
        if index % 2 == 0:  # a resumed run goes on in the same world
            worker = SimulatorWorker(config, run=run)
        assert len([*worker.run(jobs(run, index, index + 1))]) == 1
        worlds.append(np.load(run / "world.npy"))
    store = EpisodeStore(run / "episodes")
    for index in range(1, 4):
        episode = store.read(f"demo-{index:05d}")
        env = worker._simulators[(FORWARD, BACKWARD)[index % 2]][0].robot.env
        seen, _ = env.reset(seed=episode.seed, options={"world": worlds[index - 1]})
        np.testing.assert_array_equal(seen["pixels"]["top"], episode.images["top"][0])
        np.testing.assert_array_equal(seen["agent_pos"], episode.state[0])
    worker.close()
    assert not any("hand" in entry for entry in log_of(run))


def test_a_world_goes_on_with_its_objects_and_the_arms_at_home(config: RunConfig) -> None:
    env = open_robot(config.task, FORWARD).env.unwrapped
    env.reset(seed=3)
    expert = make_expert(env)
    for _ in range(30):  # the cube hangs in the gripper
        env.step(expert.act()[1])
    world, high = env.get_state(), env.position("cube")[2]
    assert high > 0.01
    _, info = env.reset(seed=5, options={"world": world})
    assert not info["is_success"]
    assert env.position("cube")[2] < 0.002, "it was let go"
    assert np.abs(env.grip_points() - env.home).max() < 0.03
    assert (env.openings() > 0.09).all()
    assert env.elapsed_steps == 0
    env.close()


@pytest.mark.parametrize(
    "log", [None, '{"episode": "demo-00000"}\n{"episode": "demo-0'], ids=["no line", "half a line"]
)
def test_a_run_that_was_killed_at_its_log_goes_on(log: str | None, config: RunConfig, tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    worker = SimulatorWorker(config, policy=Still(), run=run)
    assert len([*worker.run(jobs(run, 0, 1))]) == 1
    worker.close()
    (run / "resets.jsonl").unlink()
    if log is not None:
        (run / "resets.jsonl").write_text(log)
    before = [] if log is None else [{"episode": "demo-00000"}]
    world = np.load(run / "world.npy")
    worker = SimulatorWorker(config, policy=Still(), run=run)
    assert np.array_equal(worker._second_task.world, world)
    assert len([*worker.run(jobs(run, 1, 2))]) == 1
    worker.close()
    assert log_of(run)[: len(before)] == before
    assert log_of(run)[-1]["episode"] == "demo-00001"


def test_without_a_choice_the_simulator_resets(config: RunConfig, tmp_path: Path) -> None:
    worker = SimulatorWorker(config, run=tmp_path)
    assert len([*worker.run(jobs(tmp_path, 0, 2))]) == 2
    assert not (tmp_path / "resets.jsonl").exists()
    worker.close()


def test_a_world_that_is_stuck_is_reset_by_hand_and_counted(config: RunConfig, tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    worker = SimulatorWorker(config, policy=Still(), run=run)
    practice = [
        replace(job, episode_id=f"round001-{index:05d}", policy=tmp_path, collects=True)
        for index, job in enumerate(jobs(run, 0, 2))
    ]
    assert len([*worker.run(practice)]) == 2
    names = [entry.get("hand", entry.get("episode")) for entry in log_of(run)]
    again = [f"round001-00001-again{number:02d}" for number in range(2)]
    # The cube is still at its start, so only the forward task can help.
    assert names == ["round001-00000", *again, "round001-00001", "round001-00001"]
    assert [entry["task"] for entry in log_of(run) if entry.get("episode") in again] == [FORWARD] * 2
    seeds = {EpisodeStore(run / "episodes").read_header(name).seed for name in again}
    assert len(seeds) == 2, "from the same state, the same noise would fail again"
    assert EpisodeStore(run / "episodes").ids() == ["round001-00000", "round001-00001", *again]
    worker.close()


def test_a_killed_process_keeps_the_names_of_its_further_attempts(config: RunConfig, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", patience=1)
    practice = [
        replace(job, episode_id=f"round001-{index:05d}", policy=tmp_path, collects=True)
        for index, job in enumerate(jobs(run, 0, 2))
    ]
    worker = SimulatorWorker(config, policy=Still(), run=run)
    assert len([*worker.run(practice[:1])]) == 1
    world = (run / "world.npy").read_bytes()
    assert len([*worker.run(practice[1:])]) == 1
    worker.close()
    (run / "episodes" / "episodes" / "round001-00001.zarr.zip").unlink()  # as if it had been killed before
    (run / "world.npy").write_bytes(world)
    worker = SimulatorWorker(config, policy=Still(), run=run)
    assert len([*worker.run(practice[1:])]) == 1
    worker.close()
    again = [f"round001-00001-again{number:02d}" for number in range(2)]
    assert EpisodeStore(run / "episodes").ids() == ["round001-00000", "round001-00001", *again]


def test_an_evaluation_begins_at_its_own_start(config: RunConfig, tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    worker = SimulatorWorker(config, policy=Still(), run=run)
    assert len([*worker.run(jobs(run, 0, 1))]) == 1
    world = (run / "world.npy").read_bytes()
    played = replace(jobs(run, 1, 2)[0], episode_id="v0000-000000", task=FORWARD, policy=tmp_path)
    for name in ("v0000-000000", "v0000-000001"):
        assert len([*worker.run([replace(played, episode_id=name)])]) == 1
    store = EpisodeStore(run / "episodes")
    np.testing.assert_array_equal(store.read("v0000-000000").state, store.read("v0000-000001").state)
    assert (run / "world.npy").read_bytes() == world
    worker.close()


@pytest.mark.slow
def test_a_run_resets_itself_and_logs_all_attempts(config: RunConfig, tmp_path: Path) -> None:
    run, tasks = tmp_path / "run", [f"task.env={FORWARD}", f"task.also=[{BACKWARD}]", "task.image_size=32"]
    command = ["train", "--config", "tiny", *tasks, *SHORT, "takeover.enabled=false", "--out", str(run)]
    assert main([*command, "algorithm=filtered_bc", "--resets", "patience=1"]) == 0
    entries = log_of(run)
    stored = {*EpisodeStore(run / "episodes").ids()}
    assert {entry["episode"] for entry in entries if "episode" in entry} == stored
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    collected = next(each for each in metrics if each["kind"] == "collect" and each["round"] == 1)
    assert collected["episodes"] == sum(name.startswith("round001") for name in stored)


def test_one_task_several_worlds_or_a_run_without_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 1 tasks"):
        check_world((FORWARD,), one_world=True)
    with pytest.raises(ConfigError, match="Set workers=0"):
        check_world((FORWARD, BACKWARD), one_world=False)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="begun without --resets"):
        choose_resets(tmp_path, ResetConfig())
    with pytest.raises(ConfigError, match="patience"):
        ResetConfig(patience=0)


def test_an_environment_without_a_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "own_task"))
    robot = open_robot(TaskConfig(env="own_task:Dot-v0"))
    with pytest.raises(UserError, match="of own_task:Dot-v0 lacks get_state, set_state, is_success"):
        SecondTask(begin(tmp_path), {"own_task:Dot-v0": robot, FORWARD: robot})
    robot.close()


def test_a_person_sets_the_scene(capsys: pytest.CaptureFixture[str]) -> None:
    waited: list[int] = []
    ask_person("rollout-000003", lambda: waited.append(1))
    assert waited == [1]
    assert capsys.readouterr().err.startswith("rollout-000003: Enter begins.")
