"""Meta-World with two 64 px cameras against the bare benchmark, and what each way of drawing costs.

Times are processor times of this process: a neighbor on the machine, or a second thread of the graphics library, does
not flatter them. Environment and bare benchmark take turns with the same actions, those of the scripted expert.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

IMAGE_SIZE = 64
STEPS = 60  # of each task that are timed; most experts need a few more
DRAWN_STEPS = 12  # a picture's cost depends on where the arm is, so it is taken at every twelfth step
ABLATION_TASKS = ("vla_rl/MetaWorldButtonPress-v0", "vla_rl/MetaWorldPegInsertSide-v0")


def measure_metaworld(tasks: Sequence[str] = (), blocks: int = 3) -> dict[str, Any]:
    """Speed of every task and the cost of every way of drawing.

    Args:
        tasks: ids of those to measure; all of them if there are none.
        blocks: how often environment and bare benchmark take turns.
    """
    import gymnasium
    from vla_rl_benchmarks.metaworld_tasks import IDS

    rows: list[dict[str, Any]] = []
    for task in tasks or IDS:
        env: Any = gymnasium.make(task, image_size=IMAGE_SIZE, renderer="raycast").unwrapped
        rows.append({"task": task, **_compare(env, blocks)})
        env.close()
        print(json.dumps(rows[-1]), file=sys.stderr)
    return {
        "metaworld_tasks": len(IDS),
        "metaworld_steps_per_s_two_cameras": statistics.median(row["steps_per_s"] for row in rows),
        "bare_steps_per_s": statistics.median(row["bare_steps_per_s"] for row in rows),
        "bare_ratio_metaworld": statistics.median(row["ratio"] for row in rows),
        "worst_bare_ratio_metaworld": min(row["ratio"] for row in rows),
        "rows": rows,
        "ablation": [row for task in ABLATION_TASKS for row in _ablation(task)],
    }


def measure_experts(episodes: int = 10) -> list[dict[str, Any]]:
    """Successes of every scripted expert without noise, on seeds from 0, and its mean steps to success: the figures of
    `vla_rl_benchmarks.metaworld_tasks`.
    """
    import gymnasium
    from vla_rl_benchmarks.metaworld_tasks import IDS

    import sim

    rows = []
    for task, native_name in IDS.items():
        env: Any = gymnasium.make(task, image_size=16).unwrapped
        env.drawing = False
        expert, steps = sim.make_expert(env), []
        for seed in range(episodes):
            env.reset(seed=seed)
            expert.reset(seed)
            ended = success = False
            while not ended:
                _, _, success, truncated, _ = env.step(expert.act()[1])
                ended = success or truncated
            steps += [env.elapsed_steps] * success
        env.close()
        mean_steps = statistics.mean(steps) if steps else None
        rows.append({"task": native_name, "successes": len(steps), "episodes": episodes, "mean_steps": mean_steps})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def _compare(env: Any, blocks: int) -> dict[str, float]:
    """Steps per second with pictures, without, and of the bare benchmark: medians over blocks."""
    actions = _expert_actions(env)

    def of_env(drawing: bool) -> float:
        env.reset(seed=0)
        env.drawing = drawing
        seconds = _seconds(lambda: [env.step(action) for action in actions])
        env.drawing = True
        return seconds / len(actions)

    def of_bare() -> float:
        env.reset(seed=0)
        return _seconds(lambda: [env.native.step(action) for action in actions]) / len(actions)

    drawn, undrawn, bare = zip(*((of_env(True), of_env(False), of_bare()) for _ in range(blocks)), strict=True)
    return {
        "steps_per_s": 1 / statistics.median(drawn),
        "steps_per_s_not_drawing": 1 / statistics.median(undrawn),
        "bare_steps_per_s": 1 / statistics.median(bare),
        "ratio": statistics.median(b / d for b, d in zip(bare, drawn, strict=True)),
    }


def _expert_actions(env: Any) -> list[np.ndarray]:
    """The expert's first actions of an episode, float64 [4] each."""
    import sim

    expert = sim.make_expert(env)
    env.reset(seed=0)
    expert.reset(0)
    env.drawing = False
    actions: list[np.ndarray] = []
    ended = False
    while not ended and len(actions) < STEPS:
        actions.append(expert.act()[1].astype(np.float64))
        _, _, success, truncated, _ = env.step(actions[-1])
        ended = success or truncated
    env.drawing = True
    return actions


