"""Deployment on this machine: ONNX Runtime against torch, parity of every policy and precision, and the delay of new
weights. Also the graphs that TensorRT-RTX builds, and success in simulation of the exported policies.

Needs a run with two policy versions (--run). Cells are kept and resumed.
"""

import argparse
import functools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import deploy_choice
from benchmarks.cells import Cells, origin
from benchmarks.runs import evaluations, run_verb
from benchmarks.timing import BLOCK_CHUNKS, block_ms, perturb

if TYPE_CHECKING:
    from deploy_trt.export.graph import GraphSpec

PRECISIONS = ("fp32", "fp16", "int8-dynamic", "int8-static")
LEROBOT = ("act", "diffusion", "smolvla", "pi0")
POLICIES = ("torch", "fp32", "int8-dynamic", "int8-static")  # in the closed loop
EXPLORATION = "int8-dynamic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="a finished run (default: runs/demo)")
    parser.add_argument("--episodes", type=int, default=200, help="of each policy in the closed loop")
    parser.add_argument("--blocks", type=int, default=40, help=f"blocks of {BLOCK_CHUNKS} chunks for each of the two")
    parser.add_argument("--refreshes", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("runs/bench-deploy"), help="intermediate episodes")


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    names = ("run", "episodes", "blocks", "refreshes")
    settings = {name: str(getattr(options, name)) for name in names}
    cells = Cells(options.out / "deploy", settings, _policy(options) if options.run.exists() else None)
    measures: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "speed": _speed,
        "choice": deploy_choice.measure,
        "refresh": _refresh,
        "world-model": _world_model,
        **{f"parity-{precision}": functools.partial(_parity, precision) for precision in PRECISIONS},
        **{f"lerobot-{kind}": functools.partial(_lerobot, kind) for kind in LEROBOT},
        **{f"loop-{policy}": functools.partial(_closed_loop, policy) for policy in POLICIES},
        "exploration": _exploration,
    }
    for name, measure in measures.items():
        if name not in cells:
            cells.write(name, {"cell": name, **measure(options)})
    rows = cells.read()
    found = {row["cell"]: row for row in rows}
    built = [state for row in rows for state in row.get("graphs", {}).values()]
    return {
        "ort_vs_torch_speed": found["speed"]["ratio"],
        "max_abs": max(row["max_abs"] for row in rows if row.get("precision") == "fp32"),
        "refresh_s": max(found["refresh"]["refresh_s"]),
        "missed_ticks": found["refresh"]["missed_ticks"],
        **deploy_choice.ratios(found["choice"]),
        "graphs": len(built),
        "trt_rtx_graphs_built": "not measured" if None in built else sum(built),
        "gpu": "not measured",
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: latency, parity, and success in the closed loop."""
    found = {row["cell"]: row for row in result["rows"]}
    speed, refresh = found["speed"], found["refresh"]
    lines = [
        f"A chunk takes {speed['ort_ms']:.2f} ms on ONNX Runtime and {speed['torch_ms']:.2f} ms in torch, batch 1 on "
        f"one core. This is {result['ort_vs_torch_speed']:.1f} times as fast (medians of alternating blocks). "
        f"New weights act, verified, {result['refresh_s']:.2f} s after their checkpoint is written (slowest of "
        f"{len(refresh['refresh_s'])}); {refresh['missed_ticks']} of {refresh['ticks']} ticks were missed meanwhile. "
        f"TensorRT-RTX builds {result['trt_rtx_graphs_built']} of {result['graphs']} graphs without a GPU. "
        f"On a GPU: {result['gpu']}.",
        "",
        *deploy_choice.lines_of(found.get("choice")),
        "",
        "| policy | precision | max-abs | mean-abs | cosine |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if "cosine" in row:
            figures = f"{row['max_abs']:.1e} | {row['mean_abs']:.1e} | {row['cosine']:.6f}"
            lines.append(f"| {row['policy']} | {row['precision']} | {figures} |")
    lines += ["", "| policy | success | 95 % interval |", "|---|---|---|"]
    for name in POLICIES:
        row = found[f"loop-{name}"]
        low, high = row["interval"]
        label = "in torch" if name == "torch" else f"exported, {name}"
        lines.append(f"| {label} | {row['successes']}/{row['episodes']} | {low:.1%} to {high:.1%} |")
    explored = found["exploration"]
    lines += [
        "",
        f"Practiced in {explored['precision']} and learnt in full precision, the run ends at {explored['successes']}/"
        f"{explored['episodes']}; practiced in full precision, at {explored['full_successes']}/"
        f"{explored['full_episodes']} (one seed).",
    ]
    lines += ["", "Differences are of normalized actions, against the policy in torch, on the same noise.", ""]
    lines.append(f"{origin(result['rows'])} Command: `{result['command']}`.")
    return "\n".join(lines)


def _policy(options: argparse.Namespace) -> Path:
    from vla_rl.acting.policy_folder import find_policy

    return find_policy(options.run).path


def _speed(options: argparse.Namespace) -> dict[str, Any]:
    """Chunks of the run's newest policy, in alternating blocks, so that a busy machine slows both."""
    from deploy_trt.export import export_flow_vla
    from deploy_trt.export.deployment import random_observations
    from deploy_trt.runtime import load_deployed
    from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy

    model, meta = FlowVLA.load(_policy(options))
    reference = FlowVLAPolicy(model)
    observation = random_observations(model.spec, model.statistics.state)[0]
    with tempfile.TemporaryDirectory() as folder:
        export_flow_vla(model, Path(folder), meta)
        deployed = load_deployed(Path(folder), require="ort-cpu")
        torch_ms, ort_ms = [], []
        for block in range(options.blocks + 1):
            pair = [block_ms(policy, observation) for policy in (reference, deployed)]
            if block:  # the first one warms up
                torch_ms.append(pair[0])
                ort_ms.append(pair[1])
    ratio = statistics.median(slow / fast for slow, fast in zip(torch_ms, ort_ms, strict=True))
    return {"ratio": ratio, "torch_ms": statistics.median(torch_ms), "ort_ms": statistics.median(ort_ms)}


def _refresh(options: argparse.Namespace) -> dict[str, Any]:
    """A policy plans at every tick of the robot while newer versions appear in a watched folder."""
    from deploy_trt.export import export_flow_vla
    from deploy_trt.export.deployment import random_observations
    from deploy_trt.runtime import load_deployed
    from deploy_trt.runtime.refresh import watch
    from vla_rl.policies.flow_vla import FlowVLA

    model, _ = FlowVLA.load(_policy(options))
    observation = random_observations(model.spec, model.statistics.state)[0]
    seconds: list[float] = []
    missed = ticks = 0
    with tempfile.TemporaryDirectory() as name:
        folder, policies = Path(name) / "deployment", Path(name) / "policies"
        export_flow_vla(model, folder, {"policy_version": 0})
        deployed = load_deployed(folder, require="ort-cpu")
        period_s, done = 1 / model.spec.control_hz, threading.Event()
        with watch(deployed, policies, period_s=0.05):
            for version in range(1, options.refreshes + 1):
                perturb(model, version)
                model.save(policies / f"version_{version:04d}", {"policy_version": version})
                started_s = next_s = time.perf_counter()
                while deployed.version < version:
                    deployed.infer(observation)
                    ticks += 1
                    next_s += period_s
                    missed += time.perf_counter() > next_s
                    done.wait(max(0.0, next_s - time.perf_counter()))
                seconds.append(time.perf_counter() - started_s)
    return {"refresh_s": seconds, "missed_ticks": missed, "ticks": ticks, "period_s": period_s}


def _parity(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """The run's policy in a precision against torch, on observations of the run, and what TensorRT-RTX builds."""
    from deploy_trt.export import export_flow_vla
    from vla_rl.policies.flow_vla import FlowVLA

    model, meta = FlowVLA.load(_policy(options))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "full"
        half = precision == "fp16"
        export_flow_vla(
            model, folder, meta, "fp16" if half else "fp32", observations=_observations(options, 32, skip=1)
        )
        if precision.startswith("int8"):
            from deploy_trt.quantize import quantize_deployment

            quantize_deployment(folder, Path(name) / "int8", precision, _observations(options, 64), check=False)
            folder = Path(name) / "int8"
        # Graphs of ONNX Runtime's own quantisation are not meant for TensorRT.
        graphs = {} if precision.startswith("int8") else {"graphs": _built(folder)}
        return {"policy": "flow_vla", "precision": precision, **_difference(folder), **graphs}


def _observations(options: argparse.Namespace, count: int, skip: int = 0) -> Any:
    """From the run's episodes; those for calibration and those for comparison differ."""
    from vla_rl.data.sources import read_observations

    return read_observations(options.run / "episodes", 2 * count)[skip::2][:count]


def _difference(folder: Path) -> dict[str, Any]:
    from deploy_trt.runtime import Deployment, open_backend
    from deploy_trt.runtime.ladder import difference
    from deploy_trt.runtime.program import Program, probe_actions

    deployment = Deployment.read(folder)
    probes = deployment.probes()
    program = Program(deployment.manifest, open_backend(deployment, "ort-cpu"))
    return vars(difference(probe_actions(program, probes), list(probes["actions"])))


def _built(folder: Path) -> dict[str, bool | None]:
    """Graph -> whether TensorRT-RTX built it without a GPU; None where the library is missing."""
    from deploy_trt.build import build_engines, rtx_without_gpu
    from deploy_trt.runtime import load_manifest
    from vla_rl.core.errors import UserError

    names = load_manifest(folder).graphs
    if rtx_without_gpu():
        return dict.fromkeys(names)
    try:
        built = {engine.graph for engine in build_engines(folder, "trt-rtx", without_gpu=True)}
    except UserError:
        built = set()
    return {name: name in built for name in names}


def _lerobot(kind: str, _: argparse.Namespace) -> dict[str, Any]:
    from deploy_trt.export.lerobot import export_lerobot
    from tests.fakes import lerobot_tiny

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = lerobot_tiny.make(kind, folder)
        lerobot_tiny.write_tokenizer(folder / "words.json")
        tiny = (lerobot_tiny.SPEC, lerobot_tiny.statistics(), lerobot_tiny.IMAGE_STATISTICS)
        export_lerobot(policy, folder / "out", *tiny, folder / "words.json")
        graphs = _built(folder / "out")
        return {"policy": f"{kind} (tiny)", "precision": "fp32", **_difference(folder / "out"), "graphs": graphs}


def world_model_step() -> "GraphSpec":
    """The step of a world model's dynamics as one graph: features [1, F] and a chunk -> later ones, chance of success.

    It goes on in the mean of all members. One feature never varies.
    """
    import torch

    from deploy_trt.export.graph import GraphSpec
    from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions

    torch.manual_seed(0)
    count, ticks = 64, 6
    features, actions, later = torch.randn(count, 32), torch.randn(count, ticks, 8), torch.randn(count, 32)
    features[:, 3] = later[:, 3] = 1.0
    yes, length = torch.ones(count, dtype=torch.bool), torch.arange(count) % ticks + 1
    data = Transitions(features, actions, length, later, yes, ~yes, yes)
    dynamics = FeatureDynamics.of(data, FeatureDynamicsConfig()).eval()
    perturb(dynamics, 0)
    inputs = {"features": features[:1], "actions": actions[:1]}
    return GraphSpec("dynamics", dynamics, inputs, ["later", "success"])


def _world_model(_: argparse.Namespace) -> dict[str, Any]:
    import torch

    from deploy_trt.build import RTX_REQUEST, rtx_without_gpu, run_worker
    from deploy_trt.export.graph import split_weights
    from deploy_trt.runtime.folder import materialised
    from deploy_trt.runtime.ladder import difference
    from deploy_trt.runtime.ort import OrtBackend

    step = world_model_step()
    with torch.no_grad():
        expected = dict(zip(step.outputs, step.module(*step.inputs.values()), strict=True))
    serialized, weights = split_weights([step.export()])
    backend = OrtBackend("ort-cpu", serialized, weights)
    outputs = backend.run(step.name, {name: backend.put(tensor.numpy()) for name, tensor in step.inputs.items()})
    pairs = [(backend.get(outputs[name]), tensor.numpy()) for name, tensor in expected.items()]
    built = None
    if not rtx_without_gpu():
        with materialised(serialized, weights) as files:
            onnx, engine = files / f"{step.name}.onnx", files / "engine"
            built = run_worker({**RTX_REQUEST, "onnx": str(onnx), "engine": str(engine)})["bytes"] > 0
    parity = vars(difference([ours for ours, _ in pairs], [theirs for _, theirs in pairs]))
    return {"policy": "world model's dynamics", "precision": "fp32", **parity, "graphs": {step.name: built}}


def _exploration(options: argparse.Namespace) -> dict[str, Any]:
    """The run once more from its own supervised policy, with practice episodes in low precision."""
    again = options.store / "exploration"
    start = ["train", "--config", str(options.run / "config.yaml"), "--from", str(options.run)]
    changes = [f"rollout_precision={EXPLORATION}", "budget.evaluate_every_round=false"]
    run_verb([*start, *changes], again)
    low, full = evaluations(again)[-1], evaluations(options.run)[-1]
    return {
        "precision": EXPLORATION,
        **{name: low[name] for name in ("successes", "episodes", "real_episodes", "gradient_steps")},
        **{f"full_{name}": full[name] for name in ("successes", "episodes", "real_episodes", "gradient_steps")},
    }


def _closed_loop(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Success on the evaluation's seeds, as the run's own evaluation plays them."""
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.report.statistics import wilson_interval
    from vla_rl.training.config import RunConfig
    from vla_rl.training.evaluation import evaluation_jobs, run_missing
    from vla_rl.training.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutPool

    _, config = RunFolder.open(options.run, RunConfig)
    config = replace(config, rollout_precision=kind)
    jobs = evaluation_jobs(config, _policy(options), options.store / kind, options.episodes, collects=True)
    calibration = _observations(options, 64) if kind == "int8-static" else ()
    build = functools.partial(SimulatorWorker, config, tuple(calibration))
    with RolloutPool(build, workers=0) as pool:
        successes = sum(header.success is True for header in run_missing(pool, jobs, kind))
    return {"successes": successes, "episodes": len(jobs), "interval": list(wilson_interval(successes, len(jobs)))}
