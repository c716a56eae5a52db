"""The policy, executor, gate and seeds of the runs over topics, without topics. Answers come one tick late, as
there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from vla_rl.acting.capability import load_corrector
from vla_rl.acting.expert_policy import EXPERT, find_expert
from vla_rl.acting.policy_folder import find_policy, load_acting_policy
from vla_rl.acting.rollout import resolve_config
from vla_rl.acting.task import open_robot
from vla_rl.core.clock import VirtualClock
from vla_rl.core.config import load_config
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.protocols import Policy
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner
from vla_rl.training.config import TaskConfig


def in_process(policy: str, difficulty: float, episodes: int, overrides: Sequence[str]) -> dict[str, int]:
    """How often the policy succeeds.

    Args:
        policy: as the parameter of the node.
        difficulty: of the default task.
        episodes: seeds from 0 on.
        overrides: as those of the node.
    """

    if policy.startswith(EXPERT):
        folder, load = find_expert(policy)
        acting: Policy = load()
    else:
        folder = find_policy(Path(policy))
        acting = load_acting_policy(folder.path)
    execution = resolve_config(folder, overrides=overrides, realtime=True).execution  # as the node resolves it
    execution = replace(execution, discrete_dims=execution.discrete_dims or folder.discrete_dims)
    clock = VirtualClock()
    robot = open_robot(TaskConfig(difficulty=difficulty, image_size=folder.spec.image_size[0]), clock=clock)
    gate = SafetyGate(load_config(RobotLimits, CONFIGS / "robots" / "tabletop.yaml"), robot.control_hz)
    planner = VirtualPlanner(acting, clock, robot.control_hz, LatencyConfig(typical=1.0))
    corrector = load_corrector(execution, folder)
    successes = 0
    for seed in range(episodes):
        gate.rearm()
        successes += run_episode(robot, Executor(planner, execution, corrector), gate, seed=seed).success is True
    robot.close()
    return {"episodes": episodes, "successes": successes}
