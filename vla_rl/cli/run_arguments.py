"""The arguments of every verb that makes a run folder by practice, and the run that they name."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.parser import add_settings
from vla_rl.core.config import config_to_dict, load_config
from vla_rl.core.config_files import config_file, config_names, read_yaml
from vla_rl.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from vla_rl.core.policy_spec import PolicySpec
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig


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


def open_run(arguments: argparse.Namespace) -> "tuple[RunFolder, RunConfig, PolicySpec]":
    """Return the run folder of the arguments, made or found, its config, and the policy's interface.

    Raises:
        UserError: For arguments that contradict each other, or a bad config.
    """
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig
    from vla_rl.training.practice import check_config, create_run

    if not arguments.resume:
        return create_run(arguments.out or arguments.default_out, asked_config(arguments), arguments.start)
    if any(getattr(arguments, name) is not None for name in ("config", "policy", "seed", "out", "start")):
        raise UserError(
            "--resume goes on with the run's own config; leave --config, --policy, --seed, --out and --from out"
        )
    folder, config = RunFolder.resume(arguments.resume, RunConfig, arguments.overrides, "budget.rounds")
    spec = check_config(config, has_demonstrations=folder.policy_exists(0))
    if arguments.overrides:
        folder.extend(config)
    return folder, config, spec


def asked_config(arguments: argparse.Namespace) -> "RunConfig":
    """Return the config that the arguments describe: defaults, then the policy's size, then the file, then overrides.

    Raises:
        UserError: For a config or a size that there is not, or a bad value in one.
    """
    from vla_rl.policies.flow_vla.config import preset
    from vla_rl.training.config import RunConfig

    overrides = list(arguments.overrides)
    if arguments.seed is not None:
        if twice := [item for item in overrides if item.lstrip("-").startswith("seed=")]:
            raise UserError(f"the seed is given twice, --seed {arguments.seed} and {twice[0]}: leave one out")
        overrides.append(f"seed={arguments.seed}")
    file = config_file(arguments.config or arguments.default_config)
    base = {"policy": config_to_dict(preset(arguments.policy))} if arguments.policy else {}
    if base and "policy" in read_yaml(file):
        raise ConfigError(f"{file} has a policy of its own; leave --policy out, or the section in the file")
    return load_config(RunConfig, file, overrides, base)
