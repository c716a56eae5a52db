"""``vla-rl VERB``: finds the verb, runs it, and turns what a user can mend into one clear line and exit code 2."""

import argparse
import errno
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import vla_rl
from vla_rl.core.errors import UserError, did_you_mean

VERBS = {
    "demo": "from demonstrations to a policy that improved by practice, with a report",
    "train": "demonstrations, supervised policy and practice rounds on any task",
    "eval": "success of a policy on held-out seeds",
    "rollout": "let a policy act on a robot, in real time or on a virtual clock",
    "robot": "look at a robot before a policy moves it: a list of yes and no",
    "corrector": "train the residual head of execution strategy a2c2",
    "imagine": "train a world model, evaluate it, or watch it beside the real future",
    "record": "record demonstrations of a task or on a robot",
    "task": "what a task shows and assumes, and whether it can be trained",
    "play": "drive a task in a browser page, or take over from a policy there",
    "export": "a policy for the robot computer: graphs, engines, their verification",
    "report": "rebuild the report of a run",
    "finetune": "a policy from logged episodes alone: stores, LeRobotDatasets, ROS 2 bags",
    "label": "say how logged episodes went",
    "hub": "share a policy or episodes through the Hugging Face hub or a folder",
    "doctor": "verify an episode store, and repair it",
}


# The base install is what the computer on a robot needs; which extra brings what else.
EXTRAS = {
    "train": ("torch", "lerobot", "mujoco", "gymnasium", "tensorboard", "matplotlib", "PIL", "scipy", "rich"),
    "vlm": ("transformers",),
    "benchmarks": ("metaworld", "gym_aloha"),
    "ros": ("rosbags",),
    "trt": ("onnx", "onnxscript", "polygraphy"),
    "viz": ("rerun",),
    "scale": ("ray",),
}


class Verb(Protocol):
    """What the module of a verb holds."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code, see `say_errors`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if (here := os.getcwd()) not in sys.path:  # parts named module:Name may lie beside the person, and hide nothing
        sys.path.append(here)
    return say_errors("vla-rl", argv[0] if argv else "", lambda: _main(argv))


def say_errors(program: str, verb: str, action: Callable[[], int]) -> int:
    """Carry an action out, and turn what a user can mend into one line. Returns the exit code: 0 done, 1 the check that
    was asked for failed, 2 bad input, 130 interrupted.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return action()
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or "while writing"
        print(
            f"{program}: error: the disk is full ({where}); what is saved is safe, go on with --resume", file=sys.stderr
        )
        return 2
    except ModuleNotFoundError as error:
        extra = next((name for name, packages in EXTRAS.items() if (error.name or "").split(".")[0] in packages), None)
        if extra is None:
            raise
        print(
            f"{program}: error: {verb} needs the package {error.name!r}, which is not installed; "
            f"install vla-rl[{extra}]",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted; what is saved is safe, go on with --resume", file=sys.stderr)
        return 130


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] == "--version":
        print(f"vla-rl {vla_rl.__version__}")
        return 0
    name, *rest = argv
    if name not in VERBS:
        raise UserError(f"there is no verb {name!r}.{did_you_mean(name, VERBS)}")
    return _run_verb(name, rest)


def _run_verb(name: str, rest: Sequence[str]) -> int:
    module: Verb = importlib.import_module(f"vla_rl.cli.{name}")
    # The module's docstring is the help: what the verb does, and one example.
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"vla-rl {name}", description=module.__doc__, formatter_class=as_written)
    module.add_arguments(parser)
    # Overrides may stand before, between and after options.
    return module.run(parser.parse_intermixed_args(rest))


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {purpose}" for name, purpose in VERBS.items()]
    return "\n".join(["usage: vla-rl VERB [--help]", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
