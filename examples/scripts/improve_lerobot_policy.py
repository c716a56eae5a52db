"""Improve a policy that lerobot trained. Its weights stay unchanged: practice adds a residual and a critic.

Example: python examples/scripts/improve_lerobot_policy.py outputs/train/pretrained_model datasets/my_task
"""

import sys
from typing import Any

import vla_rl as vla
from vla_rl.policies.lerobot_adapter.adopt import adopt


def main(
    checkpoint: str,
    dataset: str,
    task: str = "vla_rl/PegInsert-v0",
    rounds: int = 3,
    episodes: int = 150,
    out: str = "runs/improved",
    **settings: Any,
) -> None:
    env = vla.make_env(task)
    policy = f"{out}-base"
    adopt(checkpoint, env.spec.control_hz).save(policy)
    practice = vla.Practice(
        policy, env, demonstrations=dataset, episodes_per_round=episodes, out=out, settings=settings
    )
    for result in practice.rounds(rounds):  # a second call of this script goes on where the folder stands
        print(result, f"proxy: {result.metrics['proxy_unexplained']:.1%} unexplained")


if __name__ == "__main__":
    main(*sys.argv[1:])
