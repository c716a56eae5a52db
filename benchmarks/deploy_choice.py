"""The cost of best-of-N selection, in torch and deployed: of a whole chunk, and of the decision alone. `deploy` also
measures it, as one of its cells.

Policy, critic and residual are those of `configs/alone.yaml` with random weights: the cost does not depend on what has
been learned.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import BLOCK_CHUNKS, block_ms, perturb
from vla_rl.core.protocols import Policy

DRAWS = (8, 32)
_DECISIONS = 1000
_CONFIG = Path("configs/alone.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=40, help=f"blocks of {BLOCK_CHUNKS} chunks for each policy")


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    cell = measure(options)
    return {"decide_ms": cell["decide_ms"][str(DRAWS[0])], **ratios(cell), **cell}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a chunk, medians over blocks in which all policies take turns, and ratios to the plain policy of the
    same block, on one thread; and milliseconds a decision: of all that comes after the candidates are drawn.
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
        decide_ms = {str(draws): _decide_ms(policies[f"onnx {draws} edited"]) for draws in DRAWS}
    rows = []
    for name in policies:
        how, draws, residuals = name.split()
        ratio = statistics.median(times[name] / times[f"{how} 0 -"] for times in blocks)
        wall_ms = statistics.median(times[name] for times in blocks)
        rows.append({"kind": how, "draws": int(draws), "edit": residuals == "edited", "ms": wall_ms, "ratio": ratio})
    return {"policy": str(_CONFIG), "blocks": options.blocks, "choices": rows, "decide_ms": decide_ms}


def _decide_ms(policy: Any) -> float:
    """Milliseconds a decision of a deployed policy, median: the run of graph ``selection`` with inputs and outputs."""
    from deploy_trt.benchmark import time_calls

    program, rng = policy.program, np.random.default_rng(0)
    shapes = {name: info.shape[1:] for name, info in program.manifest.graphs["selection"].inputs.items()}
    arrays = {name: rng.standard_normal(shapes[name], np.float32) for name in ("features", "noise", "drawn")}
    features, free = program.backend.put(arrays["features"][None]), np.ones(policy.horizon, np.float32)
    inputs = (features, 0, arrays["noise"], arrays["drawn"], free, 0)
    return time_calls(lambda: program.select(*inputs), _DECISIONS).p50_ms


def _policies(model: Any, learning: Any, folder: Path) -> dict[str, Policy]:
    """By kind, draws (0: the plain policy) and whether candidates are adjusted."""
    from deploy_trt.export import export_policy
    from deploy_trt.runtime import load_deployed
    from vla_rl.core.metadata import CRITIC_FOLDER
    from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic
    from vla_rl.policies.checkpoint import save_selector
    from vla_rl.policies.residual import Residual

    plain = folder / "plain"
    export_policy(model, plain, {})
    found: dict[str, Policy] = {"torch 0 -": model.acting(), "onnx 0 -": load_deployed(plain, require="ort-cpu")}
    for draws in DRAWS:
        for name, residual in (("drawn", None), ("edited", Residual(model))):
            selector = BestOfN(
                ChunkCritic(model, learning.critic), BestOfNConfig(num_samples=draws, offset_std=0.0), residual
            )
            place = folder / f"{draws}-{name}"
            save_selector(place / CRITIC_FOLDER, selector)
            export_policy(model, place / "out", {}, policy_folder=place)
            acting = model.acting()
            acting.selector = selector
            found |= {f"torch {draws} {name}": acting}
            found |= {f"onnx {draws} {name}": load_deployed(place / "out", require="ort-cpu")}
    return found


def ratios(cell: dict[str, Any]) -> dict[str, float]:
    """The scalars of the result: how many times as long as without a choice a chunk takes, with the residual."""
    return {f"choose_{row['draws']}_{row['kind']}": row["ratio"] for row in cell["choices"] if row["edit"]}


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    return "\n".join([*lines_of(result), f"Command: `{result['command']}`."])


def lines_of(cell: dict[str, Any] | None) -> list[str]:
    """Markdown of a cell."""
    if cell is None:
        return ["What it costs to choose among draws: not measured."]
    lines = ["| a chunk | torch, ms | times plain | ONNX Runtime, ms | times plain |", "|---|---|---|---|---|"]
    rows = {(row["kind"], row["draws"], row["edit"]): row for row in cell["choices"]}
    for draws, residuals in sorted({(draws, residuals) for _, draws, residuals in rows}):
        label = f"best of {draws}{', edited' if residuals else ''}" if draws else "one draw"
        columns = (rows[kind, draws, residuals] for kind in ("torch", "onnx"))
        cells = " | ".join(f"{row['ms']:.2f} | {row['ratio']:.1f}" for row in columns)
        lines.append(f"| {label} | {cells} |")
    described = "Policy, critic and edit of `configs/alone.yaml`, one thread; medians of blocks that take turns."
    decided = [f"{ms:.2f} ms among {draws} candidates" for draws, ms in cell.get("decide_ms", {}).items()]
    decision = [f"A decision takes {' and '.join(decided)}."] if decided else []
    return [*lines, "", described, *decision]
