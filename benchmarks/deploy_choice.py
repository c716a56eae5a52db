"""What it costs to draw several chunks and to choose one of them, in torch and deployed: a cell of `deploy`.

The policy, the critic and the edit are those of `configs/alone.yaml`, with weights of chance: what a chunk costs does
not depend on what has been learnt.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import block_ms, perturb
from vla_rl.core.protocols import Policy

DRAWS = (8, 32)
_CONFIG = Path("configs/alone.yaml")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a chunk, medians over blocks in which all policies take turns, and ratios to the plain policy of the
    same block, on one thread.
    """
    import torch

    from deploy_trt.export.deployment import random_observations
    from vla_rl.core.config import load_config
    from vla_rl.core.normalization import Statistics
    from vla_rl.policies.folders import policy_class
    from vla_rl.training.config import RunConfig
    from vla_rl.training.simulator import SimulatorWorker

    config = load_config(RunConfig, _CONFIG)
    spec = SimulatorWorker(config).spec
    torch.manual_seed(0)
    state, action = (torch.randn(50, size).numpy() for size in (spec.state_dim, spec.action_dim))
    model = policy_class(config.policy.kind).build(config.policy, spec, Statistics.from_arrays(state, action))
    perturb(model, 0)
    observation = random_observations(spec, model.statistics.state)[0]
    with tempfile.TemporaryDirectory() as folder:
        policies = _policies(model.eval(), config.learning, Path(folder))
        blocks: list[dict[str, float]] = []
        for block in range(options.blocks + 1):
            times = {name: block_ms(policy, observation) for name, policy in policies.items()}
            if block:  # the first one warms up
                blocks.append(times)
    rows = []
    for name in policies:
        how, draws, edits = name.split()
        ratio = statistics.median(times[name] / times[f"{how} 0 -"] for times in blocks)
        wall_ms = statistics.median(times[name] for times in blocks)
        rows.append({"kind": how, "draws": int(draws), "edit": edits == "edited", "ms": wall_ms, "ratio": ratio})
    return {"policy": str(_CONFIG), "blocks": options.blocks, "choices": rows}


def _policies(model: Any, learning: Any, folder: Path) -> dict[str, Policy]:
    """By kind, draws (0: the plain policy) and whether candidates are edited."""
    from deploy_trt.export import export_policy
    from deploy_trt.runtime import load_deployed
    from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser, ChunkCritic
    from vla_rl.policies.editing import Edit

    plain = folder / "plain"
    export_policy(model, plain, {})
    found: dict[str, Policy] = {"torch 0 -": model.acting(), "onnx 0 -": load_deployed(plain, require="ort-cpu")}
    for draws in DRAWS:
        for name, edit in (("drawn", None), ("edited", Edit(model))):
            chooser = Chooser(ChunkCritic(model, learning.critic), ChoiceConfig(draws=draws, offset=0.0), edit)
            place = folder / f"{draws}-{name}"
            chooser.save(place / FOLDER)
            export_policy(model, place / "out", {}, policy_folder=place)
            acting = model.acting()
            acting.chooser = chooser
            found |= {f"torch {draws} {name}": acting}
            found |= {f"onnx {draws} {name}": load_deployed(place / "out", require="ort-cpu")}
    return found


def ratios(cell: dict[str, Any]) -> dict[str, float]:
    """The scalars of the result: how many times as long as without a choice a chunk takes, with the edit."""
    return {f"choose_{row['draws']}_{row['kind']}": row["ratio"] for row in cell["choices"] if row["edit"]}


def table(cell: dict[str, Any] | None) -> list[str]:
    """Markdown."""
    if cell is None:
        return ["What it costs to choose among draws: not measured."]
    lines = ["| a chunk | torch, ms | times plain | ONNX Runtime, ms | times plain |", "|---|---|---|---|---|"]
    rows = {(row["kind"], row["draws"], row["edit"]): row for row in cell["choices"]}
    for draws, edits in sorted({(draws, edits) for _, draws, edits in rows}):
        label = f"best of {draws}{', edited' if edits else ''}" if draws else "one draw"
        columns = (rows[kind, draws, edits] for kind in ("torch", "onnx"))
        cells = " | ".join(f"{row['ms']:.2f} | {row['ratio']:.1f}" for row in columns)
        lines.append(f"| {label} | {cells} |")
    described = "Policy, critic and edit of `configs/alone.yaml`, one thread; medians of blocks that take turns."
    return [*lines, "", described]
