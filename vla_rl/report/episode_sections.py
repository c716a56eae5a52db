"""The sections of the report that show films: the task, the same seeds side by side, predictions of the model."""

import html
from collections.abc import Sequence

import numpy as np

from vla_rl.core.errors import StoreError
from vla_rl.data.store import EpisodeStore
from vla_rl.report.markup import lead, missing, problems, section
from vla_rl.report.media import CAMERA_PX, Redraw, camera_figures, player, video_tag
from vla_rl.report.run_episodes import Pair, open_store, read_pairs
from vla_rl.report.run_files import Run
from vla_rl.report.wording import count

_MAX_PAIRS = 5
_PAIRS_BUDGET_BYTES = 3_000_000
_FILM_BYTES = 1_000_000
_FILMS = ("branches.mp4", "alone/branches.mp4")  # of this run, or of its paired run without a person


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
        "Short rollouts of the model from steps of the newest episodes, one picture per chunk, at a quarter of the "
        "speed. The model has not seen these episodes. It predicts the policy's features; a decoder draws pictures "
        "from them for this page only. In a red frame the members of the model disagree more than on 95 % of the real "
        "chunks."
    )
    shown = video_tag(video, "reality above, predictions below")
    caption = (
        "<figcaption>Rows: real episodes; predictions with their actions; and, if the policy has a residual, "
        "predictions of its plan without and with the residual. If every round was filmed, the first one is on the "
        "left.</figcaption>"
    )
    return section(title, lead(words) + f'<figure class="player">{shown}{caption}</figure>')


def _shown(pairs: Sequence[Pair]) -> list[Pair]:
    """Choose mostly gains, and one pair each of what got worse and what is still unsolved."""
    worse = [pair for pair in pairs if pair.outcome == (True, False)][:1]
    unsolved = [pair for pair in pairs if pair.outcome == (False, False)][:1]
    others = [pair for pair in pairs if pair.outcome[1]]
    return [*others[: _MAX_PAIRS - len(worse) - len(unsolved)], *worse, *unsolved]
