"""Say how logged episodes went: shows the end of each one that has no outcome, and asks.

An answer is on the disk before the next question. The episode itself stays unchanged: the label is an edit, a small
file beside it (STORE/edits/ID.json). Every reader of the store sees the label instead of the recorded outcome. `vla-rl
edit` undoes it.

--browser asks in a browser page, one question after the other, until Ctrl-C. A run that practices meanwhile uses the
answers from its next round on.

With --policy, a person answers for some episodes and a success detector labels the others. It reads the features of
that policy. Where it is unsure, and for a small random share, it asks. A label carries its author (`vla-rl edit` shows
the log). The detector never changes the label of a person.

A LeRobotDataset or a bag goes into the store --out first. Outcomes that it has recorded are known answers. Without a
column of interventions, its episodes count as a policy's, and not as demonstrations, which succeed. The settings
mapping.lerobot.demonstrations=true and mapping.bag.demonstrations=true change that.

Example: vla-rl label runs/finetune/episodes
Example: vla-rl label datasets/so101_peg --policy runs/demo --out stores/peg mapping.lerobot.image_size=[96,96]
"""

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.edit import OUTCOMES
from vla_rl.cli.parser import add_settings
from vla_rl.core.config import load_config, parse_overrides
from vla_rl.core.config_files import read_yaml
from vla_rl.core.dimensions import match
from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.registry import find
from vla_rl.core.types import Episode, Observation, Origin, Source
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.lerobot_import import LeRobotMapping
from vla_rl.data.sources import DataMapping, find_store, import_source, survey
from vla_rl.data.store import EpisodeStore

if TYPE_CHECKING:
    from vla_rl.outcomes.ensemble import PolicyFeatures

Ask = Callable[[Sequence[str] | None], int]
"""Asks about episodes, and returns how many were answered."""


@dataclass(frozen=True)
class _Settings:
    """How a dataset is taken in. By default no demonstrator acted, so its episodes are asked about."""

    mapping: DataMapping = field(default_factory=lambda: DataMapping(LeRobotMapping(demonstrations=False)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="an episode store or a run folder; with --out any source of episodes")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="these episodes, labeled or not")
    parser.add_argument("--as", dest="answer", choices=OUTCOMES, help="do not ask; needs --ids")
    parser.add_argument("--policy", type=Path, help="let a success detector on the features of this policy help")
    parser.add_argument("--answers", type=int, default=40, help="first answers, before the detector (default: 40)")
    parser.add_argument("--audit", type=float, default=0.05, help="share of sure judgments that is asked, too")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the detector in this folder")
    parser.add_argument("--out", type=Path, metavar="STORE", help="store that a dataset or a bag is taken into")
    parser.add_argument("--mapping", type=Path, help="with --out: YAML with sections lerobot and bag")
    parser.add_argument("--detector", help="let this detector label alone: one of vla_rl.outcomes, or module:Name")
    parser.add_argument("--with", dest="options", nargs="*", default=[], metavar="KEY=VALUE", help="its options")
    parser.add_argument("--films", type=Path, help="folder for the films (default: a temporary one)")
    parser.add_argument("--browser", nargs="?", type=int, const=8610, metavar="PORT", help="ask in a browser page")
    add_settings(parser, "with --out: changes to the mapping, such as mapping.lerobot.image_size=[96,96]")


def run(arguments: argparse.Namespace) -> int:
    features = None
    if arguments.policy:
        from vla_rl.outcomes.ensemble import PolicyFeatures

        features = PolicyFeatures(find_policy(arguments.policy).path)
    store = _store(arguments, features.model.spec if features else None)
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
    if arguments.browser is not None:
        ask = functools.partial(_ask_in_browser, store, arguments.browser)
    else:
        films = arguments.films or Path(tempfile.mkdtemp(prefix="vla-rl-label-"))
        films.mkdir(parents=True, exist_ok=True)
        ask = functools.partial(_ask_all, store, films)
    if features is not None:
        return _with_detector(store, features, arguments, ask)
    from vla_rl.outcomes.labeling import open_questions

    ids = arguments.ids or open_questions(store)
    if not ids and arguments.browser is None:
        print("every episode has an outcome")
        return 0
    answered = ask(ids if arguments.ids or arguments.browser is None else None)
    print(f"{answered} answers in {store.edits.path}")
    return 0


def _store(arguments: argparse.Namespace, spec: PolicySpec | None) -> EpisodeStore:
    """Return the store to label. A source is taken into it, unless it does not fit the policy."""
    if arguments.out is None:
        if arguments.mapping or arguments.overrides:
            raise StoreError(
                "a mapping belongs to a dataset or a bag. Name the store that it is taken into: --out STORE"
            )
        found = find_store(arguments.store)
        return EpisodeStore(arguments.store, create=False) if found is None else found
    if arguments.mapping:
        load_config(DataMapping, arguments.mapping)  # names the file in its errors
    given = {"mapping": read_yaml(arguments.mapping)} if arguments.mapping else {}
    mapping = load_config(_Settings, None, arguments.overrides, given).mapping
    mapping = replace(mapping, bag={"demonstrations": False, **mapping.bag})
    source = survey(arguments.store, mapping)
    if spec is not None:
        named = [each for each in source.headers if each.episode_id in (arguments.ids or [each.episode_id])]
        height, width = spec.image_size
        cameras = ", ".join(f"{camera}: COLUMN" for camera in spec.cameras)
        mapped = f"mapping.lerobot.image_size=[{height},{width}] or mapping.lerobot.cameras={{{cameras}}}"
        _check_fit(named, spec, f"Set {mapped}, or map other columns")
    store = EpisodeStore(arguments.out)
    import_source(arguments.store, store, mapping)
    if source.outcomes:
        print(f"outcomes of {arguments.store} come from {source.outcomes}")
    return store


