"""Fine-tune a policy, or make one, from logged episodes alone: outcomes and interventions, no simulator.

Data are episode stores, run folders, LeRobotDatasets v3 and ROS 2 bags, in any mixture; see docs/data.md.
--dry-run takes the data in and prints what each loss would see of it; --resume then trains.
torchrun --nproc-per-node N -m vla_rl.cli.main finetune ... shares every batch of the policy among N processes.

Example: vla-rl finetune --data runs/demo logs/monday.mcap --mapping monday.yaml --out runs/monday
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.parser import add_settings
from vla_rl.core.config import config_to_dict, load_config
from vla_rl.core.config_files import OF_FINETUNE, config_file
from vla_rl.core.errors import UserError
from vla_rl.core.signals import continue_with
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.sources import DataMapping

if TYPE_CHECKING:
    from vla_rl.training.finetune import FinetuneConfig

_OUT = Path("runs/finetune")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help="stores, runs, LeRobotDatasets, bags")
    parser.add_argument("--mapping", type=Path, help="YAML with sections lerobot and bag: columns, topics, sizes")
    parser.add_argument("--policy", type=Path, metavar="FOLDER", help="the policy to start from (default: a new one)")
    parser.add_argument("--algorithm", help="what is done to the policy (default: habc)")
    parser.add_argument("--config", help=f"a YAML file, or one of {', '.join(OF_FINETUNE)} (default: {OF_FINETUNE[0]})")
    parser.add_argument("--seed", type=int, help="of weights and batches (default: the config's)")
    parser.add_argument("--out", type=Path, help="the run folder to make (default: runs/finetune)")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN_DIR", help="go on with a run; needs nothing else, or a larger steps=N"
    )
    parser.add_argument("--dry-run", action="store_true", help="take the data in, print what each loss sees, and stop")
    add_settings(parser, "changes to the config")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.training.finetune import describe_data, finetune, share_steps
    from vla_rl.training.ranks import rank_and_count

    if rank_and_count()[0]:
        if not arguments.dry_run:
            share_steps(arguments.resume or arguments.out or _OUT)
        return 0
    folder, config = _open_run(arguments)
    continue_with("vla-rl", "finetune", "--resume", str(folder.path))
    if arguments.dry_run:
        print(describe_data(folder, config))
        return 0
    finetune(folder, config)
    print(f"policy: {folder.policy(1)}\nreport: {folder.path / 'report.html'}")
    return 0


def _open_run(arguments: argparse.Namespace) -> "tuple[RunFolder, FinetuneConfig]":
    """Return the run folder that the arguments name, made or found, and its config."""
    from vla_rl.training.finetune import FinetuneConfig, start_run

    if arguments.resume:
        names = ("data", "mapping", "policy", "algorithm", "config", "seed", "out")
        given = [name for name in names if getattr(arguments, name) not in (None, [])]
        if given:
            raise UserError(f"--resume goes on with the run's own config; leave {', '.join(given)} out")
        folder, config = RunFolder.resume(arguments.resume, FinetuneConfig, arguments.overrides, "steps")
        if arguments.overrides:
            folder.extend(config)
        return folder, config
    # Changes to the config may stand right behind the paths.
    changes = [str(path) for path in arguments.data or [] if "=" in path.name and not path.exists()]
    paths = [path for path in arguments.data or [] if str(path) not in changes]
    if not paths:
        raise UserError("--data is missing: name the episode stores, runs, LeRobotDatasets or bags to learn from")
    overrides = [f"data={json.dumps([str(path.absolute()) for path in paths])}"]
    if arguments.mapping:
        mapping = config_to_dict(load_config(DataMapping, arguments.mapping))
        overrides.append(f"mapping={json.dumps(mapping)}")
    if arguments.policy:
        overrides.append(f"start={json.dumps(str(_policy_folder(arguments.policy).absolute()))}")
    overrides += [
        f"{name}={value}" for name in ("algorithm", "seed") if (value := getattr(arguments, name)) is not None
    ]
    config = load_config(
        FinetuneConfig, config_file(arguments.config or OF_FINETUNE[0]), [*overrides, *changes, *arguments.overrides]
    )
    return start_run(arguments.out or _OUT, config), config


def _policy_folder(path: Path) -> Path:
    """Return a policy's folder. Raises UserError with the newest version for a run folder."""
    if (path / "config.json").is_file():
        return path
    versions = RunFolder(path).policy_versions() if path.is_dir() else []
    hint = f"; did you mean {RunFolder(path).policy(versions[-1])}?" if versions else ""
    raise UserError(f"{path} holds no policy (no config.json){hint}")
