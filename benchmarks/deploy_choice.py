"""The cost of best-of-N selection. `python -m benchmarks deploy-choice` times the decision alone, in torch and as graph
`selection`, and compares what they select. `deploy` times whole chunks with it, as one of its cells.

Policy, critic and residual are those of `configs/imagined.yaml` with random weights: the cost does not depend on what
has been learned.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import block_ms, perturb
from vla_rl.core.protocols import Policy

DRAWS = (8, 32)
_CONFIG = Path("configs/imagined.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decisions", type=int, default=1000, help="of each of the two that take turns")


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    model, learning = random_policy()
    with tempfile.TemporaryDirectory() as folder:
        policies = _policies(model, learning, Path(folder), ("edited",))
        rows = [_decisions(policies, draws, options.decisions) for draws in DRAWS]
    gap = max(row["max_difference"] for row in rows)
    return {"decide_ms": rows[0]["graph_ms"], "max_difference": gap, "policy": str(_CONFIG), "rows": rows}


def table(result: dict[str, Any]) -> str:
    """Markdown: the decision alone."""
    lines = ["| candidates | torch, ms | graph `selection`, ms | largest difference |", "|---|---|---|---|"]
    for row in result["rows"]:
        times = f"{row['torch_ms']:.2f} | {row['graph_ms']:.2f}"
        lines.append(f"| {row['draws']} | {times} | {row['max_difference']:.1e} |")
    described = "One decision, from drawn candidates to the chosen chunk; median CPU time of one thread, in turns."
    return "\n".join([*lines, "", f"{described} {result['machine']['cpu']}. Command: `{result['command']}`."])


def _decisions(policies: dict[str, Any], draws: int, count: int) -> dict[str, Any]:
    """CPU milliseconds a decision, on random candidates, and the largest difference of actions and values."""
    import torch

    from vla_rl.policies.best_of_n import best_index

    acting, program = policies[f"torch {draws} edited"], policies[f"onnx {draws} edited"].program
    model, selector = acting.model, acting.selector
    rng, info = np.random.default_rng(0), program.manifest.graphs["selection"].inputs
    spent_ms: dict[str, list[float]] = {"torch": [], "graph": []}
    gaps = []
    free = np.ones(model.horizon, np.float32)
    for index in range(count):
        seen, noise, drawn = (
            rng.standard_normal(info[name].shape, np.float32) for name in ("features", "noise", "drawn")
        )
        tensors = [torch.from_numpy(array) for array in (seen, np.array([index], np.float32), noise, drawn, free)]
        started_s = time.thread_time()
        candidates, values = selector.judged(model, *tensors, 0)
        best = int(best_index(candidates, values)[0])
        between_s = time.thread_time()
        selected = program.select(program.backend.put(seen), index, noise[0], drawn[0], free, 0)
        ended_s = time.thread_time()
        spent_ms["torch"].append(1e3 * (between_s - started_s))
        spent_ms["graph"].append(1e3 * (ended_s - between_s))
        pairs = [(selected.values, values[0].numpy()), (selected.actions, candidates[0, best].numpy())]
        gaps += [float(np.abs(ours - theirs).max()) for ours, theirs in pairs]
    times = {f"{name}_ms": statistics.median(each) for name, each in spent_ms.items()}
    return {"draws": draws, "decisions": count, **times, "max_difference": max(gaps)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a chunk, medians over blocks in which all policies take turns, and ratios to the plain policy of the
    same block, on one thread.
    """
    from deploy_trt.export.deployment import random_observations

    model, learning = random_policy()
    observation = random_observations(model.spec, model.statistics.state)[0]
    with tempfile.TemporaryDirectory() as folder:
        policies = _policies(model, learning, Path(folder))
        blocks: list[dict[str, float]] = []
        for block in range(options.blocks + 1):
            times = {name: block_ms(policy, observation) for name, policy in policies.items()}
            if block:  # the first one warms up
                blocks.append(times)
    rows = []
    for name in policies:
        how, draws, residuals = name.split()
        ratio = statistics.median(times[name] / times[f"{how} 0 -"] for times in blocks)
        wall_ms = statistics.median(times[name] for times in blocks)
        rows.append({"kind": how, "draws": int(draws), "edit": residuals == "edited", "ms": wall_ms, "ratio": ratio})
    return {"policy": str(_CONFIG), "blocks": options.blocks, "choices": rows}


def random_policy() -> tuple[Any, Any]:
    """Return the policy of `configs/alone.yaml` with random weights, and the options of its learning."""
    import torch

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
    return model.eval(), config.learning


def random_selector(model: Any, learning: Any, draws: int, has_residual: bool = True) -> Any:
    """Return critic and residual of `configs/alone.yaml` with random weights, for a number of candidates."""
    from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic
    from vla_rl.policies.residual import Residual

    critic, residual = ChunkCritic(model, learning.critic), Residual(model) if has_residual else None
    for part in (critic, residual):
        if part is not None:
            perturb(part, draws)
    return BestOfN(critic, BestOfNConfig(num_samples=draws, offset_std=0.0), residual)


def _policies(model: Any, learning: Any, folder: Path, kinds: Sequence[str] = ("drawn", "edited")) -> dict[str, Policy]:
    """By kind, draws (0: the plain policy) and whether candidates are adjusted."""
    from deploy_trt.export import export_flow_vla
    from deploy_trt.runtime import load_deployed
    from vla_rl.core.metadata import CRITIC_FOLDER
    from vla_rl.policies.checkpoint import save_selector

    plain = folder / "plain"
    export_flow_vla(model, plain, {})
    found: dict[str, Policy] = {"torch 0 -": model.acting(), "onnx 0 -": load_deployed(plain, require="ort-cpu")}
    for draws in DRAWS:
        for name in kinds:
            selector = random_selector(model, learning, draws, name == "edited")
            place = folder / f"{draws}-{name}"
            save_selector(place / CRITIC_FOLDER, selector)
            export_flow_vla(model, place / "out", {}, policy_folder=place)
            acting = model.acting()
            acting.selector = selector
            found |= {f"torch {draws} {name}": acting}
            found |= {f"onnx {draws} {name}": load_deployed(place / "out", require="ort-cpu")}
    return found


def ratios(cell: dict[str, Any]) -> dict[str, float]:
    """The scalars of the result: how many times as long as without a choice a chunk takes, with the residual."""
    return {f"choose_{row['draws']}_{row['kind']}": row["ratio"] for row in cell["choices"] if row["edit"]}


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
    described = "Policy, critic and edit of `configs/imagined.yaml`, one thread; medians of blocks that take turns."
    return [*lines, "", described]
