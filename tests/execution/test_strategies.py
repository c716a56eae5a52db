"""What distinguishes the strategies: seams, reaction, time, and how the policy is used (spec tests 5, 8, 9)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import ReachEnv, ReachPolicy

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from tests.fakes.driven import check_committed_prefix, drive
from tests.fakes.faulty_attempts import HORIZON, TICK_NS, TickPolicy, observe
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.registry import names
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig, execution_config, find_strategy, make_strategy
from vla_rl.execution.virtual import Latency, LatencyConfig, VirtualPlanner

CONTINUOUS = ["rtc", "xiaomi"]
ASYNCHRONOUS = ["naive", "temporal_ensembling", *CONTINUOUS]


class WaveringPolicy:
    """A multimodal policy: every chunk follows a slow wave, displaced by a mode of its own that the seed draws."""

    version = 0

    def reset(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def _sample(self, observation: Observation) -> Float32Array:
        ticks = observation.tick + np.arange(HORIZON)
        return (np.sin(ticks / 8) + self._random.choice([-1.0, 1.0]))[:, None].astype(np.float32)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        actions = self._sample(observation)
        if committed is not None:
            # A policy trained on prefixes goes on from them; its own mode fades in slowly.
            jump = committed[-1] - actions[len(committed) - 1]
            fade = 1 - 0.002 * np.arange(HORIZON - len(committed))[:, None]
            actions[len(committed) :] += fade * jump
            actions[: len(committed)] = committed
        return ActionChunk(actions, observation.tick, 0, 0)

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        # Guidance finds the mode that fits the earlier plan.
        actions = self._sample(observation)
        actions += (previous - actions[: len(previous)]).mean()
        return ActionChunk(actions, observation.tick, 0, 0)


def seam_ratio(strategy: str, delay: int) -> float:
    """The 99th percentile of steps across seams, over the median step within chunks."""
    config = execution_config(strategy, execute_ticks=6, expected_delay_ticks=delay)
    latency = LatencyConfig(Latency.RECORDED, samples=(delay - 0.5, float(delay)))
    actions = drive(WaveringPolicy(), config, latency, 4000)[2 * HORIZON :]
    steps = np.abs(np.diff([action.action[0] for action in actions]))
    seam = np.diff([action.chunk_id for action in actions]) != 0
    return float(np.quantile(steps[seam], 0.99) / np.median(steps[~seam]))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1, 2, 4])
@pytest.mark.parametrize("strategy", CONTINUOUS)
def test_seams_do_not_jump(strategy: str, delay: int) -> None:
    assert seam_ratio(strategy, delay) <= 1.5


def test_naive_seams_jump() -> None:
    assert seam_ratio("naive", 2) > 10, "or the measure of the seams measures nothing"


class SeeingPolicy:
    """Goes to where the object is seen."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        actions = np.full((HORIZON, 1), observation.state[0], np.float32)
        if committed is not None:
            actions[: len(committed)] = committed
        return ActionChunk(actions, observation.tick, 0, 0)

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        return self.infer(observation, previous[:delay_ticks])


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("strategy", [*ASYNCHRONOUS, "sync"])
def test_reaction_to_a_teleported_object_takes_at_most_d_plus_s_plus_one_ticks(strategy: str, delay: int) -> None:
    execute_ticks = 5
    # sync also stands still for the plan before the one that knows: its own bound is 2 d + s.
    bound = delay + execute_ticks + 1 if strategy != "sync" else 2 * delay + execute_ticks
    prefix = {"max_prefix_ticks": max(delay, 1)} if strategy == "xiaomi" else {}
    config = execution_config(strategy, execute_ticks=execute_ticks, expected_delay_ticks=delay, **prefix)
    for teleport in range(40, 40 + 2 * (execute_ticks + delay)):
        clock = VirtualClock()
        executor = Executor(VirtualPlanner(SeeingPolicy(), clock, 20.0, LatencyConfig(typical=delay)), config)
        executor.reset(0, np.zeros(1, np.float32))
        for tick in range(teleport + bound + 1):
            clock.sleep_until_ns(tick * TICK_NS)
            seen = replace(observe(tick), state=np.full(1, float(tick >= teleport), np.float32))
            action = executor.propose(seen, tick * TICK_NS)
            executor.sent(action.action)
            if tick < teleport:
                assert action.action[0] == 0
            elif action.action[0] > 0:
                break
        assert action.action[0] > 0, f"no corrected action {bound} ticks after the object moved at {teleport}"


