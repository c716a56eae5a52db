"""The arguments of every verb that makes a run folder by practice. `vla_rl.runs.practice.open_run` reads them."""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.runs.config_files import config_names


def add_run_arguments(parser: argparse.ArgumentParser, config: str, out: str) -> None:
    """Add them to a verb's parser, with its default config and run folder."""
    parser.set_defaults(default_config=config, default_out=Path(out))
    parser.add_argument("--config", help=f"a YAML file, or one of {', '.join(config_names())} (default: {config})")
    parser.add_argument("--policy", help="size of the policy: one of the files in configs/policy (default: cpu)")
    parser.add_argument("--seed", type=int, help="seed of the run (default: the config's)")
    parser.add_argument("--out", type=Path, help=f"the run folder to make (default: {out})")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="go on with a run; needs nothing else, or a larger budget.rounds=N",
    )
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="RUN_DIR", help="share demonstrations and supervised policy of a run"
    )
    add_settings(parser, "changes to the config")
