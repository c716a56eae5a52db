"""Record demonstrations of a simulated task or on a robot: successes, into an episode store.

Who drives, --with: expert (the task's own), keyboard, spacemouse, an entry point of vla_rl.takeovers or module:Name. A
robot, --robot NAME, is driven by its own teleoperator. At the keyboard: arrows and i, k move, g is the gripper, digits
select the arm. s ends an attempt as a success, f and r drop it, Enter begins the next one.

Example: vla-rl record vla_rl/PickPlace-v0 --with keyboard --rerun spawn --episodes 20 --out runs/demonstrations
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="?", help="the task: see `vla-rl task --help`")
    parser.add_argument("--with", dest="driver", default="expert", metavar="WHO", help="default: expert")
    parser.add_argument("--robot", metavar="NAME", help="a robot instead of a task: lerobot, or module:function")
    parser.add_argument("--episodes", type=int, default=10, help="successes to record (default: 10)")
    parser.add_argument(
        "--seed", type=int, help="of the first attempt, the next one has the next (default: behind those in the store)"
    )
    parser.add_argument("--limits", type=Path, metavar="YAML", help="limits of the gate, such as configs/robots/*.yaml")
    parser.add_argument("--rerun", metavar="TARGET", help="live view in rerun: FILE.rrd, spawn, or a viewer's address")
    parser.add_argument("--out", type=Path, required=True, metavar="STORE", help="episode store to add to")
    add_settings(parser, "see RecordConfig")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.record import BY_HAND, EXPERT, RecordConfig, RecordOrder, record_robot, record_task
    from vla_rl.core.config import load_config
    from vla_rl.core.config_files import read_yaml
    from vla_rl.data.store import EpisodeStore

    overrides = list(arguments.overrides)
    if arguments.task and "=" in arguments.task:
        overrides.insert(0, arguments.task)
        arguments.task = None
    if (arguments.task is None) == (arguments.robot is None):
        raise UserError("name either a task or --robot NAME: what is to be recorded?")
    if arguments.task:
        overrides.append(f"task.env={arguments.task}")
    if arguments.driver not in (EXPERT, *BY_HAND):
        overrides.insert(0, f"takeover.supervisor={arguments.driver}")
    base = {"gate": read_yaml(arguments.limits)} if arguments.limits else {}
    config = load_config(RecordConfig, overrides=overrides, base=base)
    if (arguments.out / "config.yaml").exists():
        raise UserError(f"{arguments.out} is a run; record into a folder of its own, for task.demonstrations")
    order = RecordOrder(EpisodeStore(arguments.out), arguments.episodes, arguments.seed, arguments.rerun)
    if arguments.robot:
        added = record_robot(arguments.robot, order, config)
    else:
        added = record_task(arguments.driver, order, config)
    print(f"{len(added)} demonstrations in {arguments.out}: {added[0]} to {added[-1]}")
    return 0
