"""Measure, write docs/results/NAME.json, and renew the tables of the README and the docs that show it.

Example: python -m benchmarks sim --json
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import renew_tables
from vla_rl.cli.main import say_errors
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.files import write_atomic
from vla_rl.training.machine import describe_machine

RESULTS = Path("docs/results")
BENCHMARKS = (
    "demo",
    "sim",
    "learner",
    "neighbor",
    "gpu",
    "scale",
    "algorithms",
    "data",
    "world-model",
    "execution",
    "robot",
    "jtc",
    "deploy",
    "deploy-choice",
    "metaworld",
    "known",
    "scale-floor",
    "outcomes",
    "people",
    "few",
    "sentences",
    "imagination",
    "doors",
    "hostile",
    "data_traps",
    "foreign-scenes",
    "interruption",
    "house",
    "speed",
    "docs",
    "any_policy",
    "detector",
    "one_world",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit code, see `vla_rl.cli.main.say_errors`."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark; NAME --help shows them")
    arguments = parser.parse_args(argv)
    return say_errors("benchmarks", arguments.name, lambda: run(arguments), last=argv is None)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {arguments.name!r}.{did_you_mean(arguments.name, BENCHMARKS)}")
    benchmark = importlib.import_module(f"benchmarks.{arguments.name.replace('-', '_')}")
    parser = argparse.ArgumentParser(f"python -m benchmarks {arguments.name}", description=benchmark.__doc__)
    parser.add_argument("--json", action="store_true", default=arguments.json)
    parser.add_argument("--out", type=Path, default=arguments.out)
    benchmark.add_arguments(parser)
    options = parser.parse_args(arguments.rest)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder of results {options.out}: {error.strerror}") from error
    command = f"python -m benchmarks {arguments.name} {' '.join(arguments.rest)}".strip()
    result = {"benchmark": arguments.name, "command": command, "machine": describe_machine(), **benchmark.run(options)}
    text = json.dumps(result, indent=1) + "\n"
    write_atomic(options.out / f"{arguments.name}.json", text.encode())
    if options.out == RESULTS:  # results in another folder belong to no table
        renew_tables(Path.cwd(), options.out, arguments.name)
    print(text if options.json else benchmark.table(result), file=sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
