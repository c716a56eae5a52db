"""Improve a policy of your own class. The class stays unchanged: practice adds a residual and a critic to it.

Example: python examples/scripts/improve_own_policy.py
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import vla_rl as vla
from vla_rl.core.types import ActionChunk

sys.path.append(str(Path(__file__).parents[1] / "own_task"))
from own_task import SIZE, DotEnv


class Reaching:
    """Drive to the green square, with a camera that is mounted askew."""

    version, horizon, spec = 0, 16, vla.make_env(DotEnv).spec

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Any, committed: Any = None) -> ActionChunk:
        rows, columns = np.nonzero(observation.images["picture"][..., 1] == 200)
        goal = np.array([columns.mean() / SIZE + 0.09, rows.mean() / SIZE - 0.06], np.float32)
        return ActionChunk(np.tile(goal, (self.horizon, 1)), observation.tick, 0, self.version)


def main(rounds: int = 3, episodes: int = 60, out: str = "runs/reaching", **settings: Any) -> None:
    env, policy = vla.make_env(DotEnv), f"{Path(__file__).stem}:Reaching"
    played = vla.evaluate(policy, env, seeds=range(8), render=True).store  # the scale of states and actions
    practice = vla.Practice(policy, env, demonstrations=played, episodes_per_round=episodes, out=out, settings=settings)
    print(*practice.rounds(rounds), sep="\n")


if __name__ == "__main__":
    main()
