"""The size of the package, counted by program, and digests of the policies of small fixed runs.

Code lines are lines without blanks, comments and docstrings. What a module stands on is all of this package that it
imports when it is imported, by its syntax. Options are those of the resolved config of a run. One is unused if no
preset, page, example, plugin or benchmark has its name, unless it describes a robot, a task or who takes over.

Example: python -m benchmarks house
"""

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.docs_commands import ROOT
from benchmarks.doors import leaf_options
from benchmarks.practices import METHODS
from vla_rl.core.config import load_config
from vla_rl.training.config import RunConfig

_USERS = ("configs", "README.md", "docs", "examples", "plugins", "benchmarks")
_DECLARATIONS = ("task.declare.", "gate.", "takeover.")
PACKAGES = ("vla_rl", "world_model", "robot_io", "sim", "deploy_trt")
# The fixed runs: a demo, methods of the benchmark `outcomes` that share a supervised policy, and a fine-tune from the
# episodes of one of them.
_BRIEF = ["budget.steps_per_round=40", "budget.evaluation_episodes=8", "workers=0", "torch_threads=1"]
_DEMO = ["--config", "demo", *_BRIEF, "budget.demonstrations=4", "budget.supervised_steps=60", "budget.rounds=2"]
_DEMO += ["budget.episodes_per_round=12"]
_ALONE = ["--config", "imagined", *_BRIEF, "task.difficulty=0", "budget.demonstrations=6"]
_ALONE += ["budget.supervised_steps=250", "budget.episodes_per_round=24", "supervised.actor.precision=float32"]
_OF_OUTCOMES = ("imagined_edit", "residual_ppo", "habc", "filtered_bc")
_FINETUNE = ["steps=60", "checkpoint_every=30", "learning.actor.batch_size=32"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tests", type=float, nargs=2, metavar=("NOW_S", "BEFORE_S"), help="of `make test`, by hand")
    parser.add_argument("--keep-digests", action="store_true", help="do not make the small runs anew")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Count, and compare the digests with those of OUT/house.json."""
    file = options.out / "house.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    now = known["digests"] if options.keep_digests else digests()
    ratio = {"test_seconds_ratio": options.tests[0] / options.tests[1]} if options.tests else {}
    return {
        "digests": now,
        "digests_before": known.get("digests_before", now),
        "results_unchanged": now == known.get("digests_before", now),
        **sizes(),
        **interface(),
        **ratio,
    }


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per figure."""
    rows = [
        f"| {name.replace('_', ' ')} | {value if isinstance(value, int) else round(value, 2)} |"
        for name, value in result.items()
        if isinstance(value, int | float)
    ]
    return "\n".join(["| what | counted |", "|---|---|", *rows, "", f"Command: `{result['command']}`."])


def sizes() -> dict[str, int]:
    """Count the lines and what the algorithms stand on."""
    flagship = closure("vla_rl.algorithms.imagined_edit")
    return {
        "package_lines": sum(map(_lines, _modules().values())),
        "package_code_lines": sum(map(code_lines, _modules().values())),
        "flagship_files": len(flagship),
        "flagship_code_lines": sum(code_lines(_modules()[name]) for name in flagship),
        "filtered_bc_files": len(closure("vla_rl.algorithms.cloning")),
        "options_habc": len(options("habc")),
        "options_imagined_edit": len(options("imagined_edit")),
        "options_unused": len(options_unused()),
    }


def interface() -> dict[str, float]:
    """Measure the public interface: its names, the cost of its import, and a whole script at test size."""
    code = "import time; t = time.perf_counter(); import vla_rl; print(time.perf_counter() - t, len(vla_rl.__all__))"
    took = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    readings = [ran.stdout.split() for ran in took]
    script = ROOT / "examples" / "scripts" / "train_from_demonstrations.py"
    small = f"import runpy; runpy.run_path({str(script)!r})['main'](episodes=4, steps=20, evaluated=8)"
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", small], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        quickstart_s = time.perf_counter() - begun_s
    parsers = [name for name, file in _modules().items() if "import argparse" in file.read_text()]
    return {
        "public_names": int(readings[0][1]),
        "import_ms": 1e3 * min(float(seconds) for seconds, _ in readings),
        "quickstart_s": quickstart_s,
        "argparse_outside_cli": sum(not name.startswith("vla_rl.cli.") for name in parsers),
    }


def options(algorithm: str) -> list[str]:
    """List the options of the resolved config of a run of an algorithm."""
    return leaf_options(load_config(RunConfig, overrides=[f"algorithm={algorithm}"]))


def options_unused() -> set[str]:
    """Find the options of both algorithms that nothing but a test sets or names."""
    found = subprocess.run(["git", "ls-files", *_USERS], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in found.split() if name.endswith((".yaml", ".md", ".py", ".ipynb"))]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    every = {*options("habc"), *options("imagined_edit")}
    return {name for name in every if name.rpartition(".")[2] not in words and not name.startswith(_DECLARATIONS)}


def _modules() -> dict[str, Path]:
    """Name -> file of every module of the package."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {_name(file): file for file in files}


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def code_lines(file: Path) -> int:
    """Count lines that are no blanks, comments or docstrings."""
    text = file.read_text()
    found: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in skipped:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def closure(module: str) -> set[str]:
    """Find all modules of the package that a module imports, and those import, at import time; with itself."""
    modules, found, due = _modules(), set[str](), [module]
    while due:
        name = due.pop()
        if name in modules and name not in found:
            found.add(name)
            due += [*_imports(name, modules), name.rpartition(".")[0]]
    return found


def _imports(name: str, modules: dict[str, Path]) -> Iterator[str]:
    for node in _at_import(ast.parse(modules[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        checks_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if not checks_types and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _at_import(child)


def digests() -> dict[str, str]:
    """Make the small fixed runs and return a digest of each policy's weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _verb(["train", *_DEMO], folder / "demo")
        _verb(["train", *_ALONE, "budget.rounds=0"], folder / "base")
        for method in _OF_OUTCOMES:
            changes = [change for change in METHODS[method] if not change.startswith("budget.")]
            if method == "imagined_edit":
                changes += ["learning.distill_steps=20", "learning.actor.precision=float32"]
            shared = ["--from", str(folder / "base"), "budget.rounds=1"]
            _verb(["train", *_ALONE, *changes, *shared], folder / method)
        _verb(["finetune", "--data", str(folder / "habc"), *_FINETUNE], folder / "finetune")
        return {name: _digest(files) for name, files in _weights(folder)}


def _weights(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the files of weights of each policy: of itself and of what chooses for it."""
    for policy in sorted(folder.glob("*/policies/version_*")):
        yield f"{policy.parts[-3]} {policy.name.removeprefix('version_')}", sorted(policy.rglob("*.safetensors"))


def _verb(arguments: list[str], out: Path) -> None:
    command = [sys.executable, "-m", "vla_rl.cli.main", *arguments, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _digest(files: list[Path]) -> str:
    """Digest the values of all tensors of files, whatever their names are."""
    values = []
    for file in files:
        with safe_open(file, framework="np") as weights:
            values += [hashlib.sha256(weights.get_tensor(name).tobytes()).digest() for name in weights.keys()]  # noqa: SIM118
    return hashlib.sha256(b"".join(sorted(values))).hexdigest()[:16]
