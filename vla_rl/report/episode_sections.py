"""The sections of the report that show episodes: the task, the same seeds side by side, traces, failures."""

import html
from collections.abc import Sequence

import numpy as np

from vla_rl.core.errors import StoreError
from vla_rl.core.types import Source
from vla_rl.data.store import EpisodeStore
from vla_rl.report import charts
from vla_rl.report.markup import lead, legend, missing, problems, section
from vla_rl.report.media import CAMERA_PX, Redraw, camera_figures, player, video_tag
from vla_rl.report.run_episodes import Pair, Trace, open_store, read_pairs, read_traces
from vla_rl.report.run_files import Run
from vla_rl.report.wording import count, outcome

_MAX_PAIRS = 5
_MAX_FAILURES, _PLAYED_FAILURES = 8, 2
# The whole page stays below 8 MB.
_PAIRS_BUDGET_BYTES = 5_000_000
_FILM_BYTES = 1_000_000
_FILMS = ("branches.mp4", "alone/branches.mp4")  # of this run, or of its paired run without a person
_TRACE_TITLES = {
    "success": "A success without help",
    "failure": "A failure",
    "takeover": "A takeover",
    "demonstration": "A demonstration",
}


def task(run: Run, redraw: Redraw | None) -> str:
    """Render the task: its sentence, and its cameras at the start."""
    for name in ("episodes", "evaluation"):
        store = open_store(run.path / name, [])
        if store is None:
            continue
        for episode_id in store.ids():
            try:
                episode = store.read(episode_id)
            except StoreError:
                continue
            drawn = redraw(episode, np.zeros(1, np.intp), CAMERA_PX) if redraw is not None else None
            first = {camera: images[0] for camera, images in (drawn or episode.images).items()}
            facts = (
                f"{episode.control_hz:g} actions a second, of {count(episode.action_sent.shape[1], 'number')} each. "
                "Beside these cameras the policy sees its own posture; how an attempt ended is all that it learns from."
            )
            sentence = f'<p class="sentence">“{html.escape(episode.task)}”</p>'
            return section("The task", sentence + camera_figures(first) + lead(facts))
    return ""


def clips(run: Run, redraw: Redraw | None) -> str:
    """Render the first and the last policy side by side on the same seeds."""
    title = "The first and the last policy on the same seeds"
    troubles: list[str] = []
    store = open_store(run.path / "evaluation", troubles)
    pairs = read_pairs(store, troubles) if store is not None else []
    if store is None or not pairs:
        words = "There are no evaluation episodes of two policies on the same seeds yet."
        return section(title, missing(words) + problems(troubles))
    words = f"{outcomes(pairs, 'the first', 'the last policy')} Gains are shown first. Above the first, below the last."
    return section(title, lead(words) + paired_players(pairs, (store, store), redraw, troubles) + problems(troubles))


def outcomes(pairs: Sequence[Pair], first: str, last: str) -> str:
    """Return in a sentence on how many seeds each of two policies succeeded."""
    found = [pair.outcome for pair in pairs]
    return (
        f"Of {count(len(pairs), 'seed')}: {found.count((False, True))} only {last} solves, "
        f"{found.count((True, False))} only {first}, {found.count((True, True))} both, "
        f"{found.count((False, False))} neither."
    )


def paired_players(
    pairs: Sequence[Pair], stores: tuple[EpisodeStore, EpisodeStore], redraw: Redraw | None, troubles: list[str]
) -> str:
    """Render some pairs as videos that run in parallel."""
    cards, used_bytes = [], 0
    for pair in _shown(pairs):
        headers = pair.first, pair.last
        try:
            both = [store.read(header.episode_id) for store, header in zip(stores, headers, strict=True)]
        except StoreError as error:
            troubles.append(f"An evaluation episode was left out: {error}.")
            continue
        lasts_s = 1 + max(len(episode) / episode.control_hz for episode in both)
        videos = "".join(player(each, redraw, f", version {each.policy_version}", lasts_s) for each in both)
        used_bytes += len(videos)
        if used_bytes > _PAIRS_BUDGET_BYTES:
            break
        seed = f"seed {pair.first.seed}" if pair.first.seed is not None else pair.first.episode_id
        cards.append(f'<div><div class="seed">{html.escape(seed)}</div><div class="pair">{videos}</div></div>')
    return f'<div class="clips">{"".join(cards)}</div>'


