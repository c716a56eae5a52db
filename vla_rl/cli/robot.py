"""Look at a robot before a policy moves it: ``check`` connects, reads, sends nothing, and prints a list of yes and no.

Example: vla-rl robot check runs/demo --robot mock --limits my_limits.yaml
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.registry import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"], help="the list of docs/before_it_moves.md; exit code 1 for any no")
    parser.add_argument(
        "policy", metavar="POLICY", help="a folder of a run or policy, openpi://HOST:PORT or module:Name"
    )
    parser.add_argument("--version", type=int, help="policy version of the run (default: the newest)")
    parser.add_argument(
        "--robot", required=True, metavar="NAME", help=f"{', '.join(names('robots'))}, or module:function"
    )
    parser.add_argument("--strategy", help="execution strategy (default: the best that the policy supports)")
    parser.add_argument("--limits", type=Path, metavar="YAML", help="limits of the gate, such as configs/robots/*.yaml")
    add_settings(parser, "see vla-rl rollout")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.acting.robot_check import check_robot
    from vla_rl.acting.rollout import resolve_config

    policy = find_policy(arguments.policy, arguments.version)
    config = resolve_config(policy, arguments.limits, arguments.strategy, arguments.overrides, realtime=True)
    items = check_robot(arguments.robot, policy, config, config.robot)
    print("before it moves your arm:")
    for item in items:
        print(f"  {item}")
    return 0 if all(item.answer for item in items) else 1