def _check_fit(headers: Iterable[EpisodeHeader], spec: PolicySpec, remedy: str) -> None:
    """Raise UserError for the first episode whose cameras, pictures or state the policy does not take."""
    for header in headers:
        state_dim = header.state_dim
        images = {camera: np.empty((*size, 3), np.uint8) for camera, size in header.cameras.items()}
        try:
            spec.check(Observation(images, np.empty(state_dim, np.float32), header.task, 0))
            expected = spec.dimensions_of(state_dim)[0]
            match(expected, header.state_dimensions, state_dim, "the policy", "the episode", "state")
        except UserError as error:
            raise UserError(f"episode {header.episode_id!r} does not fit the policy: {error}. {remedy}") from error


def _with_detector(store: EpisodeStore, features: "PolicyFeatures", arguments: argparse.Namespace, ask: Ask) -> int:
    """Ask for the first answers, let the detector judge, ask where it is unsure, and let it judge again."""
    from vla_rl.outcomes.files import check_folder
    from vla_rl.outcomes.labeling import DETECTOR, LabelConfig, Labeling, open_questions

    if arguments.save:
        check_folder(arguments.save, "detector.onnx")
    labeling = Labeling(store, features, LabelConfig(arguments.answers, arguments.audit))
    headers = {name: store.read_header(name) for name in arguments.ids or store.ids()}
    names = arguments.ids or [name for name, header in headers.items() if header.origin is not Origin.DEMO]
    if not names:
        raise StoreError(
            f"{store.path} has {len(headers)} episodes, and all are demonstrations, which count as successes. Name "
            "other episodes. Or take their dataset into another --out with mapping.lerobot.demonstrations=false"
        )
    _check_fit(
        (headers[name] for name in names),
        features.model.spec,
        "Name others with --ids, or leave it out (vla-rl edit --leave-out). A dataset can be taken into another --out "
        "with another mapping",
    )
    known = [headers[name].success is not None and not labeling.labeler(name).startswith(DETECTOR) for name in names]
    if all(known) and not arguments.save:
        print("every episode has an outcome; --save DIR keeps a detector that learned from them")
        return 0
    labeled = ask(labeling.first_questions(names))
    found = labeling.judge_rest(names)
    if found.detector is None:
        print(f"{labeled} labeled; a detector needs two successes and two failures: label more")
        return 1
    print(f"{len(found.judged)} labeled by {found.detector.name}, {len(found.asked)} questions")
    if found.asked:
        labeled += ask(found.asked)
        found = labeling.judge_rest([])
    if arguments.save and found.detector is not None:
        found.detector.save(arguments.save)
    audit = labeling.audit()
    print(
        f"{labeled} of {len(names)} labeled by a person, {len(open_questions(store))} still unknown, in "
        f"{store.edits.path}; audited {audit['audited']:.0f}: {audit['false_success']:.0%} of the successes and "
        f"{audit['false_failure']:.0%} of the failures were wrong"
    )
    return 0


def _ask_in_browser(store: EpisodeStore, port: int, ids: Sequence[str] | None) -> int:
    """Ask in a browser page: all of the episodes, or every question of the store until Ctrl-C (None)."""
    from vla_rl.acting.question_page import QuestionQueue, question_page

    queue = QuestionQueue(store, ids)
    with question_page(queue, port) as address, contextlib.suppress(KeyboardInterrupt):
        print(f"open {address} in a browser; Ctrl-C ends it")
        while not queue.done.wait(0.2):  # so that Ctrl-C is heard
            pass
    return queue.answered


def _ask_all(store: EpisodeStore, films: Path, ids: Sequence[str] | None) -> int:
    """Ask in the terminal; returns how many were answered."""
    from vla_rl.acting.question_page import ANSWERS

    answered = 0
    for number, episode_id in enumerate(ids or (), start=1):
        episode = store.read(episode_id)
        print(_describe(episode, f"[{number}/{len(ids or ())}]", films))
        answer = _ask(["", "q", *ANSWERS])
        if answer == "q":
            break
        if answer in ANSWERS:
            store.label(episode_id, ANSWERS[answer])
            answered += 1
    return answered


def _ask(known: Sequence[str]) -> str:
    """Return s, f, n, q, or nothing for a later time; the end of the input is q."""
    while True:
        try:
            answer = input("success, failure, not sure, later or quit? [s/f/n/enter/q] ").strip().lower()[:1]
        except EOFError:
            return "q"
        if answer in known:
            return answer


def _describe(episode: Episode, position: str, films: Path) -> str:
    from vla_rl.acting.question_page import last_seconds

    human = int(np.count_nonzero(episode.source == Source.HUMAN))
    lines = [
        f"{position} {episode.episode_id}: {episode.task!r}, {len(episode)} steps "
        f"({len(episode) / episode.control_hz:.1f} s), {human} by a person"
    ]
    if episode.images:
        file = films / f"{episode.episode_id}.gif"
        write_atomic(file, last_seconds(episode))
        lines.append(f"its last seconds: {file}")
    return "\n".join(lines)
