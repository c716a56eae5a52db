"""Train the residual head of execution strategy a2c2 for a policy of a run, from the run's demonstrations.

Example: vla-rl corrector runs/demo && vla-rl rollout runs/demo --robot sim --strategy a2c2 latency.typical=4
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--version", type=int, help="policy version (default: the newest)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    add_settings(parser, "see CorrectorConfig")


def run(arguments: argparse.Namespace) -> int:
    import torch

    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.data.store import EpisodeStore
    from vla_rl.policies.corrector import FOLDER
    from vla_rl.policies.corrector_training import CorrectorConfig, train_corrector
    from vla_rl.policies.folders import load_model

    torch.set_num_threads(1)
    config = load_config(CorrectorConfig, overrides=arguments.overrides)
    policy = find_policy(arguments.run, arguments.version)
    store = EpisodeStore(arguments.run / "episodes", create=False)
    demonstrations = [name for name in store.ids() if store.read_header(name).origin == Origin.DEMO]
    if not demonstrations:
        raise UserError(f"{arguments.run} has no demonstrations to learn corrections from")
    model, _ = load_model(policy.path)
    read = [store.read(name) for name in demonstrations]
    shown = [each.matched(model.spec.dimensions_of(each.state.shape[1]), f"the policy {policy.path}") for each in read]
    corrector, fit = train_corrector(model, shown, config, arguments.seed)
    corrector.save(policy.path / FOLDER)
    print(
        f"{policy.path / FOLDER}: squared error of held-out actions {fit.planned_error:.4f} as planned, "
        f"{fit.corrected_error:.4f} corrected"
    )
    return 0
