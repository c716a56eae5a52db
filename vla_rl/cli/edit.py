"""Leave out, trim or relabel logged episodes. The recorded data stays unchanged, and every edit can be undone.

DATA is an episode store, a run folder or a LeRobotDataset. Its edits are small files with a log beside the data
(STORE/edits/, DATASET.edits/), which training, import and export apply. Without a change, the log is printed.

Example: vla-rl edit runs/robot/episodes --ids round001-00003 --trim 10:250 --outcome failure
"""

import argparse
import re
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.data.dataset_edits import DatasetEdits
from vla_rl.data.edits import Changes, Editable, check_changes, describe
from vla_rl.data.lerobot_files import LeRobotFiles
from vla_rl.data.sources import find_store, is_lerobot
from vla_rl.data.store import EpisodeStore

OUTCOMES = {"success": True, "failure": False, "unknown": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="an episode store, a run folder or a LeRobotDataset")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="episodes; of a LeRobotDataset their numbers, from 0")
    parser.add_argument(
        "--leave-out", action=argparse.BooleanOptionalAction, help="nothing learns from these episodes any more"
    )
    parser.add_argument(
        "--trim", metavar="FIRST:STOP", help="keep the steps FIRST to STOP - 1, counted in the recording; 10: or :250"
    )
    parser.add_argument("--outcome", choices=OUTCOMES, help="outcome of these episodes")
    parser.add_argument("--task", metavar="SENTENCE", help="task sentence of these episodes")
    parser.add_argument("--undo", action="store_true", help="undo the last edit of each of these episodes")


def run(arguments: argparse.Namespace) -> int:
    wanted = Changes()
    if arguments.leave_out is not None:
        wanted["left_out"] = arguments.leave_out
    if arguments.outcome is not None:
        wanted["success"] = OUTCOMES[arguments.outcome]
    if arguments.task is not None:
        wanted["task"] = arguments.task
    changes_some = bool(wanted) or arguments.trim is not None
    if changes_some and arguments.undo:
        raise UserError("--undo undoes the last edit; give no other change with it")
    data = _open(arguments.data)
    if not (changes_some or arguments.undo):
        _print_logs(data, arguments.ids or sorted(data.edits.names()), arguments.data)
        return 0
    if not arguments.ids:
        raise UserError("--ids is missing: name the episodes to change")
    lengths = {name: data.recording(name).length for name in arguments.ids}
    changes = {name: _with_trim(wanted, arguments.trim, length) for name, length in lengths.items()}
    for name, length in lengths.items():  # all of them, before the first one is changed
        if changes_some:
            check_changes(changes[name], length, f"episode {name!r}")
    for name in lengths:
        before = data.edit_log(name).changes
        if arguments.undo:
            data.undo(name)
        else:
            data.edit(name, **changes[name])
        print(f"{name}: {describe(before)} -> {describe(data.edit_log(name).changes)}")
    if arguments.trim and not arguments.outcome:
        print("the outcomes stay as they were; --outcome changes them")
    return 0


def _open(path: Path) -> Editable:
    if (found := find_store(path)) is not None:
        return found
    if is_lerobot(path):
        return DatasetEdits(LeRobotFiles(path))
    return EpisodeStore(path, create=False)  # raises, with a hint


def _with_trim(wanted: Changes, trim: str | None, length: int) -> Changes:
    if trim is None:
        return wanted
    found = re.fullmatch(r"(\d*):(\d*)", trim)
    if found is None or trim == ":":
        raise UserError(f"--trim is {trim!r}; expected FIRST:STOP, FIRST: or :STOP, in steps of the recording")
    return {**wanted, "trim": (int(found[1] or 0), int(found[2] or length))}


def _print_logs(data: Editable, names: list[str], path: Path) -> None:
    for name in names:
        log = data.edit_log(name)
        print(f"{name}: {describe(log.changes)}")
        for entry in log.entries:
            undone = "" if entry.undoes is None else f", undoes edit {entry.undoes + 1}"
            print(f"  {entry.time[:19]}Z {entry.user}: {describe(entry.old)} -> {describe(entry.new)}{undone}")
    if not names:
        print(f"{path} has no edits")
