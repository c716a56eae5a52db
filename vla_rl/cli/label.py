"""Say how logged episodes went: shows each one that has no outcome, and asks.

An answer is on the disk before the next question. The episode itself stays unchanged: the label is an edit, a small
file beside it (STORE/edits/ID.json). Every reader of the store sees the label instead of the recorded outcome. `vla-rl
edit` undoes it.

With --policy, a person answers for some episodes and a success detector labels the others. It reads the features of
that policy. Where it is unsure, and for a small random share, it asks. A label carries its author (`vla-rl edit` shows
the log). The detector never changes the label of a person. A LeRobotDataset or a bag goes into the store --out first.

Example: vla-rl label runs/finetune/episodes
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.edit import OUTCOMES
from vla_rl.core.config import parse_overrides
from vla_rl.core.errors import StoreError
from vla_rl.core.files import write_atomic
from vla_rl.core.registry import find
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeStore

ANSWERS = {"s": True, "f": False}
_SHEET_FRAMES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="the folder of the episode store; with --out any source of episodes")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="these episodes, labeled or not")
    parser.add_argument("--as", dest="answer", choices=OUTCOMES, help="do not ask; needs --ids")
    parser.add_argument("--policy", type=Path, help="let a success detector on the features of this policy help")
    parser.add_argument("--answers", type=int, default=40, help="first answers, before the detector (default: 40)")
    parser.add_argument("--audit", type=float, default=0.05, help="share of sure judgments that is asked, too")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the detector in this folder")
    parser.add_argument("--out", type=Path, metavar="STORE", help="store that a dataset or a bag is taken into")
    parser.add_argument("--detector", help="let this detector label alone: one of vla_rl.outcomes, or module:Name")
    parser.add_argument("--with", dest="options", nargs="*", default=[], metavar="KEY=VALUE", help="its options")
    parser.add_argument("--sheets", type=Path, help="folder for the contact sheets (default: a temporary one)")


def run(arguments: argparse.Namespace) -> int:
    store = _store(arguments.store, arguments.out)
    if arguments.answer:
        if not arguments.ids:
            raise StoreError("--as labels without asking, so it needs --ids: name the episodes")
        for episode_id in arguments.ids:
            store.label(episode_id, OUTCOMES[arguments.answer])
        return 0
    if arguments.detector:
        from vla_rl.outcomes.labeling import judge_all

        judgments = judge_all(store, find("outcomes", arguments.detector)(**parse_overrides(arguments.options)))
        sure = [judgment.success for judgment in judgments.values()]
        print(
            f"{sure.count(True)} success, {sure.count(False)} failure, {sure.count(None)} unsure in {store.edits.path}"
        )
        return 0
    sheets = arguments.sheets or Path(tempfile.mkdtemp(prefix="vla-rl-label-"))
    sheets.mkdir(parents=True, exist_ok=True)
    if arguments.policy:
        return _with_detector(store, arguments, sheets)
    ids = arguments.ids or [name for name in store.ids() if store.read_header(name).success is None]
    if not ids:
        print("every episode has an outcome")
        return 0
    print(f"{_ask_all(store, ids, sheets)} of {len(ids)} labeled in {store.edits.path}")
    return 0


def _store(source: Path, out: Path | None) -> EpisodeStore:
    if out is None:
        return EpisodeStore(source, create=False)
    from vla_rl.data.sources import DataMapping, import_source

    store = EpisodeStore(out)
    import_source(source, store, DataMapping())
    return store


def _with_detector(store: EpisodeStore, arguments: argparse.Namespace, sheets: Path) -> int:
    """Ask for the first answers, let the detector judge, ask where it is unsure, and let it judge again."""
    from vla_rl.outcomes.labeling import LabelConfig, Labeling

    labeling = Labeling(store, find_policy(arguments.policy).path, LabelConfig(arguments.answers, arguments.audit))
    names = arguments.ids or [name for name in store.ids() if store.read_header(name).origin is not Origin.DEMO]
    labeled = _ask_all(store, labeling.first_questions(names), sheets)
    found = labeling.judge_rest(names)
    if found.detector is None:
        print(f"{labeled} labeled; a detector needs two successes and two failures: label more")
        return 1
    print(f"{len(found.judged)} labeled by {found.detector.name}, {len(found.asked)} questions")
    if found.asked:
        labeled += _ask_all(store, found.asked, sheets)
        found = labeling.judge_rest([])
    if arguments.save and found.detector is not None:
        found.detector.save(arguments.save)
    audit = labeling.audit()
    print(
        f"{labeled} of {len(names)} labeled by a person, {len(labeling.open_questions())} still unknown, in "
        f"{store.edits.path}; audited {audit['audited']:.0f}: {audit['false_success']:.0%} of the successes and "
        f"{audit['false_failure']:.0%} of the failures were wrong"
    )
    return 0


def _ask_all(store: EpisodeStore, ids: Sequence[str], sheets: Path) -> int:
    """Ask for each of the episodes; returns how many were labeled."""
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
    return labeled


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

    pictures = list(episode.images.values())
    if episode.final_state is not None:
        pictures = [np.append(image, episode.final_images[name][None], 0) for name, image in episode.images.items()]
    steps = np.linspace(0, len(pictures[0]) - 1, _SHEET_FRAMES).round().astype(int)
    alike = [picture for picture in pictures if picture.shape[2] == pictures[0].shape[2]]
    rows = [np.concatenate(list(image[steps]), axis=1) for image in alike]
    file = folder / f"{episode.episode_id}.webp"
    write_atomic(file, encode_webp(np.concatenate(rows, axis=0)))
    return file
