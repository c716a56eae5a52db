"""Tasks: list those that installed packages declare or register, or check one before training on it.

A task is a gymnasium.Env. Its name is an entry point of vla_rl.tasks, a Gymnasium id, package:Id-v0, or module:Name (a
class or a function that makes one). `check` plays it at random and at rest. It prints detected and assumed properties
and faults, and saves a picture of what a policy sees. Exit code 1: the task cannot be trained yet.

`list --all` adds the known benchmarks that are not installed, with the command that installs each.

Example: vla-rl task check own_task:Dot-v0 task.image_size=48 --picture runs/dot.png
"""

import argparse
import sys
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "check"], help="name the known tasks, or play one and report")
    parser.add_argument("task", nargs="?", help="name of the task")
    parser.add_argument(
        "--all", action="store_true", help="list known benchmarks too, with what to install if one is missing"
    )
    parser.add_argument(
        "--seconds", type=float, help="length of a short episode in the task's time (default: 5; less if it is slow)"
    )
    parser.add_argument(
        "--picture", type=Path, default=Path("runs/task-check.png"), metavar="PNG", help="file for its pictures"
    )
    add_settings(parser, "settings of the task, as for training")


def run(arguments: argparse.Namespace) -> int:
    return _list(arguments.all) if arguments.action == "list" else _check(arguments)


def _list(every: bool) -> int:
    from vla_rl.acting.task_names import all_tasks, task_names
    from vla_rl.core.logging_setup import library_output_once

    with library_output_once():
        found = all_tasks() if every else dict.fromkeys(task_names(), "")
    for name, command in found.items():
        print(f"{name}  (not installed: {command})" if command else name)
    print(
        "Gymnasium's own ids with continuous actions are tasks too (Reacher-v5). So are package:Id-v0 of a package "
        "that registers it, and module:Name, a class or a function",
        file=sys.stderr,
    )
    return 0


def _check(arguments: argparse.Namespace) -> int:
    if arguments.task is None or "=" in arguments.task:
        raise UserError("name the task to check: vla-rl task check NAME")
    if arguments.seconds is not None and not 0 < arguments.seconds <= 3600:
        raise UserError(f"--seconds is {arguments.seconds:g}; expected a number above 0, at most 3600")
    if arguments.picture.is_dir():
        raise UserError(f"--picture {arguments.picture} is a folder; name a file")
    from vla_rl.acting.task_config import OneTask
    from vla_rl.core.config import load_config

    config = load_config(OneTask, overrides=[f"task.env={arguments.task}", *arguments.overrides])
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    from vla_rl.acting.task_check import check_task, save_picture  # only when the settings are known to be right

    report = check_task(config.task, arguments.seconds)
    for line in report.found:
        print(line)
    for title, lines in (("assumed", report.assumed), ("warning", report.warnings), ("problem", report.problems)):
        for line in lines:
            print(f"{title}: {line}")
    if report.assumed:
        print("declare a thing by task.declare.NAME=..., or as an attribute of the environment")
    if report.seen is not None and report.seen.images:
        save_picture(report.seen, arguments.picture)
        print(f"picture: {arguments.picture}, from left to right: {', '.join(report.seen.images)}")
    warned = "; read the warnings first" if report.warnings else ""
    print("it cannot be trained yet" if report.problems else f"it can be trained{warned}")
    return 1 if report.problems else 0
