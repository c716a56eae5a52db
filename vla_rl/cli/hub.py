"""Share a policy or episodes through the Hugging Face hub, or through a folder, and get them back.

push takes a run (its newest policy, or with --episodes what it recorded), a policy folder, or an episode store;
episodes travel as a LeRobotDataset. A place is USER/NAME on the hub, with your login in HF_TOKEN or by `hf auth login`.
Or it is a folder, ./NAME or an absolute path, which needs no network.

Example: vla-rl hub push runs/demo ./shared/peg-policy
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("way", choices=("push", "pull"), help="upload, or download")
    parser.add_argument("source", help="push: a folder of this machine; pull: a place")
    parser.add_argument("target", help="push: a place; pull: a new folder of this machine")
    parser.add_argument("--episodes", action="store_true", help="of a run its episodes, of the hub a dataset")
    parser.add_argument("--private", action="store_true", help="a new place on the hub is seen by you alone")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.hub import pull, push

    if arguments.way == "push":
        print(push(Path(arguments.source), arguments.target, arguments.episodes, arguments.private))
    else:
        print(pull(arguments.source, Path(arguments.target), arguments.episodes))
    return 0
