"""Improve a policy on a server, such as pi0.5 behind openpi. It is only asked: practice adds a residual and a critic.

Example: python examples/scripts/improve_remote_policy.py "openpi://gpu:8000?interface=my_robot.yaml"
"""

import sys
from typing import Any

import vla_rl as vla


def main(
    url: str,
    task: str = "vla_rl/PegInsert-v0",
    rounds: int = 3,
    episodes: int = 150,
    out: str = "runs/remote",
    **settings: Any,
) -> None:
    env = vla.make_env(task)
    played = vla.evaluate(url, env, seeds=range(8), render=True).store  # the scale of states and actions
    slow = {"execution.strategy": "naive", "latency.typical": 6, "policy.asks_per_round": 2000}
    practice = vla.Practice(
        url, env, demonstrations=played, episodes_per_round=episodes, out=out, settings={**slow, **settings}
    )
    for result in practice.rounds(rounds):  # a second call of this script goes on where the folder stands
        print(result, f"{result.metrics['base_asked']:.0f} further chunks of the server")


if __name__ == "__main__":
    main(*sys.argv[1:])
