"""A task of a few steps and runs of it, small enough for a trap."""

import contextlib
import importlib
import io
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from vla_rl.cli.main import make_parser
from vla_rl.core.config import load_config, save_config
from vla_rl.core.config_files import config_file
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import RunConfig

TASK = f"{__name__}:Moves"
STEPS = 12


class Moves(gymnasium.Env[Any, Any]):
    """Succeeds when enough commands in an episode differ from the one before; every third start needs none.

    Args:
        needed: commands that have to differ.
        difficulty: from .5 on, one command more is needed.
    """

    metadata = {"render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it
    task_description = "move"

    def __init__(self, needed: int = 9, difficulty: float = 0.0, image_size: int = 32) -> None:
        self._needed = needed + (difficulty >= 0.5)
        self._picture = np.zeros((image_size, image_size, 3), np.uint8)
        pixels = gymnasium.spaces.Dict({"top": gymnasium.spaces.Box(0, 255, self._picture.shape, np.uint8)})
        self.observation_space = gymnasium.spaces.Dict(
            {"pixels": pixels, "agent_pos": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._left = 0 if (seed or 0) % 3 == 0 else self._needed
        self._steps = 0
        self._before: Any = None
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count a command that differs."""
        self._left -= not np.array_equal(action, self._before)
        self._steps, self._before = self._steps + 1, action
        success = self._left <= 0
        return self._observation(), float(success), success, self._steps >= STEPS, {"is_success": success}

    def _observation(self) -> dict[str, Any]:
        return {"pixels": {"top": self._picture}, "agent_pos": np.zeros(2, np.float32)}


def run_config(*overrides: str) -> RunConfig:
    changes = [f"task.env={TASK}", "execution.strategy=sync", "execution.execute_ticks=4", *overrides]
    return load_config(RunConfig, config_file("tiny"), changes)


def untrained_run(folder: Path, *overrides: str, policy: Path | None = None) -> RunFolder:
    """Make a run of `Moves` with an untrained policy, or a copy of another's."""
    import torch

    from vla_rl.acting.task import open_robot, spec_of_robot
    from vla_rl.core.normalization import Statistics
    from vla_rl.policies.folders import policy_class

    config = run_config(*overrides)
    run = RunFolder.create(folder, config)
    if policy is not None:
        shutil.copytree(policy, run.policy(0))
        return run
    robot = open_robot(config.task)
    spec = spec_of_robot(config.task.env, robot)
    robot.close()
    spread = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    torch.manual_seed(0)
    model = policy_class(config.policy.kind).build(config.policy, spec, Statistics.from_arrays(spread, spread))
    with torch.no_grad():
        for parameter in model.parameters():  # a new policy plans its noise alone
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(run.policy(0), {"policy_version": 0})
    return run


def trained_run(folder: Path, *overrides: str) -> RunFolder:
    """Train a run of `Moves` from demonstrations."""
    store = EpisodeStore(folder / "demonstrations")
    for number in range(2):
        store.add(demonstration(number))
    config = folder / "config.yaml"
    brought = ["takeover.enabled=false", "budget.rounds=0", f"task.demonstrations={store.path}", *overrides]
    save_config(run_config(*brought), config)
    printed_by("train", "--config", config, "--out", folder / "run")
    return RunFolder(folder / "run")


def demonstration(number: int) -> Episode:
    random = np.random.default_rng(number)
    images = {"top": np.zeros((STEPS, 32, 32, 3), np.uint8)}
    action = random.uniform(-1, 1, (STEPS, 2)).astype(np.float32)
    return Episode(
        episode_id=f"demo-{number:05d}",
        images=images,
        state=np.zeros((STEPS, 2), np.float32),
        action_policy=action,
        action_sent=action,
        source=np.full(STEPS, Source.DEMO, np.uint8),
        seed=number,
        control_hz=10,
        env_id=TASK,
        task=Moves.task_description,
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
    )


def printed_by(name: str, *arguments: object) -> str:
    """Run a verb in this process and return what it prints."""
    verb, parser = importlib.import_module(f"vla_rl.cli.{name}"), make_parser(name)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        verb.run(parser.parse_intermixed_args([str(argument) for argument in arguments]))
    return printed.getvalue()
