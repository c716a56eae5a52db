"""Ray caster against EGL on scenes of other projects: which geom each pixel shows, with cameras that move.

Every scene moves for a while at random, so that wrist cameras look elsewhere than at the start. The disagreement is
the share of all pixels in which the two renderers see another geom. Scenes whose package is not installed are skipped.

Example: python -m benchmarks foreign-scenes
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.progress import track

_Scene = tuple[Any, Any, Callable[[], None], Any]  # model, data, what steps them, and what must be kept alive
_STEPS, _PICTURES = 200, 5  # simulation steps of each scene, and moments at which it is drawn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenes", nargs="*", default=[], metavar="NAME", help=f"of {', '.join(SCENES)}; default: all")
    parser.add_argument("--size", type=int, default=64, help="height and width of the pictures, in pixels")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compare the renderers on every scene that is installed."""
    from sim.egl import why_egl_does_not_load

    unknown = set(options.scenes) - set(SCENES)
    if unknown:
        raise UserError(f"--scenes names {min(unknown)!r}. Known: {', '.join(SCENES)}.")
    if complaint := why_egl_does_not_load():
        raise UserError(f"EGL does not load ({complaint}), so there is nothing to compare. Install Mesa.")
    rows, missing = [], {}
    for name in track(options.scenes or list(SCENES), "foreign scenes", "scene"):
        load, package = SCENES[name]
        if importlib.util.find_spec(package) is None:
            missing[name] = package
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            model, data, step, keep = load()
        rows += [{"scene": name, **row} for row in _compare(model, data, step, options.size)]
        del keep
    scenes = dict.fromkeys(row["scene"] for row in rows)
    return {
        "raycast_egl_disagreement": {s: max(row["mean"] for row in rows if row["scene"] == s) for s in scenes},
        "raycast_egl_disagreement_max": max((row["mean"] for row in rows), default=None),
        "rows": rows,
        "not_installed": missing,
    }


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per scene, and the packages that are missing."""
    rows = [
        f"| {scene} | {sum(row['scene'] == scene for row in result['rows'])} | {share:.3%} |"
        for scene, share in result["raycast_egl_disagreement"].items()
    ]
    missing = [f"Not measured: {name} (needs {package})." for name, package in result["not_installed"].items()]
    return "\n".join(["| scene | cameras | pixels that differ, worst camera |", "|---|---|---|", *rows, "", *missing])


def _compare(model: Any, data: Any, step: Callable[[], None], size: int) -> list[dict[str, Any]]:
    """Disagreement of every perspective camera, mean and worst over the pictures."""
    import mujoco
    import numpy as np

    from sim.rendering import Renderer

    cameras = [model.camera(number).name for number in range(model.ncam)]
    renderers = [Renderer(name, model, data, cameras, size) for name in ("raycast", "egl")]
    shares: dict[str, list[float]] = {camera: [] for camera in cameras}
    poses: dict[str, set[bytes]] = {camera: set() for camera in cameras}
    for number in range(_STEPS):
        step()
        if number % (_STEPS // _PICTURES) == 0:
            mujoco.mj_forward(model, data)
            for camera in cameras:
                first, second = (renderer.segment(data, camera) for renderer in renderers)
                shares[camera].append(float(np.mean(first != second)))
                poses[camera].add(data.camera(camera).xmat.tobytes() + data.camera(camera).xpos.tobytes())
    for renderer in renderers:
        renderer.close()
    return [
        {"camera": camera, "moves": len(poses[camera]) > 1, "mean": float(np.mean(found)), "worst": max(found)}
        for camera, found in shares.items()
    ]


def _free(model: Any, data: Any) -> _Scene:
    """A scene whose actuators are driven at random, slowly enough to come far."""
    import mujoco
    import numpy as np

    rng = np.random.default_rng(0)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    middle = data.ctrl.copy()
    low, high = model.actuator_ctrlrange.T
    span = np.where(model.actuator_ctrllimited, high - low, 1.0)

    def step() -> None:
        middle[:] += 0.02 * span * rng.standard_normal(model.nu)
        data.ctrl[:] = np.where(model.actuator_ctrllimited, np.clip(middle, low, high), middle)
        mujoco.mj_step(model, data, 4)

    return model, data, step, None


def _file(package: str, *path: str) -> Callable[[], _Scene]:
    def load() -> _Scene:
        import mujoco

        found = importlib.util.find_spec(package)  # importing could need packages that the scene does not
        assert found is not None
        assert found.origin is not None
        model = mujoco.MjModel.from_xml_path(str(Path(found.origin).parent.joinpath(*path)))
        return _free(model, mujoco.MjData(model))

    return load


def _robosuite(task: str) -> Callable[[], _Scene]:
    def load() -> _Scene:
        import numpy as np

        robosuite: Any = importlib.import_module("robosuite")
        np.random.seed(0)  # noqa: NPY002 - robosuite draws from the global state
        env = robosuite.make(
            task, robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False, horizon=10**6
        )
        env.reset()
        rng, action = np.random.default_rng(0), np.zeros(env.action_dim)

        def step() -> None:
            action[:] = np.clip(0.9 * action + 0.3 * rng.standard_normal(len(action)), -1, 1)
            env.step(action)

        return env.sim.model._model, env.sim.data._data, step, env

    return load


def _metaworld() -> _Scene:
    import numpy as np

    metaworld: Any = importlib.import_module("metaworld")
    benchmark = metaworld.MT1("hammer-v3", seed=0)
    env = benchmark.train_classes["hammer-v3"]()
    env.set_task(benchmark.train_tasks[0])
    env.reset()
    rng = np.random.default_rng(0)

    def step() -> None:
        env.step(np.clip(rng.standard_normal(4), -1, 1))

    return env.model, env.data, step, env


def _suite(domain: str, task: str) -> Callable[[], _Scene]:
    def load() -> _Scene:
        suite: Any = importlib.import_module("dm_control.suite")
        env = suite.load(domain, task, task_kwargs={"random": 0})
        env.reset()
        model, data, step, _ = _free(env.physics.model.ptr, env.physics.data.ptr)
        return model, data, step, env

    return load


def _ogbench() -> _Scene:
    import numpy as np

    module: Any = importlib.import_module("ogbench.manipspace.envs.cube_env")
    env = module.CubeEnv(env_type="single", permute_blocks=False, visualize_info=False, ob_type="states")
    env.reset(options={"task_id": 1})
    rng = np.random.default_rng(0)

    def step() -> None:
        env.step(np.clip(rng.standard_normal(5), -1, 1))

    return env._model, env._data, step, env


SCENES: dict[str, tuple[Callable[[], _Scene], str]] = {
    "gym-aloha TransferCube": (_file("gym_aloha", "assets", "bimanual_viperx_transfer_cube.xml"), "gym_aloha"),
    "Meta-World hammer": (_metaworld, "metaworld"),
    "dm_control humanoid": (_suite("humanoid", "walk"), "dm_control"),
    "dm_control manipulator": (_suite("manipulator", "bring_ball"), "dm_control"),
    "dm_control quadruped": (_suite("quadruped", "run"), "dm_control"),
    "robosuite Lift": (_robosuite("Lift"), "robosuite"),
    "robosuite NutAssemblySquare": (_robosuite("NutAssemblySquare"), "robosuite"),
    "OGBench cube (Menagerie UR5e and 2F-85)": (_ogbench, "ogbench"),
    "gym-hil boxes (Menagerie Panda)": (_file("gym_hil", "assets", "arrange_boxes_scene.xml"), "gym_hil"),
    "mjlab YAM (Menagerie)": (_file("mjlab", "asset_zoo", "robots", "i2rt_yam", "xmls", "yam.xml"), "mjlab"),
    "mjlab Go1 (Menagerie)": (_file("mjlab", "asset_zoo", "robots", "unitree_go1", "xmls", "go1.xml"), "mjlab"),
}
"""Scenes by name: what loads them, and the package that it needs."""
