"""The policies of the strategies: one per variant of training, from the same demonstrations and with the same number of
gradient steps. Each is a resumable run of ``vla-rl train``.
"""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.runs import RunningVerb, in_float32, run_verb, short_name
from vla_rl.policies.corrector import FOLDER

LONGEST_DELAY = 8
"""In ticks, of the grid; what prefixes and offsets are trained up to."""

_XIAOMI = (
    "prefix_law=xiaomi",
    f"prefix_max={LONGEST_DELAY}",
    "expert.actions_per_token=1",
    "expert.window=4",
    "expert.rotary=true",
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "prefix": ("prefix_law=linear", f"prefix_max={LONGEST_DELAY}"),
    "xiaomi": _XIAOMI,
    "vlash": (f"future_state_max={LONGEST_DELAY}",),
}
"""Variant -> options of the policy. The residual head of a2c2 is trained on top of ``plain``."""


def run_folder(runs: Path, task: str, variant: str) -> Path:
    """Of the run that trains a variant for a task."""
    return runs / f"{short_name(task)}-{variant}"


def policy_folder(runs: Path, task: str, variant: str) -> Path:
    """Of the trained policy."""
    return run_folder(runs, task, variant) / "policies" / "version_0000"


def train_policies(wanted: Iterable[tuple[str, str]], runs: Path, changes: Sequence[str], jobs: int) -> None:
    """Train what is missing of the (task, variant) pairs, and the residual heads of plain policies.

    Raises:
        UserError: if a run fails; its log says why.
    """

    def train(pair: tuple[str, str]) -> None:
        task, variant = pair
        options = [f"policy.{option}" for option in VARIANTS[variant]]
        arguments = ["train", "--config", "execution", *in_float32("execution"), *changes, f"task.env={task}", *options]
        run_verb(arguments, run_folder(runs, task, variant))
        if variant == "plain" and not (policy_folder(runs, task, variant) / FOLDER / "config.json").exists():
            folder = run_folder(runs, task, variant)
            command = [sys.executable, "-m", "vla_rl.cli.main", "corrector", str(folder)]
            RunningVerb(command, folder.with_name(f"{folder.name}-corrector.log")).wait_or_fail()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, sorted(wanted)))
