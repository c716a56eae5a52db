"""Check an episode store before it is used, or any data before anything is trained on them.

Without --data it verifies every episode of a store against its digest; with --repair it sets damaged ones aside and
removes what crashed writers left. With --data it checks what the episodes say: rates, stamps, frozen or black or
swapped cameras, duplicates, jumps, actions that come after their states. Exit code 1: something is wrong.

Example: vla-rl doctor runs/demo/episodes --repair
Example: vla-rl doctor datasets/so101_peg --data --picture suspicious.png
"""

import argparse
import json
import tempfile
from pathlib import Path

from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="PATH", help="an episode store; with --data any source of episodes")
    parser.add_argument(
        "--repair", action="store_true", help="move damaged episodes to quarantine/; nothing is deleted"
    )
    parser.add_argument(
        "--data", action="store_true", help="check the content of a store, a run, a LeRobotDataset or a bag"
    )
    parser.add_argument("--mapping", type=Path, help="with --data: YAML with sections lerobot and bag")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="with --data: write the suspicious frames there")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.data.doctor import diagnose, format_findings, repair

    if arguments.data:
        if arguments.repair:
            raise UserError("--repair mends the files of a store, --data checks their content: leave one of them out")
        return _check_data(arguments)
    if arguments.mapping or arguments.picture:
        raise UserError("--mapping and --picture belong to the check of the content; add --data")
    findings = repair(arguments.store) if arguments.repair else diagnose(arguments.store)
    plain = [{"defect": each.defect, "file": str(each.file), "detail": each.detail} for each in findings]
    print(json.dumps(plain, indent=1) if arguments.json else format_findings(findings))
    return 1 if findings and not arguments.repair else 0


def _check_data(arguments: argparse.Namespace) -> int:
    from vla_rl.core.progress import track
    from vla_rl.data.health import check_episodes
    from vla_rl.data.sources import DataMapping, as_store

    mapping = load_config(DataMapping, arguments.mapping) if arguments.mapping else DataMapping()
    with tempfile.TemporaryDirectory(prefix="vla-rl-doctor-") as staging:
        store = as_store(arguments.store, Path(staging), mapping)
        report = check_episodes(map(store.read, track(store.ids(), "checking episodes", "episode")))
    picture = report.picture()
    if arguments.picture and picture is not None:
        write_atomic(arguments.picture, picture)
    print(json.dumps(report.to_plain(), indent=1) if arguments.json else report.table())
    if picture is not None and not arguments.json:
        print(f"suspicious frames: {arguments.picture or 'add --picture suspicious.png to see them'}")
    return 1 if report.problems else 0
