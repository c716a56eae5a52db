"""Export a policy for the robot computer: graphs, weights and manifest in one folder, verified. And on that computer:
build its engines, verify them, time them.

Example: vla-rl export runs/demo --out deployments/demo
         vla-rl export deployments/demo --build trt --verify trt
         vla-rl rollout deployments/demo --robot mock --realtime
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from deploy_trt.runtime import Deployment, is_deployment, load_deployed
from deploy_trt.runtime.loading import check_name
from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation
from vla_rl.data.sources import read_observations

PRECISIONS = ("fp32", "fp16", "bf16", "int8-dynamic", "int8-static", "fp8", "int8", "int4")
_HALF = ("fp16", "bf16")
_OF_OTHERS = ("config.yaml", "config.json", "store.json")  # with a deployment in it a run would act as it once was


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="RUN_OR_POLICY", help="a run, a policy, or a deployment folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="deployment folder to write")
    parser.add_argument("--version", type=int, help="policy version of the run (default: the newest)")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of weights and activations")
    parser.add_argument("--unrolled", action="store_true", help="one graph instead of three")
    parser.add_argument("--without-critic", action="store_true", help="the policy alone: it executes its first draw")
    parser.add_argument("--calibration", type=Path, metavar="STORE", help="episodes to calibrate and to compare on")
    parser.add_argument("--modelopt", type=Path, metavar="PYTHON", help="interpreter of an environment with ModelOpt")
    parser.add_argument("--build", choices=("trt", "trt-rtx"), help="build engines, on the computer that will run them")
    parser.add_argument(
        "--verify", nargs="?", metavar="BACKEND", const="ort-cpu", default="ort-cpu", help="backend to verify"
    )
    parser.add_argument(
        "--closed-loop", type=int, default=0, metavar="EPISODES", help="also compare success in simulation with torch's"
    )
    parser.add_argument("--benchmark", action="store_true", help="time the backend that was verified")


def run(arguments: argparse.Namespace) -> int:
    check_name(arguments.verify)  # before an export, which takes long
    if arguments.out is not None and any((arguments.out / name).exists() for name in _OF_OTHERS):
        raise UserError(
            f"{arguments.out} holds a run, a policy or an episode store; give the deployment a folder of its own"
        )
    folder, closed_loop = arguments.source, None
    if arguments.closed_loop:
        closed_loop = _closed_loop(arguments)
    if not is_deployment(folder):
        if arguments.out is None:
            raise UserError(f"{folder} is no deployment; name the folder to export it to with --out")
        folder = _export(arguments)
    elif arguments.out is not None or arguments.precision != "fp32":
        folder = _quantize(arguments, folder)
    if arguments.build:
        from deploy_trt.build import build_engines

        for engine in build_engines(folder, arguments.build):
            how = "found" if engine.cached else f"built in {engine.wall_s:.1f} s"
            print(f"{engine.graph}: {engine.file.name} ({how})")
    if _is_unverifiable(arguments):
        print(f"{arguments.precision} is verified on its target: ONNX Runtime on a CPU cannot run it")
        return 0
    passed = _verify(folder, arguments.verify, closed_loop and functools.partial(closed_loop, folder))
    if arguments.benchmark:
        _benchmark(folder, arguments.verify)
    return 0 if passed else 1


def _export(arguments: argparse.Namespace) -> Path:
    """From a checkpoint; quantized precisions go over fp32."""
    from deploy_trt.export import export_policy
    from vla_rl.acting.policy_folder import find_policy

    policy = find_policy(arguments.source, arguments.version)
    precision: Literal["fp32", "fp16", "bf16"] = arguments.precision if arguments.precision in _HALF else "fp32"
    full = arguments.precision in (*_HALF, "fp32")
    out: Path = arguments.out if full else arguments.out.with_name(f"{arguments.out.name}-fp32")
    observations = read_observations(arguments.calibration, 16) if arguments.calibration else []
    with_critic = not arguments.without_critic
    manifest = export_policy(policy.path, out, precision, arguments.unrolled, observations, with_critic)
    how = f", chooses among {manifest.selection.num_samples} draws" if manifest.selection else ""
    print(f"{out}: version {policy.version} in {precision}{how}")
    return out if full else _quantize(arguments, out)


def _quantize(arguments: argparse.Namespace, folder: Path) -> Path:
    from deploy_trt.export.policies import copy_head
    from deploy_trt.quantize import quantize_deployment

    if arguments.out is None or arguments.precision in ("fp32", *_HALF):
        raise UserError(f"{folder} is exported already; --out and --precision quantize it, or give a run to export")
    observations = read_observations(arguments.calibration, 64) if arguments.calibration else []
    found = quantize_deployment(folder, arguments.out, arguments.precision, observations, arguments.modelopt)
    copy_head(folder, arguments.out)
    print(f"{arguments.out}: {arguments.precision}, {found}")
    out: Path = arguments.out
    return out


def _is_unverifiable(arguments: argparse.Namespace) -> bool:
    """Return whether ONNX Runtime on a CPU, which was asked to verify, cannot run the precision."""
    return arguments.precision in ("bf16", "fp8", "int8", "int4") and arguments.verify == "ort-cpu"


def _closed_loop(arguments: argparse.Namespace) -> Callable[[Path], tuple[bool, str]]:
    """Return what compares a deployment with the run; UserError if there is none, or the deployment cannot run here."""
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig
    from vla_rl.training.evaluation import compare_with_torch

    if is_deployment(arguments.source):
        raise UserError("--closed-loop compares with the policy in torch: give the run that it comes from, and --out")
    if _is_unverifiable(arguments):
        raise UserError(f"--closed-loop needs a backend that runs {arguments.precision} here; name it with --verify")
    RunFolder.open(arguments.source, RunConfig)
    names = (arguments.source, arguments.version, arguments.verify, arguments.closed_loop)
    return functools.partial(compare_with_torch, *names)


def _verify(folder: Path, backend: str, closed_loop: Callable[[], tuple[bool, str]] | None) -> bool:
    from deploy_trt.verify import verify

    rungs = verify(folder, backend, closed_loop)  # type: ignore[arg-type]  # an unknown name is refused there
    for rung in rungs:
        sign = {True: "ok", False: "FAILED", None: "skipped"}[rung.passed]
        print(f"{sign:>7}  {rung.name}: {rung.found}")
    return all(rung.passed is not False for rung in rungs)


def _benchmark(folder: Path, backend: str) -> None:
    from deploy_trt.benchmark import benchmark_policy

    policy = load_deployed(folder, require=backend)  # type: ignore[arg-type]
    probes = Deployment.read(folder).probes()
    images = {camera: probes[f"input.image.{camera}"][0] for camera in policy.spec.cameras}
    observation = Observation(images, np.array(policy.manifest.state_mean, np.float32), "put the peg into the hole", 0)
    for part, latency in benchmark_policy(policy, observation).items():
        print(
            f"{part:>7}  p50 {latency.p50_ms:.3f} ms, p90 {latency.p90_ms:.3f}, p99 {latency.p99_ms:.3f}, "
            f"least {latency.min_ms:.3f}, first {latency.first_ms:.1f}"
        )