def test_sync_costs_the_delay_and_the_others_do_not() -> None:
    """Successes per minute of simulated time at d = 4, s = 8: at least 1.15 times those of sync."""
    minutes, successes = {}, {}
    for name, pause in [("sync", "freeze"), ("sync", "hold"), ("naive", "hold")]:
        robot = EnvRobot(ReachEnv())
        planner = VirtualPlanner(ReachPolicy(), robot.clock, 20.0, LatencyConfig(typical=4.0))
        options = {"sync_pause": pause} if name == "sync" else {}
        executor = Executor(planner, execution_config(name, execute_ticks=8, **options))
        gate = SafetyGate(GateConfig().filled([-1, -1], [1, 1]), 20.0)
        episodes = [run_episode(robot, executor, gate, seed=seed) for seed in range(20)]
        minutes[name, pause] = sum(episode.duration_s for episode in episodes) / 60
        successes[name, pause] = sum(bool(episode.success) for episode in episodes)
        if pause == "freeze":
            assert all(episode.held_ticks == 0 for episode in episodes)
    assert set(successes.values()) == {20}
    for pause in ("freeze", "hold"):
        assert minutes["sync", pause] >= 1.15 * minutes["naive", "hold"]


def test_a_frozen_world_counts_exactly_the_time_of_inference() -> None:
    """One request per 8 ticks, each 4 ticks long: 12 ticks of time for 8 of motion."""
    robot = EnvRobot(ReachEnv(limit=80))
    planner = VirtualPlanner(ReachPolicy(pace=0.0), robot.clock, 20.0, LatencyConfig(typical=4.0))
    executor = Executor(planner, execution_config("sync", sync_pause="freeze"))
    summary = run_episode(robot, executor, SafetyGate(GateConfig().filled([-1, -1], [1, 1]), 20.0), seed=0)
    assert summary.ticks == 80
    assert summary.duration_s == pytest.approx(80 * 1.5 / 20)


class TestEnsembling:
    """Chunks are constant at their observation's tick, so the mean can be computed by hand."""

    class ConstantPolicy(TickPolicy):
        def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
            return ActionChunk(np.full((4, 2), observation.tick, np.float32), observation.tick, 0, 0)

    def test_the_mean_is_weighted_from_the_oldest_and_discrete_dimensions_are_the_newest(self) -> None:
        config = execution_config("temporal_ensembling", execute_ticks=1, discrete_dims=(1,), ensembling_decay=0.5)
        executor = Executor(InlinePlanner(self.ConstantPolicy()), config)
        executor.reset(0, np.zeros(2, np.float32))
        actions = [executor.propose(observe(tick), 0).action for tick in range(10)]
        weights = np.exp(-0.5 * np.arange(4))
        for tick in range(3, 10):
            chunks = np.arange(tick - 3, tick + 1)
            assert actions[tick][0] == pytest.approx(weights @ chunks / weights.sum(), rel=1e-6)
            assert actions[tick][1] == tick


def test_the_committed_prefix_is_what_will_be_executed() -> None:
    check_committed_prefix("xiaomi", 5)


def test_a2c2_corrects_every_action_by_its_age() -> None:
    class Corrector:
        def correct(
            self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: Sequence[int]
        ) -> Float32Array:
            asked.append(discrete_dims)
            return action + 1000 * chunk_index

    asked: list[Sequence[int]] = []
    execution = execution_config("a2c2", discrete_dims=(0,))
    executor = Executor(InlinePlanner(TickPolicy()), execution, Corrector())
    executor.reset(0, np.zeros(1, np.float32))
    actions = [executor.propose(observe(tick), 0).action[0] for tick in range(20)]
    assert actions == [tick + 1000 * (tick % 8) for tick in range(20)]
    assert asked == [(0,)] * 20


def test_rtc_needs_a_policy_with_guidance() -> None:
    with pytest.raises(UserError, match="needs a flow policy with guidance"):
        drive(TickPolicy(), ExecutionConfig(strategy="rtc"), LatencyConfig(), 20)


def test_guidance_gets_what_is_scheduled_and_the_true_gradient() -> None:
    seen = set()

    class Guided(WaveringPolicy):
        def infer_guided(
            self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
        ) -> ActionChunk:
            seen.add((exact_gradient, len(previous), delay_ticks))
            return super().infer_guided(observation, previous, delay_ticks, exact_gradient)

    drive(Guided(), execution_config("rtc", expected_delay_ticks=2), LatencyConfig(typical=2.0), 50)
    # H = 16, s = 8, d = 2; the request after the cold start comes when 6 were executed: 8 ticks after the first.
    assert all(exact for exact, _, _ in seen)
    assert (True, 8, 2) in seen


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ExecutionConfig(strategy="temporal_ensemblin"), "Did you mean 'temporal_ensembling'"),
        (ExecutionConfig(strategy="xiaomi"), "takes a PrefixConfig, not a ExecutionConfig"),
        (ExecutionConfig(strategy="a2c2"), "'a2c2' needs a corrector"),
        (execution_config("xiaomi", expected_delay_ticks=9), "max_prefix_ticks is 6, less than the expected"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_clear_error(config: ExecutionConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_strategy(config)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("naive", {"execute_ticks": 0}, "execute_ticks is 0; expected >= 1"),
        ("sync", {"sync_pause": "stop"}, "unknown execution.sync_pause 'stop'"),
    ],
)
def test_numbers_that_cannot_work_are_one_clear_error(strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        execution_config(strategy, **options)


def test_every_strategy_of_ours_has_one_name() -> None:
    assert len({find_strategy(name) for name in names("strategies")}) == len(names("strategies")) >= 6
