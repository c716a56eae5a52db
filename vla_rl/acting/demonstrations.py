"""Import demonstrations into a run, in place of an expert's: from a store, a run or a LeRobotDataset."""

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vla_rl.acting.retiming import retimed
from vla_rl.core.dimensions import match_both
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.pictures import resized
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Float32Array, Origin, Source, Uint8Array
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.sources import DataMapping, as_store, find_store, is_lerobot, survey
from vla_rl.data.store import EpisodeStore

logger = logging.getLogger(__name__)
_DONE = "demonstrations.json"
_REMEDY = "set the task (task.image_size, task.declare) as it was then. Or leave the episode out: label it a failure"


def bring_demonstrations(
    source: Path,
    run: Path,
    store: EpisodeStore,
    specs: Mapping[str, PolicySpec],
    most: int,
    speed: float = 1.0,
    gripper_dims: Mapping[str, Sequence[int]] | None = None,
    bounds: Mapping[str, tuple[Float32Array, Float32Array]] | None = None,
) -> bool:
    """Copy demonstrations into the store of a run, as ``demo-00000`` and so on, once; what a killed process had copied
    stays.

    A demonstration is an episode in which no policy acted and that is not labeled a failure. A run of one task takes
    those that name it, and all of a source in which none does.

    Args:
        source: an episode store, a run folder or a LeRobotDataset.
        run: the run folder; a file in it says that all are there, so that the source is needed no more.
        store: of the run.
        specs: task -> the interface of a policy for it.
        most: how many are taken at most; 0: all.
        speed: largest factor by which they are made faster, see `vla_rl.acting.retiming`.
        gripper_dims: task -> the dimensions of its actions that are grippers, for that.
        bounds: task -> its lowest and highest action, for that.

    Returns:
        whether there was anything to do.

    Raises:
        UserError: if there are none, or they do not fit a task; it says what differs.
    """
    if (run / _DONE).exists():
        return False
    with tempfile.TemporaryDirectory(prefix=".demonstrations-", dir=run) as staging:
        found = as_store(source, Path(staging), DataMapping())
        shown = _demonstrations([found.read_header(name) for name in found.ids()], source)
        chosen = _of_tasks(shown, specs)
        taken = chosen[:most] if most else chosen
        for index, header in enumerate(track(taken, "demonstrations", "episode")):
            episode_id = f"demo-{index:05d}"
            if episode_id not in store:
                task = _task_of(header, specs)
                episode = _as_demonstration(found.read(header.episode_id), episode_id, task, specs[task])
                if speed > 1:
                    grippers, within = (gripper_dims or {}).get(task, ()), (bounds or {}).get(task)
                    episode = retimed(episode, speed, grippers, specs[task].delta_dims, within)
                store.add(episode)
    logger.info("%d demonstrations of %d in %s", len(taken), len(chosen), source)
    if warning := one_step_demonstrations([header.length for header in taken], source):
        logger.warning("%s", warning)
    if len(chosen) < len(shown):
        logger.info("%d demonstrations of other tasks are left out", len(shown) - len(chosen))
    elif chosen[0].env_id not in specs:
        logger.info("none of them names %s: all count as demonstrations of it", *specs)
    write_atomic(run / _DONE, json.dumps({"source": str(source), "demonstrations": len(taken)}, indent=1).encode())
    return True


def check_demonstrations(source: Path, specs: Mapping[str, PolicySpec]) -> list[int]:
    """Refuse a source that does not fit, before anything is copied.

    Returns:
        Steps of each demonstration.

    Raises:
        UserError: see `bring_demonstrations`.
    """
    if find_store(source) is None and not is_lerobot(source):
        raise UserError(
            f"task.demonstrations={source} is no episode store (store.json), no run folder and no LeRobotDataset v3 "
            "(meta/info.json)"
        )
    headers = _of_tasks(_demonstrations(survey(source, DataMapping()).headers, source), specs)
    return [header.length for header in headers]


def check_kept(store: EpisodeStore, names: Sequence[str], spec: PolicySpec) -> None:
    """Refuse demonstrations of another task or interface among those of some names that a store has already.

    Raises:
        UserError: With the first thing that differs.
    """
    cameras = dict.fromkeys(spec.cameras, spec.image_size)
    for found in (store.read_header(name) for name in names if name in store):
        for what, theirs, ours in (
            ("", found.env_id, spec.env_id),
            ("control_hz ", found.control_hz, spec.control_hz),
            ("cameras ", dict(found.cameras), cameras),
        ):
            if theirs != ours:
                raise UserError(
                    f"{store.path} holds {found.episode_id} of {what}{theirs}, not of {ours}; name another folder "
                    "(out=)"
                )


