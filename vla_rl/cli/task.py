"""Tasks: list those that installed packages declare, or check one before training on it.

A task is a gymnasium.Env, named by an entry point of vla_rl.tasks, a Gymnasium id, package:Id-v0, or module:Name (a
class or a function that makes one). `check` says what was found and what is assumed, plays it at random and at rest,
and saves a picture of what a policy will see. Exit code 1: it cannot be trained as it is.

Example: vla-rl task check own_task:Dot-v0 task.image_size=48 --picture runs/dot.png
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError
from vla_rl.core.registry import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "check"], help="name the known tasks, or play one and report")
    parser.add_argument("task", nargs="?", help="its name")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the task's own time to play (default: 5)")
    parser.add_argument(
        "--picture", type=Path, default=Path("runs/task-check.png"), metavar="PNG", help="file for its pictures"
    )
    add_settings(parser, "settings of the task, as for training")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        print("\n".join(names("tasks")))
        return 0
    if arguments.task is None or "=" in arguments.task:
        raise UserError("name the task to check: vla-rl task check NAME")
    from vla_rl.core.config import load_config
    from vla_rl.runs.record import RecordConfig
    from vla_rl.runs.task_check import check_task, save_picture

    config = load_config(RecordConfig, overrides=[f"task.env={arguments.task}", *arguments.overrides])
    report = check_task(config.task, arguments.seconds)
    for line in report.found:
        print(line)
    for title, lines in (("assumed", report.assumed), ("warning", report.warnings), ("problem", report.problems)):
        for line in lines:
            print(f"{title}: {line}")
    if report.assumed:
        print("declare a thing by task.declare.NAME=..., or as an attribute of the environment")
    if report.seen is not None:
        save_picture(report.seen, arguments.picture)
        print(f"picture: {arguments.picture}, from left to right: {', '.join(report.seen.images)}")
    print("it cannot be trained as it is" if report.problems else "it can be trained")
    return 1 if report.problems else 0
