"""What practice makes of a frozen base policy, by kind of base policy and seed. A call may end after some rounds; the
next one goes on there.
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import Cells, origin
from benchmarks.practices import EARLIER_BUDGET, EARLIER_IMITATION, METHODS
from benchmarks.runs import RunningVerb, evaluations, in_float32, run_verb
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.report.outcomes import metrics_of
from vla_rl.report.sinks import read_records
from vla_rl.report.statistics import wilson_interval

_PRESET = "alone"
_SAME = ["torch_threads=1", "workers=0", "environments_per_worker=64", "budget.evaluation_episodes=200"]
_SAME += EARLIER_BUDGET
_LOGGED = (
    "proxy_unexplained",
    "base_spread",
    "base_asked",
    "base_known",
    "base_s",
    "proxy_s",
    "residual_value",
    "residual_size",
    "residual_gain",
)


class Base(NamedTuple):
    """A frozen base policy.

    Attributes:
        trained: Which supervised policy it is, a key of `_TRAINED`.
        practice: Changes to the config of its practice.
        served: Whether it runs behind ``vla-rl serve``, in a process of its own.
        rounds: Rounds of practice.
        task: Changes to the config of both; empty: the default task.
    """

    trained: str
    practice: list[str]
    served: bool = False
    rounds: int = 3
    task: tuple[str, ...] = ()


def _lerobots(steps: int, batch_size: int) -> list[str]:
    """Return the changes to the config of a supervised policy of lerobot's."""
    sizes = [f"supervised.actor.batch_size={batch_size}", f"supervised.actor.decay_steps={steps}"]
    return ["algorithm=sft", "policy.kind=lerobot", f"budget.supervised_steps={steps}", *sizes]


_LATE = ["execution.strategy=naive"]
_IMAGINED = ["algorithm=imagined_edit", "exploration=0.1"]  # as in the preset `imagined`
_UNIMAGINED = [*METHODS["unimagined"], "exploration=0.1"]
_CAN = (
    "task.env=robosuite/PickPlaceCan-v0",
    "budget.demonstrations=10",
    "budget.evaluation_episodes=100",
    "environments_per_worker=8",  # one takes 300 MB
)
_TRAINED = {
    "flow": [],
    "act": _lerobots(1500, 32),
    "act_can": _lerobots(1500, 32),
    "diffusion": _lerobots(1500, 16),
}
"""Supervised policy -> changes to the config of its training."""
BASES = {
    "flow_opaque": Base("flow", ["policy.draws=9"]),  # one of zero noise, and eight candidates
    "deterministic": Base("flow", []),
    "act": Base("act", []),
    "act_can": Base("act_can", [], task=_CAN),
    "diffusion": Base("diffusion", []),
    **{f"delay_{ticks}": Base("flow", [*_LATE, f"latency.typical={ticks}"]) for ticks in (4, 8)},
    "remote": Base("flow", [*_LATE, "latency.unit=ms", "latency.typical=80"], served=True),
    "imagined": Base("flow", _IMAGINED, rounds=1),
    "unimagined": Base("flow", _UNIMAGINED, rounds=1),
    "imagined_act": Base("act", _IMAGINED, rounds=1),
    "unimagined_act": Base("act", _UNIMAGINED, rounds=1),
}
_PAIRED = (("imagined", "unimagined"), ("imagined_act", "unimagined_act"))
"""Rows with and without short model rollouts."""
_PORT = 18_460
"""Of the server of seed 0; the next seeds take the next ports. A run that goes on finds its base policy there."""


def measure(out: Path, runs: Path, bases: Sequence[str], seeds: Sequence[int], rounds: int) -> dict[str, Any]:
    """Run the missing rounds of each cell, at most ``rounds`` of them, and gather the cells.

    Args:
        out: Folder of results.
        runs: Folder of the runs.
        bases: Keys of `BASES`.
        seeds: Seeds of the runs.
        rounds: Largest number of new rounds per cell; 0: only the supervised base policy.
    """
    config = read_yaml(config_file(_PRESET))
    del config["budget"]["compare_episodes"]
    config["budget"] |= {"steps_per_demonstration": 50, "steps_per_round": 800}
    config["learning"] = {"discount": 0.997}
    cells = Cells(out / "any_policy", {"config": config})
    for seed in seeds:
        for base in bases:
            if f"{base}-{seed}" not in cells and (found := _advance(base, seed, runs / cells.digest, rounds)):
                cells.write(f"{base}-{seed}", found)
    native = out.glob("outcomes/PegInsert-*-residual_td.json")
    return summary(cells.read(), [json.loads(file.read_text()) for file in native])