def one_step_demonstrations(lengths: Sequence[int], source: Path) -> str:
    """Write a sentence on demonstrations of one step, which hold no motion; empty if there are none."""
    count = sum(length == 1 for length in lengths)
    remedy = "label them failures (vla-rl label), or record them again"
    return f"{count} of {len(lengths)} demonstrations in {source} last one step: {remedy}" if count else ""


def _demonstrations(headers: Sequence[EpisodeHeader], source: Path) -> list[EpisodeHeader]:
    shown = [header for header in headers if header.policy_version < 0 and header.success is not False]
    if not shown:
        raise UserError(
            f"{source} holds {len(headers)} episodes and no demonstration among them. "
            "A demonstration has no policy steps and is not labeled a failure"
        )
    return shown


def _of_tasks(shown: list[EpisodeHeader], specs: Mapping[str, PolicySpec]) -> list[EpisodeHeader]:
    """Return the demonstrations for a run: of one task those that name it, else all; UserError if one does not fit."""
    named = [header for header in shown if header.env_id in specs]
    chosen = named if named and len(specs) == 1 else shown
    for header in chosen:
        check_fit(header, specs[_task_of(header, specs)], _REMEDY)
    return chosen


def _task_of(header: EpisodeHeader, specs: Mapping[str, PolicySpec]) -> str:
    """Return which task an episode demonstrates: the only one there is, or the one that it names."""
    if len(specs) == 1:
        return next(iter(specs))
    if header.env_id not in specs:
        raise UserError(
            f"demonstration {header.episode_id!r} is of {header.env_id!r}; the tasks of this run are {', '.join(specs)}"
        )
    return header.env_id


def check_fit(header: EpisodeHeader, spec: PolicySpec, remedy: str) -> None:
    """Refuse an episode that `fitted` cannot fit to a task. Larger pictures fit: they are resized, as those of the task
    are, which become a square if but one side is too long.

    Args:
        header: Of the episode.
        spec: Interface of a policy for the task.
        remedy: End of the error.

    Raises:
        UserError: With all that differs.
    """
    shown = [header.cameras.get(camera, (0, 0)) for camera in spec.cameras]
    sides = np.array(shown, dtype=np.int64).reshape(-1, 2) >= spec.image_size
    square = spec.image_size[0] == spec.image_size[1]
    fit = bool((sides.any(1) if square else sides.all(1)).all())
    wanted = dict.fromkeys(spec.cameras, spec.image_size)
    pairs = {
        "cameras": (wanted if fit else dict(header.cameras), wanted),
        "state numbers": (header.state_dim, spec.state_dim),
        "action numbers": (header.action_dim, spec.action_dim),
        "steps a second": (header.control_hz, spec.control_hz),
    }
    differs = [f"{name} {theirs}, the task has {ours}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    if differs:
        raise UserError(
            f"demonstration {header.episode_id!r} does not fit {spec.env_id}: {'; '.join(differs)}; {remedy}"
        )
    sizes = (spec.state_dim, spec.action_dim)
    expected, name = spec.dimensions_of(spec.state_dim), f"demonstration {header.episode_id!r}"
    match_both(expected, header.dimensions, sizes, f"the task {spec.env_id}", name)


def fitted(episode: Episode, spec: PolicySpec) -> Episode:
    """Return the episode with the cameras, picture size, order and units of a task, see `check_fit`."""
    episode, size = episode.matched(spec.dimensions_of(spec.state_dim), f"the task {spec.env_id}"), spec.image_size
    after = episode.final_images
    return replace(
        episode,
        images={camera: _of_size(episode.images[camera], size) for camera in spec.cameras},
        final_images={camera: resized(after[camera], size) for camera in spec.cameras if camera in after},
    )


def _as_demonstration(episode: Episode, episode_id: str, task: str, spec: PolicySpec) -> Episode:
    """Return the episode fitted to the task, as a demonstration of it: every step is a demonstrator's. The action that
    a person sent is the one that they wanted.
    """
    episode = fitted(episode, spec)
    by_person = (episode.source == Source.HUMAN)[:, None]
    return replace(
        episode,
        episode_id=episode_id,
        action_policy=np.where(by_person, episode.action_sent, episode.action_policy),
        source=np.where(by_person[:, 0], np.uint8(Source.DEMO), episode.source),
        origin=Origin.DEMO,
        env_id=task,
    )


def _of_size(images: Uint8Array, size: tuple[int, int]) -> Uint8Array:
    """uint8 [T, H, W, 3] at another size."""
    return images if images.shape[1:3] == size else np.stack([resized(image, size) for image in images])
