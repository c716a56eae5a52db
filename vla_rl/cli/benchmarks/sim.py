"""Steps a second of each task, and how much of bare MuJoCo's speed the environment keeps when both do the same work.

Bare MuJoCo takes the same actions, the same substeps, and draws the same two cameras with the same renderer; the two
alternate in
short blocks, so that a busy machine slows both.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

_BLOCK_STEPS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=30, help=f"blocks of {_BLOCK_STEPS} steps for each of the two")
    parser.add_argument("--renderers", nargs="+", default=["raycast"])


def run(options: argparse.Namespace) -> dict[str, Any]:
    import gymnasium

    import sim

    rows = []
    for renderer in options.renderers:
        for name in sim.TASKS:
            env = gymnasium.make(name, renderer=renderer)
            rows.append({"task": name, "renderer": renderer, **_compare(env, options.blocks)})
            env.close()
    return {"rows": rows, "worst_ratio": min(row["ratio"] for row in rows)}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task and renderer."""
    head = ["| task | renderer | steps/s with two 64 px cameras | of bare MuJoCo |", "|---|---|---|---|"]
    rows = [
        f"| {row['task']} | {row['renderer']} | {row['steps_per_s']:.0f} | {row['ratio']:.3f} |"
        for row in result["rows"]
    ]
    machine = f"{result['machine']['cpu']}, one process. Command: `{result['command']}`."
    return "\n".join([*head, *rows, "", machine])


def _compare(env: Any, blocks: int) -> dict[str, float]:
    """Median step time of the environment and of bare MuJoCo, over alternating blocks."""
    import mujoco

    bare, expert = env.unwrapped, _scripted_actions(env)
    env_s, bare_s = [], []
    for block in range(blocks):
        actions = expert[(block * _BLOCK_STEPS + np.arange(_BLOCK_STEPS)) % len(expert)]
        env.reset(seed=0)
        start = time.perf_counter()
        for action in actions:
            bare.step(action)
        env_s.append((time.perf_counter() - start) / _BLOCK_STEPS)
        env.reset(seed=0)
        start = time.perf_counter()
        for action in actions:
            bare.data.ctrl[:] = action
            mujoco.mj_step(bare.model, bare.data, bare.n_substeps)
            mujoco.mj_kinematics(bare.model, bare.data)
            for camera in bare.cameras:
                bare.renderer.render(bare.data, camera)
        bare_s.append((time.perf_counter() - start) / _BLOCK_STEPS)
    ratio = statistics.median(bare / own for bare, own in zip(bare_s, env_s, strict=True))
    return {"steps_per_s": 1 / statistics.median(env_s), "ratio": ratio}


def _scripted_actions(env: Any) -> np.ndarray:
    """The actions of one expert episode, float32 [T, A], so that the physics has real contacts to solve."""
    import sim

    env.reset(seed=0)
    expert = sim.make_expert(env)
    actions, ended = [], False
    while not ended:
        actions.append(expert.act()[1])
        _, _, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated
    return np.stack(actions)
