"""Sign a policy or a deployment, so that a robot may refuse what its owner did not sign.

A robot whose environment names VLA_RL_TRUSTED_KEYS=owner.pub (or `rollout --trust owner.pub`) loads nothing else.

Example: vla-rl sign --new-key owner.pem && vla-rl sign deployments/demo --key owner.pem
"""

import argparse
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.core.signing import make_key, sign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", help="a version in a run's policies/, or a deployment")
    parser.add_argument("--key", type=Path, metavar="PEM", help="the private key to sign with")
    parser.add_argument("--new-key", type=Path, metavar="PEM", help="make a pair of keys, and stop")


def run(arguments: argparse.Namespace) -> int:
    if arguments.new_key:
        print(f"public key, for the robot: {make_key(arguments.new_key)}")
        return 0
    if not (arguments.folder and arguments.key):
        raise UserError("name a folder and the --key to sign it with, or make one with --new-key")
    sign(arguments.folder, arguments.key)
    print(f"{arguments.folder} is signed")
    return 0
