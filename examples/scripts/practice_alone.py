"""Bring your own Gymnasium task, practice it without a person, and export what comes of it.

Example: python examples/scripts/practice_alone.py
"""

import sys
from pathlib import Path
from typing import Any

import vla_rl as vla

sys.path.append(str(Path(__file__).parents[1] / "own_task"))
from own_task import DotEnv


def main(rounds: int = 3, steps: int = 150, episodes: int = 60, out: str = "runs/dot", **settings: Any) -> None:
    env = vla.make_env(DotEnv)
    demonstrations = vla.collect_demonstrations(env, 4, expert=lambda dot: dot.goal)
    policy = vla.FlowVLA.from_data(demonstrations)
    vla.train(policy, demonstrations, steps=steps)
    practice = vla.Practice(
        policy, env, episodes_per_round=episodes, demonstrations=demonstrations, out=out, settings=settings
    )
    for result in practice.rounds(rounds):  # a second call of this script goes on where the folder stands
        print(result)
    print("exported to", vla.export(out, f"{out}-deployment"))


if __name__ == "__main__":
    main()
