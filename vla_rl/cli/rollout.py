"""Let a policy act on a robot: the one loop, the gate, and the recorder to an episode store.

Example: vla-rl rollout runs/demo --robot mock --realtime --episodes 3 --out runs/mock/episodes
"""

import argparse
import os
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.registry import names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policy", metavar="POLICY", help="a folder of a run or policy, openpi://HOST:PORT or module:Name"
    )
    parser.add_argument("--version", type=int, help="policy version of the run (default: the newest)")
    parser.add_argument(
        "--robot", required=True, metavar="NAME", help=f"{', '.join(names('robots'))}, or module:function"
    )
    parser.add_argument("--realtime", action="store_true", help="absolute deadlines, inference in its own process")
    parser.add_argument("--episodes", type=int, default=1, help="number of attempts")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; the next one has the next seed")
    parser.add_argument("--strategy", help="execution strategy, short for execution.strategy=NAME")
    parser.add_argument("--limits", type=Path, metavar="YAML", help="limits of the gate, such as configs/robots/*.yaml")
    parser.add_argument("--trust", type=Path, nargs="+", metavar="PUB", help="act only as what these keys have signed")
    parser.add_argument("--takeover", action="store_true", help="let the robot's teleoperator or supervisor take over")
    parser.add_argument(
        "--unattended", action="store_true", help="a real robot does not wait for Enter before attempts"
    )
    parser.add_argument(
        "--inject",
        default="",
        metavar="FAULTS",
        help="faults at random moments, by name with commas, or all; as many attempts as they need, a table at the end",
    )
    parser.add_argument("--detector", type=Path, metavar="FOLDER", help="exported success detector that ends attempts")
    parser.add_argument("--rerun", metavar="TARGET", help="live view in rerun: FILE.rrd, spawn, or a viewer's address")
    parser.add_argument("--out", type=Path, metavar="STORE", help="episode store to add to (default: keep nothing)")
    add_settings(parser, "see RolloutConfig")


def run(arguments: argparse.Namespace) -> int:
    from robot_io.faults import fault_table
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.acting.rollout import RolloutOrder, resolve_config, roll_out
    from vla_rl.core.signing import TRUSTED
    from vla_rl.data.store import EpisodeStore

    if arguments.trust:
        os.environ[TRUSTED] = os.pathsep.join(str(file.absolute()) for file in arguments.trust)  # for inference, too
    policy = find_policy(arguments.policy, arguments.version)
    config = resolve_config(policy, arguments.limits, arguments.strategy, arguments.overrides, arguments.realtime)
    order = RolloutOrder(
        policy=policy,
        robot=arguments.robot,
        episodes=arguments.episodes,
        seed=arguments.seed,
        realtime=arguments.realtime,
        takeover=arguments.takeover,
        unattended=arguments.unattended,
        live_view=arguments.rerun,
        store=EpisodeStore(arguments.out) if arguments.out else None,
        inject=arguments.inject,
        detector=arguments.detector,
    )
    result = roll_out(order, config)
    if result.findings:
        print(fault_table(result.findings))
        return 0 if all(finding.passed for finding in result.findings) else 1
    judged = [outcome for outcome in result.outcomes if outcome is not None]
    print(f"success {sum(judged)}/{len(judged)}" if judged else f"{len(result.outcomes)} attempts, none of them judged")
    if arguments.detector:
        stops = result.detector_stops
        print(f"the detector ended {len(stops)}: {stops.count(False)} wrongly, {stops.count(None)} without an outcome")
    return 0