def summary(cells: list[dict[str, Any]], native: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Mean gain in points by base policy, whether all of them stayed as they were, and what a delay costs.

    Args:
        cells: Of this benchmark.
        native: Cells of the benchmark `outcomes`, of policies that also imitate their successes.
    """
    found: dict[str, Any] = {"gain_cells": cells}
    last: dict[str, dict[int, float]] = {base: {} for base in BASES}
    for base in BASES:
        own = [cell for cell in cells if cell["base"] == base]
        if own:
            gains = [cell["practiced"][-1]["success"] - cell["supervised"]["success"] for cell in own]
            episodes = 150 * BASES[base].rounds
            found[f"gain_{episodes}_points_{base}"] = 100 * sum(gains) / len(own)
            found[f"gain_{episodes}_{base}_seeds"] = len(own)
            found[f"base_unchanged_{base}"] = int(all(cell["base_unchanged"] for cell in own))
            last[base] = {cell["seed"]: cell["practiced"][-1]["success"] for cell in own}
    for ticks in (4, 8):
        delayed, prompt = last[f"delay_{ticks}"], last["deterministic"]
        if delayed and delayed.keys() <= prompt.keys():
            found[f"delay_{ticks}_success_ratio"] = sum(delayed.values()) / sum(prompt[seed] for seed in delayed)
    added = [
        last[imagined][seed] - last[unimagined][seed]
        for imagined, unimagined in _PAIRED
        for seed in last[imagined].keys() & last[unimagined].keys()
    ]
    if added:
        found["works_with_black_box_points"] = 100 * sum(added) / len(added)
        found["works_with_black_box_pairs"] = len(added)
    imitating, opaque = {cell["seed"]: cell["practised"]["success"] for cell in native}, last["flow_opaque"]
    if opaque and opaque.keys() <= imitating.keys():
        gaps = [imitating[seed] - success for seed, success in opaque.items()]
        found["gap_to_native_points"] = 100 * sum(gaps) / len(gaps)
    if cells:
        rounds = [(entry, cell["supervised"]) for cell in cells for entry in cell["practiced"]]
        found["never_worse"] = sum(_is_worse(entry, base) for entry, base in rounds)
    return found


def _is_worse(entry: dict[str, Any], base: dict[str, Any]) -> bool:
    """Whether a round ends below the base policy by more than its interval."""
    _, high = wilson_interval(_successes(entry), entry["episodes"])
    return high < float(base["success"])


def _successes(entry: dict[str, Any]) -> int:
    return round(entry["success"] * entry["episodes"])


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown of the cells."""
    lines = [
        "| base policy | seed | supervised | 150 episodes | 300 | 450 | unexplained by the proxy |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        shown = " | ".join(_interval(entry) for entry in (cell["supervised"], *cell["practiced"]))
        shown += " | " * (3 - len(cell["practiced"]))
        errors = ", ".join(f"{100 * entry['proxy_unexplained']:.1f} %" for entry in cell["practiced"])
        lines.append(f"| {cell['base']} | {cell['seed']} | {shown} | {errors} |")
    return "\n".join([*lines, "", origin(cells)])


def _advance(base: str, seed: int, runs: Path, rounds: int) -> dict[str, Any] | None:
    """Go on with a cell; returns it when its last round has been played."""
    from benchmarks.any_policy.serving import served_policy

    trained, of_practice, served, last, task = BASES[base]
    first, folder = runs / f"supervised-{trained}-{seed}", runs / f"{base}-{seed}"
    policy, of_base = first / "policies" / "version_0000", _TRAINED[trained]
    of_seed = ["train", "--config", _PRESET, f"seed={seed}", *_SAME, *in_float32(_PRESET), *task]
    if of_base:
        of_base = [*of_base, f"policy.folder={_described(trained, runs / trained)}"]
    run_verb([*of_seed, "budget.rounds=0", *of_base], first)
    weights = cache_key(policy)
    serving = served_policy(policy, _PORT + seed) if served else contextlib.nullcontext(str(policy))
    with serving as source:
        proxy = [
            *EARLIER_IMITATION,
            "budget.supervised_steps=1",
            "policy.kind=proxy",
            f"policy.base={source}",
            f"task.demonstrations={first / 'episodes'}",
        ]
        log = folder.with_name(f"{folder.name}.log")
        for _ in range(rounds):
            done = len(evaluations(folder)) - 1 if (folder / "summary.json").exists() else 0
            if done < 1:
                run_verb([*of_seed, "budget.rounds=1", *proxy, *of_practice], folder)
            elif done < last:
                resumed = [sys.executable, "-m", "vla_rl.cli.main", "train", "--resume", str(folder)]
                RunningVerb([*resumed, f"budget.rounds={done + 1}"], log).wait_or_fail()
    played = evaluations(folder) if (folder / "summary.json").exists() else []
    if len(played) <= last:
        return None
    records = [*read_records(folder / "metrics.jsonl")]
    logged = [metrics_of(records, number) for number in range(last + 1)]
    entries = [
        {"success": entry["successes"] / entry["episodes"], "episodes": entry["episodes"]}
        | {name: round(logs[name], 4) for name in _LOGGED if name in logs}
        for entry, logs in zip(played, logged, strict=True)
    ]
    asked = (folder / "base_chunks" / "base.txt").read_text().strip()
    unchanged = asked == (f"{source} version 0" if served else weights) and cache_key(policy) == weights
    supervised, practiced = entries[0], entries[1:]
    return {
        "base": base,
        "seed": seed,
        "supervised": supervised,
        "practiced": practiced,
        "base_unchanged": int(unchanged),
    }


def _described(kind: str, folder: Path) -> Path:
    """Write the description of a small policy of lerobot's; its features are those of the robot."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig

    config: ACTConfig | DiffusionConfig
    if kind.startswith("act"):
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
    else:
        config = DiffusionConfig(
            n_obs_steps=2,
            horizon=16,
            n_action_steps=15,
            down_dims=(64, 128),
            noise_scheduler_type="DDIM",
            num_inference_steps=10,
            prediction_type="sample",  # of the noise, 1,500 steps learn too little: 1 success in 200
            use_group_norm=True,
            use_separate_rgb_encoder_per_camera=False,
            pretrained_backbone_weights=None,
            device="cpu",
        )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    return folder


def _interval(entry: dict[str, Any]) -> str:
    low, high = wilson_interval(_successes(entry), entry["episodes"])
    return f"{entry['success']:.0%} [{100 * low:.0f}, {100 * high:.0f}]"