def traces(run: Run, redraw: Redraw | None) -> str:
    """Render values and weights along a success, a failure and a takeover."""
    title = "What the critics estimate along an episode"
    troubles: list[str] = []
    store = open_store(run.path / "episodes", troubles)
    found = read_traces(run.path / "traces", store, troubles) if store is not None else []
    if not found:
        algorithm = run.summary.get("algorithm")
        words = "There are no traces of values and weights yet"
        words += f", or the algorithm ({algorithm}) has no critics." if algorithm else "."
        return section(title, missing(words) + problems(troubles))
    words = (
        "Estimates of the critics at each step, and the weights of the actor's loss, after the round that collected "
        "the episode and trained on it. The line moves with the video; a click into the curves moves both."
    )
    figures = [f"<h3>{_TRACE_TITLES[trace.kind]}</h3>{_traced(trace, redraw, True)}" for trace in found]
    return section(title, lead(words) + "".join(figures) + problems(troubles))


def predicted(run: Run) -> str:
    """Render the film of real episodes above the dynamics model's predictions of them."""
    film = next((file for file in (run.path / name for name in _FILMS) if file.is_file()), None)
    if film is None:
        return ""
    title = "Predictions of the dynamics model"
    try:
        video = film.read_bytes()
    except OSError as error:
        return section(title, problems([f"The film could not be read: {error.strerror}."]))
    if len(video) > _FILM_BYTES:
        return section(title, problems([f"The film of {len(video):,} bytes is left out; at most {_FILM_BYTES:,} fit."]))
    words = (
        "Short rollouts of the model from steps of the newest episodes with their actions, one picture per chunk, at a "
        "quarter of the speed. The model has not seen these episodes. It predicts the policy's features; a decoder "
        "draws pictures from them for this page only."
    )
    shown = video_tag(video, "reality above, imagination below")
    caption = "<figcaption>Above: real episodes. Below: predictions.</figcaption>"
    return section(title, lead(words) + f'<figure class="player">{shown}{caption}</figure>')


def failures(found: Sequence[Trace], redraw: Redraw | None) -> str:
    """Render the failures of the last round, folded, by where the chance of success falls."""
    title = "Failures, by where they begin"
    if not found:
        return section(title, missing("There are no traces of failures with a viability critic."), "failures")
    words = (
        "Failures without a takeover of the newest round that has some, by where the critic's chance of success falls "
        "below half of its maximum. Failures that fall together often have the same cause."
    )
    folded = []
    for index, trace in enumerate(found[:_MAX_FAILURES]):
        name, length = trace.episode.episode_id, len(trace.episode)
        falls = f"falls at step {trace.fall}" if trace.fall < length else "does not fall"
        figure = _traced(trace, redraw, index < _PLAYED_FAILURES)
        folded.append(f"<details><summary>{name}: the chance of success {falls}</summary>{figure}</details>")
    more = len(found) - len(folded)
    rest = missing(f"{count(more, 'failure')} more.") if more > 0 else ""
    return section(title, lead(words) + "".join(folded) + rest, "failures")


def _shown(pairs: Sequence[Pair]) -> list[Pair]:
    """Choose mostly gains, and one pair each of what got worse and what is still unsolved."""
    worse = [pair for pair in pairs if pair.outcome == (True, False)][:1]
    unsolved = [pair for pair in pairs if pair.outcome == (False, False)][:1]
    others = [pair for pair in pairs if pair.outcome[1]]
    return [*others[: _MAX_PAIRS - len(worse) - len(unsolved)], *worse, *unsolved]


def _traced(trace: Trace, redraw: Redraw | None, plays: bool) -> str:
    """Render the curves of a trace, below its video if it plays."""
    scrolls = f'class="scroll" tabindex="0" role="group" aria-label="curves along {trace.episode.episode_id}"'
    video = player(trace.episode, redraw) if plays else ""
    chart = f"<div {scrolls}>{charts.trace_chart(trace)}</div>"
    return f'<div class="moving">{video}<figure>{chart}<figcaption>{_trace_caption(trace)}</figcaption></figure></div>'


def _trace_caption(trace: Trace) -> str:
    present = [Source(value).name.lower() for value in sorted(set(trace.episode.source.tolist()))]
    shades = {"policy": "policy tint", "human": "human tint", "demo": "demo tint", "hold": "hold tint"}
    words = f"{trace.episode.episode_id}: {count(len(trace.episode), 'step')}, {outcome(trace.episode.success)}."
    return f"{html.escape(words)} Who acted: {legend({shades[name]: name for name in present})}"