def _ablation(task: str) -> list[dict[str, Any]]:
    """Measure milliseconds for two pictures, means over an episode, of each way of drawing. EGL counts only
    with ``MUJOCO_GL=egl``, where it loads.
    """
    import gymnasium

    from sim.egl import why_egl_does_not_load

    env: Any = gymnasium.make(task, image_size=IMAGE_SIZE).unwrapped
    ways = _raycast_ways(env)
    if os.environ.get("MUJOCO_GL") == "egl" and not why_egl_does_not_load():
        ways |= _egl_ways(env)
    actions, times = _expert_actions(env), {name: list[float]() for name in ways}
    env.reset(seed=0)
    env.drawing = False
    for tick, action in enumerate(actions):
        env.step(action)
        if tick % DRAWN_STEPS == 0:
            for name, draw in ways.items():
                draw()
                times[name].append(min(_seconds(draw) for _ in range(5)))
    return [
        {"task": task, "way": name, "two_pictures_ms": 1e3 * statistics.mean(seconds)}
        for name, seconds in times.items()
    ]


def _raycast_ways(env: Any) -> dict[str, Callable[[], Any]]:
    from vla_rl_benchmarks.metaworld_env import LINKS

    from sim.hulls import with_hulls
    from sim.raycast import RaycastRenderer

    model, data, cameras = env.native.model, env.native.data, env.native_cameras
    env.reset(seed=0)
    coarse = with_hulls(model, LINKS)
    renderers = {
        "raycast, the benchmark's meshes": RaycastRenderer(model, data, cameras, IMAGE_SIZE),
        "raycast, hulls as meshes": RaycastRenderer(coarse, data, cameras, IMAGE_SIZE),
        "raycast, hulls by their planes (in use)": RaycastRenderer(coarse, data, cameras, IMAGE_SIZE, LINKS),
    }
    return {name: _drawing(renderer, data, cameras) for name, renderer in renderers.items()}


def _egl_ways(env: Any) -> dict[str, Callable[[], Any]]:
    import mujoco
    from vla_rl_benchmarks.metaworld_env import LINKS

    from sim.egl import EglRenderer
    from sim.hulls import with_hulls

    model, data, cameras = env.native.model, env.native.data, env.native_cameras
    plain = mujoco.Renderer(with_hulls(model, ()), IMAGE_SIZE, IMAGE_SIZE)

    def draw_plainly() -> None:
        for camera in cameras:
            plain.update_scene(data, camera)
            plain.render()

    def update_scenes() -> None:
        for camera in cameras:
            coarse.update_scene(data, camera)

    def read_pixels() -> None:
        for _ in cameras:
            coarse.read_pixels()

    lean = EglRenderer(with_hulls(model, ()), cameras, IMAGE_SIZE)
    coarse = EglRenderer(with_hulls(model, ()), cameras, IMAGE_SIZE, hulls=LINKS)
    return {
        "egl, MuJoCo's own settings": draw_plainly,
        "egl, without shadows, reflections, sky, multisampling": _drawing(lean, data, cameras),
        "egl, and hulls (in use)": _drawing(coarse, data, cameras),
        "egl, of which both scene updates": update_scenes,
        "egl, of which both readings": read_pixels,
    }


def _drawing(renderer: Any, data: Any, cameras: Sequence[str]) -> Callable[[], Any]:
    return lambda: [renderer.render(data, camera) for camera in cameras]


def _seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    print(json.dumps(measure_metaworld(sys.argv[1:]), indent=2))
