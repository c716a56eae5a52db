"""Pictures along the frames of real episodes: who acted, what each loss may see, what the critics say, the weights."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pictures.plotting import (
    BAD,
    DEMO,
    DPI,
    GOOD,
    HUMAN,
    INK,
    MUTED,
    NOTHING,
    POLICY,
    SHADES,
    WEIGHT,
    axis_labels,
    new_figure,
    plain,
    title,
)
from vla_rl.core.errors import StoreError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.credit import RULES, ActorKind, CreditConfig, SegmentKind, StepCredit, assign
from vla_rl.data.store import EpisodeHeader, EpisodeStore
from vla_rl.report.media import film_strip
from vla_rl.report.run_episodes import Trace, read_trace, segments

_FRAMES = 8
_COLUMN_TITLES = {
    "success": "A success without help",
    "failure": "A failure",
    "takeover": "A takeover",
    "demonstration": "A demonstration",
}
_TELLING = (
    "A success without a takeover",
    "A failure without a takeover",
    "A person repairs and hands back",
    "A person finishes",
)
_ACTED = {Source.POLICY: POLICY, Source.HUMAN: HUMAN, Source.DEMO: DEMO, Source.HOLD: MUTED}
_FAILED = "#b9c9de"
_SEGMENT_LEGEND = (
    ("the policy acts, is imitated", POLICY),
    ("a person acts, is imitated", HUMAN),
    ("label 1; counted", GOOD),
    ("label 0", BAD),
    ("imitated with weight 0", _FAILED),
    ("not seen by this loss", NOTHING),
)


def newest_traces(run_dir: Path, store: EpisodeStore | None) -> dict[str, Trace]:
    """Read the newest trace of every kind: an autonomous success, a failure, a takeover, a demonstration.

    Damaged traces and episodes are left out.
    """
    found: dict[str, Trace] = {}
    for file in sorted((run_dir / "traces").glob("*.npz"), reverse=True):
        with contextlib.suppress(StoreError):
            if store is not None and (trace := read_trace(file.parent, store.read(file.stem), [])) is not None:
                found.setdefault(trace.kind, trace)
    return {kind: found[kind] for kind in _COLUMN_TITLES if kind in found}


def draw_strip(figure: Any, place: tuple[float, float, float, float], episode: Episode, frames: int = _FRAMES) -> None:
    """Frames of the first camera, if there is one, fill a place of the figure (left, bottom, width, height)."""
    if not episode.images:
        return
    images = next(iter(episode.images.values()))
    axes = figure.add_axes(place)
    scale = place[2] * figure.get_figwidth() * DPI / frames / images.shape[2]
    strip = film_strip(images, frames, scale)
    axes.imshow(strip, aspect="auto", extent=(0, frames, 0, 1), interpolation="antialiased")
    axes.vlines(range(1, frames), 0, 1, color="white", linewidth=2)
    axes.set_axis_off()


def strip_height(figure: Any, width: float, episode: Episode, frames: int = _FRAMES) -> float:
    """The share of the figure's height that a strip of undistorted frames needs over a share of its width; 0 without
    a camera.
    """
    if not episode.images:
        return 0.0
    images = next(iter(episode.images.values()))
    shape: float = images.shape[1] / images.shape[2]
    return float(width * figure.get_figwidth() / figure.get_figheight() / frames * shape)


def draw_segments(store: EpisodeStore) -> Any | None:
    """Four episodes with who acted and what each loss may see; None if the run has no practice episodes yet."""
    chosen = _telling_episodes(store)
    if not chosen:
        return None
    rows = (len(chosen) + 1) // 2
    figure = new_figure(10.6, 2.6 * rows + 0.45)
    height = 0.925 / rows
    for index, (name, episode) in enumerate(chosen):
        left, bottom = 0.155 + 0.5 * (index % 2), 0.99 - height * (index // 2 + 1)
        _draw_masks(figure, (left, bottom, 0.335, height), name, episode)
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=words) for words, color in _SEGMENT_LEGEND]
    figure.legend(handles=handles, loc="lower center", ncol=6, fontsize=7.5, frameon=False, labelcolor=INK)
    return figure


def draw_values(traces: Sequence[Trace]) -> Any:
    """Film strip, viability and efficiency along episodes, side by side."""

    def draw_efficiency(axes: Any, trace: Trace, at: NDArray[np.float64]) -> None:
        axes.plot(at, trace.columns["efficiency"], color=POLICY, linewidth=1.5, label="V$_e$")
        if trace.episode.success:
            truth = np.arange(len(at)) - len(at) + 1
            axes.plot(at, truth, color=MUTED, linewidth=1, linestyle=":", label="as it turned out")
        _legend_above(axes)

    def draw_viability(axes: Any, trace: Trace, at: NDArray[np.float64]) -> None:
        axes.plot(at, trace.columns["viability"], color=POLICY, linewidth=1.5)
        axes.set_ylim(0, 1.02)

    return _draw_columns(traces, {"p$_v$, chance of success": draw_viability, "V$_e$, steps": draw_efficiency})


def draw_weights(traces: Sequence[Trace]) -> Any:
    """Film strip, advantages, gate and weight along episodes, side by side."""

    def draw_advantage(column: str) -> Callable[[Any, Trace, NDArray[np.float64]], None]:
        def draw(axes: Any, trace: Trace, at: NDArray[np.float64]) -> None:
            axes.axhline(0, color=MUTED, linewidth=0.8, linestyle=":")
            axes.plot(at, trace.columns[column], color=POLICY, linewidth=1.4)

        return draw

    def draw_weight(axes: Any, trace: Trace, at: NDArray[np.float64]) -> None:
        axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
        axes.plot(at, trace.columns["advantage_gate"], color=POLICY, linewidth=1.4, label="gate")
        axes.plot(at, trace.columns["weight"], color=WEIGHT, linewidth=1.4, linestyle="--", label="weight")
        axes.set_ylim(-0.05, 2.05)
        _legend_above(axes)

    panels = {
        "A$_v$, logits": draw_advantage("viability_advantage"),
        "A$_e$, steps": draw_advantage("efficiency_advantage"),
        "gate, weight": draw_weight,
    }
    return _draw_columns(traces, panels)


def _draw_columns(
    traces: Sequence[Trace], panels: Mapping[str, Callable[[Any, Trace, NDArray[np.float64]], None]]
) -> Any:
    """One column per trace: its film strip, and below it the panels over one time axis. Panels of a row share y."""
    figure = new_figure(3.7 * len(traces) + 0.5, 1.0 + 1.45 * len(panels))
    width = 0.94 / len(traces) - 0.025
    rows: dict[str, list[Any]] = {name: [] for name in panels}
    for column, trace in enumerate(traces):
        left = 0.055 + column * 0.94 / len(traces)
        top, frames = 0.93, 6
        strip = strip_height(figure, width, trace.episode, frames)
        draw_strip(figure, (left, top - strip, width, strip), trace.episode, frames)
        words = f"{_COLUMN_TITLES[trace.kind]} ({trace.episode.episode_id})"
        figure.text(left, top + 0.012, words, fontsize=8.5, fontweight="bold", color=INK, va="bottom")
        height = (top - strip - 0.1) / len(panels)
        for row, (name, draw) in enumerate(panels.items()):
            axes = figure.add_axes((left, 0.1 + height * (len(panels) - 1 - row), width, height - 0.075))
            for source, start, end in segments(trace.episode.source):
                axes.axvspan(start, end, color=SHADES[Source(source)], linewidth=0)
            draw(axes, trace, np.arange(len(trace.episode), dtype=np.float64) + 0.5)
            axes.set_xlim(0, len(trace.episode))
            axes.locator_params(axis="y", nbins=4)
            title(axes, name)
            plain(axes)
            rows[name].append(axes)
            if row < len(panels) - 1:
                axes.set_xticklabels([])
            else:
                axis_labels(axes, "step" + " (orange: a person acts)" * (trace.kind == "takeover"))
    for axes_of_row in rows.values():
        limits = np.array([axes.get_ylim() for axes in axes_of_row])
        for axes in axes_of_row:
            axes.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    return figure


def _legend_above(axes: Any) -> None:
    """At the right above the axes, where the title leaves room."""
    place = {"loc": "lower right", "bbox_to_anchor": (1.01, 0.94), "ncol": 2, "borderpad": 0.2}
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, handlelength=1.6, columnspacing=1.2, **place)


def _telling_episodes(store: EpisodeStore) -> list[tuple[str, Episode]]:
    """The newest of each kind, in the order of `_TELLING`."""
    found: dict[str, Episode] = {}
    for episode_id in reversed(store.ids()):
        try:
            kind = _telling_kind(store, store.read_header(episode_id))
            if kind is not None and kind not in found:
                found[kind] = store.read(episode_id)
        except StoreError:
            continue  # the report names damaged episodes
        if len(found) == len(_TELLING):
            break
    return [(kind, found[kind]) for kind in _TELLING if kind in found]


def _telling_kind(store: EpisodeStore, header: EpisodeHeader) -> str | None:
    if header.origin == Origin.DEMO or header.success is None:
        return None
    if header.human_steps == 0:
        return _TELLING[0] if header.success else _TELLING[1]
    kinds = set(_credit(store.read(header.episode_id), RULES[0]).segment)
    if not header.success or SegmentKind.INTERVENTION not in kinds:
        return None
    return _TELLING[2] if SegmentKind.SUFFIX in kinds else _TELLING[3]


def _credit(episode: Episode, rule: str) -> StepCredit:
    return assign(episode.source, episode.success, episode.origin, CreditConfig(rule=rule))


def _draw_masks(figure: Any, place: tuple[float, float, float, float], name: str, episode: Episode) -> None:
    """A film strip and a bar for each mask, in a place of the figure (left, bottom, width, height)."""
    left, bottom, width, height = place
    strip = strip_height(figure, width, episode)
    top = bottom + height - 0.035
    draw_strip(figure, (left, top - strip, width, strip), episode)
    figure.text(
        left, top + 0.006, f"{name} ({episode.episode_id})", fontsize=8.5, fontweight="bold", color=INK, va="bottom"
    )
    axes = figure.add_axes((left, bottom + 0.065, width, top - strip - bottom - 0.07))
    bars = _bars(episode)
    for row, (label, colors) in enumerate(bars.items()):
        y = len(bars) - 1 - row
        for color, start, stop in _runs(colors):
            axes.barh(y, stop - start, left=start, height=0.72, color=color, linewidth=0)
        axes.text(-0.015 * len(episode), y, label, fontsize=7.5, color=INK, ha="right", va="center")
    axes.set_xlim(0, len(episode))
    axes.set_ylim(-0.5, len(bars) - 0.5)
    axes.set_yticks([])
    axis_labels(axes, "step")
    plain(axes)


def _bars(episode: Episode) -> dict[str, list[str]]:
    """What a bar shows of each step: its color, [T]."""
    credits = {rule: _credit(episode, rule) for rule in RULES}
    paper = credits["paper"]
    actor = {ActorKind.EXCLUDED: NOTHING, ActorKind.INTERVENTION: HUMAN, ActorKind.DEMONSTRATION: DEMO}
    actor[ActorKind.ROLLOUT] = POLICY if episode.success else _FAILED

    def labels(credit: StepCredit) -> list[str]:
        judged = zip(credit.viability_mask, credit.viability_label, strict=True)
        return [(GOOD if label else BAD) if used else NOTHING for used, label in judged]

    return {
        "who acts": [_ACTED[Source(source)] for source in episode.source],
        **{f"viability: {rule}": labels(credit) for rule, credit in credits.items()},
        "efficiency": [GOOD if used else NOTHING for used in paper.efficiency_mask],
        "actor": [actor[ActorKind(kind)] for kind in paper.actor_kind],
    }


def _runs(colors: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(color, first step, step after the last) of every run of one color."""
    start = 0
    for step in range(1, len(colors) + 1):
        if step == len(colors) or colors[step] != colors[start]:
            yield colors[start], start, step
            start = step
