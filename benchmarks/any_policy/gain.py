"""What practice makes of a frozen base policy, by kind of base policy and seed. A call may end after some rounds; the
next one goes on there.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cells, origin
from benchmarks.outcomes import practice_alone
from benchmarks.runs import RunningVerb, evaluations, in_float32, run_verb
from vla_rl.core.cache_keys import cache_key
from vla_rl.report.outcomes import metrics_of
from vla_rl.report.sinks import read_records
from vla_rl.report.statistics import wilson_interval

_ROUNDS = 3
_SAME = ["torch_threads=1", "workers=0", "environments_per_worker=64", "budget.evaluation_episodes=200"]
_LOGGED = (
    "proxy_unexplained",
    "base_spread",
    "base_asked",
    "base_known",
    "base_s",
    "proxy_s",
    "imagined_gain",
    "imagined_stopped",
)
BASES: dict[str, tuple[list[str], list[str]]] = {
    "flow_opaque": ([], ["policy.draws=9"]),  # one of zero noise, and eight candidates
    "deterministic": ([], []),
    "act": (
        [
            "algorithm=sft",
            "policy.kind=lerobot",
            "budget.supervised_steps=1500",
            "supervised.actor.batch_size=32",
            "supervised.actor.decay_steps=1500",
        ],
        [],
    ),
}
"""Base policy -> changes to the config of its supervised training, and to that of its practice."""


def measure(out: Path, runs: Path, bases: Sequence[str], seeds: Sequence[int], rounds: int) -> dict[str, Any]:
    """Run the missing rounds of each cell, at most ``rounds`` of them, and gather the cells.

    Args:
        out: Folder of results.
        runs: Folder of the runs.
        bases: Keys of `BASES`.
        seeds: Seeds of the runs.
        rounds: Largest number of new rounds per cell; 0: only the supervised base policy.
    """
    cells = Cells(out / "any_policy", {"config": practice_alone()})
    for seed in seeds:
        for base in bases:
            if f"{base}-{seed}" not in cells and (found := _advance(base, seed, runs / cells.digest, rounds)):
                cells.write(f"{base}-{seed}", found)
    return summary(cells.read())


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean gain in points by base policy, and whether all of them stayed as they were."""
    found: dict[str, Any] = {"gain_cells": cells}
    for base in BASES:
        own = [cell for cell in cells if cell["base"] == base]
        if own:
            gains = [cell["practiced"][-1]["success"] - cell["supervised"]["success"] for cell in own]
            found[f"gain_450_points_{base}"] = 100 * sum(gains) / len(own)
            found[f"gain_450_{base}_seeds"] = len(own)
            found[f"base_unchanged_{base}"] = int(all(cell["base_unchanged"] for cell in own))
    return found


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown of the cells."""
    lines = [
        "| base policy | seed | supervised | 150 episodes | 300 | 450 | unexplained by the proxy |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        shown = " | ".join(_interval(entry) for entry in (cell["supervised"], *cell["practiced"]))
        errors = ", ".join(f"{100 * entry['proxy_unexplained']:.1f} %" for entry in cell["practiced"])
        lines.append(f"| {cell['base']} | {cell['seed']} | {shown} | {errors} |")
    return "\n".join([*lines, "", origin(cells)])


def _advance(base: str, seed: int, runs: Path, rounds: int) -> dict[str, Any] | None:
    """Go on with a cell; returns it when its last round has been played."""
    of_base, of_practice = BASES[base]
    first, folder = runs / f"{'act' if of_base else 'flow'}-{seed}", runs / f"{base}-{seed}"
    policy = first / "policies" / "version_0000"
    of_seed = ["train", "--config", "imagined", f"seed={seed}", *_SAME, *in_float32("imagined")]
    if any(change == "policy.kind=lerobot" for change in of_base):
        of_base = [*of_base, f"policy.folder={_act(runs / 'act')}"]
    run_verb([*of_seed, "budget.rounds=0", *of_base], first)
    proxy = [
        "budget.supervised_steps=1",
        "policy.kind=proxy",
        f"policy.base={policy}",
        f"task.demonstrations={first / 'episodes'}",
    ]
    for _ in range(rounds):
        done = len(evaluations(folder)) - 1 if (folder / "summary.json").exists() else 0
        if done < 1:
            run_verb([*of_seed, "budget.rounds=1", *proxy, *of_practice], folder)
        elif done < _ROUNDS:
            resumed = [sys.executable, "-m", "vla_rl.cli.main", "train", "--resume", str(folder)]
            RunningVerb([*resumed, f"budget.rounds={done + 1}"], folder.with_name(f"{folder.name}.log")).wait_or_fail()
    played = evaluations(folder) if (folder / "summary.json").exists() else []
    if len(played) <= _ROUNDS:
        return None
    records = [*read_records(folder / "metrics.jsonl")]
    logged = [metrics_of(records, number) for number in range(_ROUNDS + 1)]
    entries = [
        {"success": entry["successes"] / entry["episodes"], "episodes": entry["episodes"]}
        | {name: round(logs[name], 4) for name in _LOGGED if name in logs}
        for entry, logs in zip(played, logged, strict=True)
    ]
    unchanged = (folder / "base_chunks" / "base.txt").read_text().strip() == cache_key(policy)
    supervised, practiced = entries[0], entries[1:]
    return {
        "base": base,
        "seed": seed,
        "supervised": supervised,
        "practiced": practiced,
        "base_unchanged": int(unchanged),
    }


def _act(folder: Path) -> Path:
    """Write the description of a small ACT of lerobot's; its features are those of the robot."""
    from lerobot.policies.act.configuration_act import ACTConfig

    if not (folder / "config.json").exists():
        config = ACTConfig(
            chunk_size=16,
            n_action_steps=16,
            dim_model=128,
            n_heads=4,
            dim_feedforward=512,
            n_encoder_layers=2,
            n_decoder_layers=1,
            use_vae=False,
            pretrained_backbone_weights=None,
            device="cpu",
        )
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        assert json.loads((folder / "config.json").read_text())["type"] == "act"
    return folder


def _interval(entry: dict[str, Any]) -> str:
    low, high = wilson_interval(round(entry["success"] * entry["episodes"]), entry["episodes"])
    return f"{entry['success']:.0%} [{100 * low:.0f}, {100 * high:.0f}]"
