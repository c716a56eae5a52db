"""Say how logged episodes went: shows each one that has no outcome, and asks.

An answer is on the disk before the next question. The episode itself stays unchanged: the label is an edit, a small
file beside it (STORE/edits/ID.json). Every reader of the store sees the label instead of the recorded outcome. `vla-rl
edit` undoes it.

Example: vla-rl label runs/finetune/episodes
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from vla_rl.cli.edit import OUTCOMES
from vla_rl.core.errors import StoreError
from vla_rl.core.files import write_atomic
from vla_rl.core.types import Episode, Source
from vla_rl.data.store import EpisodeStore

ANSWERS = {"s": True, "f": False}
_SHEET_FRAMES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="the folder of the episode store")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="these episodes, labeled or not")
    parser.add_argument("--as", dest="answer", choices=OUTCOMES, help="do not ask; needs --ids")
    parser.add_argument("--sheets", type=Path, help="folder for the contact sheets (default: a temporary one)")


def run(arguments: argparse.Namespace) -> int:
    store = EpisodeStore(arguments.store, create=False)
    if arguments.answer:
        if not arguments.ids:
            raise StoreError("--as labels without asking, so it needs --ids: name the episodes")
        for episode_id in arguments.ids:
            store.label(episode_id, OUTCOMES[arguments.answer])
        return 0
    ids = arguments.ids or [name for name in store.ids() if store.read_header(name).success is None]
    if not ids:
        print("every episode has an outcome")
        return 0
    sheets = arguments.sheets or Path(tempfile.mkdtemp(prefix="vla-rl-label-"))
    sheets.mkdir(parents=True, exist_ok=True)
    labeled = 0
    for number, episode_id in enumerate(ids, start=1):
        episode = store.read(episode_id)
        print(_describe(episode, f"[{number}/{len(ids)}]", sheets))
        answer = _ask()
        if answer == "q":
            break
        if answer in ANSWERS:
            store.label(episode_id, ANSWERS[answer])
            labeled += 1
    print(f"{labeled} of {len(ids)} labeled in {store.edits.path}")
    return 0


def _ask() -> str:
    """s, f, q, or nothing for a skip; the end of the input is q."""
    while True:
        try:
            answer = input("success, failure, skip or quit? [s/f/enter/q] ").strip().lower()[:1]
        except EOFError:
            return "q"
        if answer in ("", "q", *ANSWERS):
            return answer


def _describe(episode: Episode, position: str, sheets: Path) -> str:
    human = int(np.count_nonzero(episode.source == Source.HUMAN))
    lines = [
        f"{position} {episode.episode_id}: {episode.task!r}, {len(episode)} steps "
        f"({len(episode) / episode.control_hz:.1f} s), {human} by a person"
    ]
    if episode.images:
        lines.append(f"contact sheet: {_write_sheet(episode, sheets)}")
    return "\n".join(lines)


def _write_sheet(episode: Episode, folder: Path) -> Path:
    """Frames from the first to the last side by side, cameras one below the other, as a WebP file."""
    from vla_rl.report.media import encode_webp

    steps = np.linspace(0, len(episode) - 1, _SHEET_FRAMES).round().astype(int)
    pictures = list(episode.images.values())
    alike = [picture for picture in pictures if picture.shape[2] == pictures[0].shape[2]]
    rows = [np.concatenate(list(image[steps]), axis=1) for image in alike]
    file = folder / f"{episode.episode_id}.webp"
    write_atomic(file, encode_webp(np.concatenate(rows, axis=0)))
    return file
