"""``vla-rl VERB``: finds the verb, runs it, and turns what a user can mend into one clear line and exit code 2."""

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import vla_rl
from vla_rl.cli.parser import HelpFormatter, VerbParser
from vla_rl.core.errors import UserError, did_you_mean, in_library, missing_extra, one_line
from vla_rl.core.logging_setup import log_to_stderr
from vla_rl.core.registry import OUR_PACKAGES, declared_packages
from vla_rl.core.signals import Terminated, continue_with, ends_in_time, stops_on_signals

VERBS = {
    "demo": "from demonstrations to a policy that improved by practice, with a report",
    "train": "demonstrations, supervised policy and practice rounds on any task",
    "eval": "success of a policy on held-out seeds",
    "rollout": "let a policy act on a robot, in real time or on a virtual clock",
    "robot": "look at a robot before a policy moves it: a list of yes and no",
    "corrector": "train the residual head of execution strategy a2c2",
    "imagine": "train a world model, and compare it with the real future",
    "record": "record demonstrations of a task or on a robot",
    "task": "what a task shows and assumes, and whether it can be trained",
    "play": "drive a task in a browser page, or take over from a policy there",
    "export": "a policy for the robot computer: graphs, engines, their verification",
    "serve": "a policy server, for robots on other computers",
    "report": "rebuild the report of a run",
    "finetune": "a policy from logged episodes alone: stores, LeRobotDatasets, ROS 2 bags",
    "label": "say how logged episodes went",
    "edit": "leave out, trim or relabel logged episodes; the recording stays",
    "hub": "share a policy or episodes through the Hugging Face hub or a folder",
    "doctor": "verify an episode store, and repair it",
    "sign": "sign a policy or a deployment, so that a robot may refuse all others",
}


RESUMABLE = ("demo", "train", "finetune")
REPEATABLE = ("eval", "imagine")  # the same command continues what was interrupted
_LONGEST_LINE = 2000
_LEAST_DESCRIPTORS = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb, by default of this process's own command line; returns the exit code, see `say_errors`."""
    last = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name from a file may be no text that a terminal takes
    if (here := os.getcwd()) not in sys.path:  # parts named module:Name may lie beside the person, and hide nothing
        sys.path.append(here)
    return say_errors("vla-rl", argv[0] if argv else "", lambda: _main(argv), debug="--debug" in argv, last=last)


def say_errors(program: str, verb: str, action: Callable[[], int], debug: bool = False, last: bool = False) -> int:
    """Carry an action out; whatever it raises becomes one line, and with ``debug`` a traceback before it. SIGTERM is a
    stop like Ctrl-C, see `vla_rl.core.signals`; with ``last`` the process ends after the action.

    Returns:
        the exit code: 0 done, 1 a requested check failed, 2 an error that a user can fix, 3 a mistake of this program,
        130 interrupted, 143 terminated.
    """
    log_to_stderr()
    try:
        _need_descriptors()
        with ends_in_time(program, verb, last), stops_on_signals():
            return action()
    except BaseException as error:
        code, sentence = _told(error, verb)
        if debug:
            traceback.print_exc()
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            print(f"{program}: {sentence}", file=sys.stderr)
        return code


def _need_descriptors() -> None:
    """Refuse to begin with too few file descriptors (OSError).

    Libraries that run out of them half-way leave objects whose destructors fail in their own words.
    """
    with contextlib.ExitStack() as taken:
        for _ in range(_LEAST_DESCRIPTORS):
            taken.callback(os.close, os.dup(2))


def _told(error: BaseException, verb: str) -> tuple[int, str]:
    """Return the exit code and the line for whatever was raised; raises what asks for an exit of its own."""
    hint = "; what is saved is safe" + (", go on with --resume" if verb in RESUMABLE else "")
    match error:
        case SystemExit() | GeneratorExit():
            raise error
        case Terminated():
            return 143, f"terminated{hint}"
        case KeyboardInterrupt():
            return 130, f"interrupted{hint}"
        case UserError():
            return 2, f"error: {one_line(error, _LONGEST_LINE)}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return 2, f"error: the disk is full ({error.filename or 'while writing'}){hint}"
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return 2, f"error: {one_line(OSError(f'{where}{error.strerror or error}'), _LONGEST_LINE)}"
        case MemoryError():
            return 2, "error: there is not enough memory; choose smaller sizes"
        case ModuleNotFoundError() if missing := missing_extra(error, verb):
            return 2, f"error: {missing}"
    kind = f"{type(error).__name__}: {one_line(error)}"
    if where := _place_of_others(error):
        return 2, f"error: {kind}, at {where}, which is no part of vla-rl{hint}"
    return 3, f"internal error: {kind}; please report it with what --debug prints"


def _place_of_others(error: BaseException) -> str:
    """Return the file and line of a user's part that raised; empty if we did, or a library for us."""
    ours, parts = Path(vla_rl.__file__).parents[1], declared_packages()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(ours) and file.relative_to(ours).parts[0] in OUR_PACKAGES:
            return ""
        if not in_library(file) or parts.intersection((*file.parts, file.stem)):
            return f"{file}:{frame.lineno}"
    return ""


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: vla-rl VERB [--help]\n")
        width = max(map(len, VERBS))
        for verb, purpose in VERBS.items():
            print(f"  {verb:<{width}}  {purpose}")
        return 0
    if argv[0] == "--version":
        print(f"vla-rl {vla_rl.__version__}")
        return 0
    name, *rest = argv
    if name not in VERBS:
        raise UserError(f"there is no verb {name!r}.{did_you_mean(name, VERBS)}")
    if name in REPEATABLE:
        continue_with("vla-rl", *argv)
    # Overrides may stand before, between and after options.
    arguments = make_parser(name).parse_intermixed_args(rest)
    return int(importlib.import_module(f"vla_rl.cli.{name}").run(arguments))


def make_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a verb. Its module's docstring is the help: what the verb does, and one example."""
    module = importlib.import_module(f"vla_rl.cli.{name}")
    parser = VerbParser(f"vla-rl {name}", description=module.__doc__, formatter_class=HelpFormatter)
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="the traceback of an error, before its line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
