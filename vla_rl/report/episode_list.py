"""The list of all episodes of the report, with the data of its player: state, actions, values and film."""

import base64
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import StoreError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeHeader, EpisodeStore
from vla_rl.report import media
from vla_rl.report.markup import embedded, lead, missing, problems, section
from vla_rl.report.run_episodes import Trace, open_store, read_trace, segments
from vla_rl.report.run_files import Run
from vla_rl.report.wording import outcome

MAX_LISTED = 4000
MAX_PLAYED = 160
_MAX_STEPS = 400
_FILM_FRAMES, _FILM_PX = 32, 96
# The whole page stays below 9 MB.
CURVES_BYTES, FILMS_BYTES = 1_500_000, 3_000_000


def episodes(runs: Mapping[str, Run]) -> str:
    """Render the list and the player of the episodes of some runs: name of a run -> the run."""
    troubles: list[str] = []
    found = list(_headers(runs, troubles))
    if not found:
        return section("Episodes", missing("No episode has been recorded yet.") + problems(troubles), "episodes")
    listed = found[-MAX_LISTED:]
    rows = {id(header): _row(name, kind, header) for name, kind, _, header in listed}
    size = {"curves": 0, "film": 0}
    for name, _, store, header in itertools.islice(_in_turn(listed), MAX_PLAYED):
        try:
            episode = store.read(header.episode_id)
        except StoreError as error:
            troubles.append(f"Episode {header.episode_id} cannot be played: {error}.")
            continue
        detail = _played(episode, read_trace(runs[name].path / "traces", episode, troubles))
        for part, limit in (("curves", CURVES_BYTES), ("film", FILMS_BYTES)):
            length = len(embedded(detail[part]))
            if size[part] + length > limit:
                detail[part] = None
            else:
                size[part] += length
        if detail["curves"]:
            rows[id(header)] |= detail
    left_out = f" Only the newest {MAX_LISTED:,} of {len(found):,} are listed." if len(found) > len(listed) else ""
    words = (
        "Click an episode to play it: slider, curves and film move together. Drag over a curve to zoom. Click twice to "
        "see all of it. The page holds curves and films of some episodes of each kind, newest first. The others are "
        f"in the run folder.{left_out}"
    )
    data = embedded({"runs": list(runs), "rows": list(reversed(rows.values()))})
    return section("Episodes", lead(words) + f'<div class="episodes">{data}</div>' + problems(troubles), "episodes")


type _Found = tuple[str, str, EpisodeStore, EpisodeHeader]


def _headers(runs: Mapping[str, Run], troubles: list[str]) -> Iterator[_Found]:
    """Yield (run, kind, store, header) of each episode, oldest first."""
    for name, run in runs.items():
        for folder in ("episodes", "evaluation"):
            store = open_store(run.path / folder, troubles)
            if store is None:
                continue
            for episode_id in store.ids():
                try:
                    header = store.read_header(episode_id)
                except StoreError as error:
                    troubles.append(f"Episode {episode_id} was left out: {error}.")
                    continue
                practice = "demonstration" if header.origin == Origin.DEMO else "practice"
                yield name, "evaluation" if folder == "evaluation" else practice, store, header


def _in_turn(found: list[_Found]) -> Iterator[_Found]:
    """Yield the newest of each kind and outcome, then the next of each."""
    groups: dict[tuple[object, ...], list[_Found]] = {}
    for each in reversed(found):
        name, kind, _, header = each
        groups.setdefault((name, kind, header.success, header.human_steps > 0), []).append(each)
    for turn in itertools.zip_longest(*groups.values()):
        yield from (each for each in turn if each)


def _row(run: str, kind: str, header: EpisodeHeader) -> dict[str, Any]:
    return {
        "run": run,
        "id": header.episode_id,
        "kind": kind,
        "version": header.policy_version,
        "outcome": outcome(header.success),
        "steps": header.length,
        "person": header.human_steps,
        "seed": header.seed,
        "task": header.task,
    }


def _played(episode: Episode, trace: Trace | None) -> dict[str, Any]:
    steps, _ = media.thinned(len(episode), _MAX_STEPS)
    size = episode.action_sent.shape[1]
    names, own = _names(episode.state_dimensions, episode.state.shape[1]), _names(episode.action_dimensions, size)
    panels = [_panel("state", episode.state[steps].T, names), _panel("action sent", episode.action_sent[steps].T, own)]
    if not np.array_equal(episode.action_sent, episode.action_policy, equal_nan=True):
        both = np.concatenate([episode.action_sent[steps].T, episode.action_policy[steps].T])
        planned = [f"{name} of the policy" for name in own]
        panels[1] = _panel("action sent (solid) and of the policy (dashed)", both, [*own, *planned], dashed_from=size)
    for panel, lines in trace.panels if trace is not None else ():
        values = np.stack(list(lines.values()))[:, steps]
        panels.append(_panel(panel.title, values, [name.replace("_", " ") for name in lines], panel.low, panel.high, 1))
    source = [[Source(value).name.lower(), start, end] for value, start, end in segments(episode.source)]
    falls = trace.fall if trace is not None and trace.chance is not None else None
    curves = {"at": steps.tolist(), "hz": episode.control_hz, "source": source, "falls": falls, "panels": panels}
    return {"curves": curves, "film": _film(episode)}


def _names(declared: Dimensions, size: int) -> list[str]:
    return list(declared.names) or [str(number) for number in range(size)]


def _panel(
    title: str,
    values: NDArray[Any],
    names: list[str],
    low: float | None = None,
    high: float | None = None,
    dashed_from: int | None = None,
) -> dict[str, Any]:
    """Return lines [L, T] in 16 bits: 0 to 65534 from the lowest to the highest value, 65535 for none."""
    known = np.isfinite(values)
    ends = [float(end(values[known])) if known.any() else 0.0 for end in (np.min, np.max)]
    with np.errstate(invalid="ignore"):
        scaled = np.round((values.astype(np.float64) - ends[0]) / ((ends[1] - ends[0]) or 1.0) * 65534)
    packed = np.where(known, scaled, 65535).astype("<u2").tobytes()
    plain = {"title": title, "names": names, "from": ends[0], "to": ends[1], "low": low, "high": high}
    return plain | {"dashed_from": dashed_from, "data": base64.b64encode(packed).decode()}


def _film(episode: Episode) -> dict[str, Any] | None:
    """Return some frames of all cameras, one below the other in one image; None without a camera."""
    if not episode.images:
        return None
    shown, _ = media.thinned(len(episode), min(_FILM_FRAMES, media.MAX_FRAMES))
    frames = media.tile_cameras({name: images[shown] for name, images in episode.images.items()}, _FILM_PX)
    with contextlib.suppress(ValueError, OSError):  # a picture that is too large for its format
        sheet = base64.b64encode(media.encode_webp(np.concatenate(frames), quality=60)).decode()
        plain = {"at": shown.tolist(), "width": frames.shape[2], "height": frames.shape[1]}
        return plain | {"cameras": list(episode.images), "image": f"data:image/webp;base64,{sheet}"}
    return None
