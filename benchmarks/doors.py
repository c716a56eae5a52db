"""The effort to add a part of one's own: lines to write, lines to read, options to set, and the cost of an adapted
benchmark.
"""

import argparse
import ast
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.metaworld_speed import measure_metaworld
from vla_rl.core.registry import KINDS, names
from vla_rl.training.config import RunConfig

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vla_rl", "world_model", "robot_io", "sim", "deploy_trt")
EXAMPLES = ("task", "algorithm", "strategy", "robot", "policy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # there is nothing to choose


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Count, then measure."""
    del options
    return {
        **{f"lines_own_{name}": code_lines(ROOT / "examples" / f"own_{name}") for name in EXAMPLES},
        "options_in_a_run": len(leaf_options(RunConfig())),
        "cli_lines": all_lines(["vla_rl/cli"]),
        "package_lines": all_lines(PACKAGES),
        "parts": {kind: list(names(kind)) for kind in KINDS},
        **measure_metaworld(),
    }


def leaf_options(config: Any, prefix: str = "") -> list[str]:
    """Return the options ``section.key`` of a config, with those of the chosen parts."""
    found = []
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        found += leaf_options(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    rows = [f"| {name} of one's own, lines of code | {result[f'lines_own_{name}']} |" for name in EXAMPLES]
    return "\n".join(
        [
            "| | |",
            "|---|---|",
            *rows,
            f"| options in a run with the default algorithm, strategy and policy | {result['options_in_a_run']} |",
            f"| lines of `vla_rl/cli` | {result['cli_lines']} |",
            f"| lines of the five packages | {result['package_lines']} |",
            f"| tasks of Meta-World | {result['metaworld_tasks']} |",
            f"| their steps/s with two 64 px cameras | {result['metaworld_steps_per_s_two_cameras']:.0f} |",
            f"| of the bare environment's | {result['bare_ratio_metaworld']:.2f} |",
            "",
            f"{result['machine']['cpu']}, one process. Command: `{result['command']}`.",
        ]
    )


def code_lines(folder: Path) -> int:
    """Lines of a folder's Python files that hold code: no blanks, comments or docstrings."""
    return sum(len(_lines_with_code(file.read_text())) for file in sorted(folder.rglob("*.py")))


def _lines_with_code(source: str) -> set[int]:
    tree = ast.parse(source)
    told = {line for node in _docstrings(tree) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return {number for number, text in lines if text.strip() and not text.lstrip().startswith("#")} - told


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    """Every docstring, also one of an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def all_lines(folders: list[str] | tuple[str, ...]) -> int:
    """Lines of the Python files that the repository has in some folders, whatever stands in them."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *(f"{folder}/**.py" for folder in folders)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sum(len((ROOT / name).read_text().splitlines()) for name in listed.stdout.splitlines())
