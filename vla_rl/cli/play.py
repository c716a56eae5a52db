"""Drive a task in a browser page with keyboard, mouse or gamepad; or watch the policy of a run there, and take over.

With --world a world model imagines the same actions beside the task. With --out every attempt with a policy is kept,
with who acted at each step; without a policy, every success as a demonstration.

Example: vla-rl play --run runs/demo --out runs/rescued
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import UserError

DEFAULT_TASK, DEFAULT_DIFFICULTY = "vla_rl/PegInsert-v0", 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="a run whose policy acts until you take over")
    parser.add_argument("--task", help=f"the task, where there is no policy (default: {DEFAULT_TASK})")
    parser.add_argument("--difficulty", type=float, help=f"of the task (default: {DEFAULT_DIFFICULTY})")
    parser.add_argument(
        "--world", type=Path, help="folder of a world model, or a run (its own is trained first); gives the task too"
    )
    parser.add_argument("--out", type=Path, metavar="STORE", help="episode store to add to")
    parser.add_argument("--episodes", type=int, default=1000, help="attempts with a policy, successes without one")
    parser.add_argument("--pace", type=float, default=0.5, help="how fast the task goes, 1: real time (default: 0.5)")
    parser.add_argument("--port", type=int, default=8600, help="0: any free one")


def run(arguments: argparse.Namespace) -> int:
    for brings, what in ((arguments.run, "a run"), (arguments.world, "a world model")):
        if brings and (arguments.task or arguments.difficulty is not None):
            raise UserError(f"{what} brings its own task; leave --task and --difficulty out")
    options = {"port": arguments.port, "pace": arguments.pace, "alone": arguments.run is None}
    if arguments.world:
        from vla_rl.training.world_model import world_of

        arguments.world = world_of(arguments.world)
        options["world"] = str(arguments.world)
    person: dict[str, Any] = {"supervisor": "browser", "options": options}
    return _watch(arguments, person) if arguments.run else _drive(arguments, person)


def _watch(arguments: argparse.Namespace, person: dict[str, Any]) -> int:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.acting.rollout import RolloutOrder, resolve_config, roll_out
    from vla_rl.acting.world_folder import WorldFolder
    from vla_rl.data.store import EpisodeStore

    policy = find_policy(arguments.run)
    if arguments.world and (task := WorldFolder(arguments.world).task().env) != policy.spec.env_id:
        raise UserError(
            f"{arguments.world} predicts {task}, the policy of {arguments.run} acts in {policy.spec.env_id}; choose a "
            "world model of its task"
        )
    store = EpisodeStore(arguments.out) if arguments.out else None
    order = RolloutOrder(policy, "sim", arguments.episodes, takeover=True, store=store)
    result = roll_out(order, replace(resolve_config(policy), takeover=person))
    print(f"{sum(outcome is True for outcome in result.outcomes)} of {len(result.outcomes)} attempts succeeded")
    return 0


def _drive(arguments: argparse.Namespace, person: dict[str, Any]) -> int:
    from vla_rl.acting.record import RecordConfig, RecordOrder, record_task
    from vla_rl.acting.task_config import TakeoverConfig, TaskConfig
    from vla_rl.data.store import EpisodeStore

    if arguments.world:
        from vla_rl.acting.world_folder import WorldFolder

        task = WorldFolder(arguments.world).task()
    else:
        difficulty = DEFAULT_DIFFICULTY if arguments.difficulty is None else arguments.difficulty
        task = TaskConfig(env=arguments.task or DEFAULT_TASK, difficulty=difficulty)
    takeover = config_from_dict(TakeoverConfig, person, where="takeover")
    with tempfile.TemporaryDirectory() as nowhere:
        store = EpisodeStore(arguments.out or Path(nowhere))
        order = RecordOrder(store, arguments.episodes)
        record_task("browser", order, replace(RecordConfig(), task=task, takeover=takeover))
    return 0
