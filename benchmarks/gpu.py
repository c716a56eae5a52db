"""Speed of policies and world models on a GPU: chunks a second by every backend, and the learner's samples a second and
share of arithmetic. Also imagined frames a second, and the delay of new weights.

Weights are random, of the true sizes; "450M" is the first half of a SmolVLM2-500M and its expert. An engine that does
not work here says why. Without a GPU everything runs on the processor, so that it works on the day there is one.

Example: python -m benchmarks gpu
         python -m benchmarks gpu --device cpu --networks cpu --seconds 0.5
"""

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.timing import perturb

if TYPE_CHECKING:
    from vla_rl.policies.base import PolicyBatch
    from vla_rl.policies.flow_vla import FlowVLA

NETWORKS = ("cpu", "small", "100M", "450M")
ENGINES = ("eager", "compiled", "ort-cpu", "ort-cuda", "trt")
_TASK = "put the peg into the hole"
# Of SmolVLM2-500M: its vision transformer, and the language model of which a policy keeps the first half.
_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_TEXT = {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15}
_VOCABULARY = 49280
_MATRIX = {"cuda": 8192, "cpu": 1024}  # side of the product that stands for what the device can do


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cuda or cpu (default: the GPU, if there is one)")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--batch", type=int, default=64, help="samples of a gradient step")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure, at least one call")


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else "none: measured on the processor"
    clock = Clock(device, options.seconds)
    return {
        "device": name,
        "matrix_tflops": {kind: _matrix_tflops(clock, kind) for kind in ("float32", "bfloat16")},
        "networks": {network: _network(network, clock, options) for network in options.networks},
        "world_model": _world_model(clock),
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per network."""
    rows = [
        "| network | parameters | chunks/s, one at a time | 64 at a time | learner, samples/s | model FLOP utilization "
        "| new weights act after |",
        "|---|---|---|---|---|---|---|",
    ]
    best = max(result["matrix_tflops"].values())
    for name, found in result["networks"].items():
        engines = found["chunks_per_s_b1"].items()
        acting = ", ".join(f"{engine} {_figure(value)}" for engine, value in engines)
        refit = found["refit_s"]
        rows.append(
            f"| {name} | {found['parameters'] / 1e6:.1f} M | {acting} | {_figure(found['chunks_per_s_b64'])} "
            f"| {_figure(found['learner_samples_per_s'])} | {found['learner_tflops'] / best:.1%} "
            f"| {refit if isinstance(refit, str) else f'{refit:.2f} s'} |"
        )
    note = (
        f"Imagined frames a second, one stream: {_figure(result['world_model'])}. "
        "Utilization: of what a large matrix product reaches. "
        f"Device: {result['device']}. Command: `{result['command']}`."
    )
    return "\n".join([*rows, "", note])


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0f}" if value >= 10 else f"{value:.2g}"


class Clock:
    """Calls a second on a device, with its queue empty before and after.

    Args:
        device: "cuda" or "cpu".
        least_s: time to spend on a figure.
    """

    def __init__(self, device: str, least_s: float) -> None:
        self.device, self._least_s = device, least_s

    def rate(self, call: Callable[[], object], warm_up: int = 3) -> float:
        """Calls a second."""
        for _ in range(warm_up):
            call()
        calls = 0
        started_s = self._now()
        while calls == 0 or self._now() - started_s < self._least_s:
            call()
            calls += 1
        return calls / (self._now() - started_s)

    def _now(self) -> float:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def make_network(name: str, folder: Path) -> "FlowVLA":
    """A policy with two cameras of 64 pixels and random weights.

    Args:
        name: of `NETWORKS`.
        folder: where the description of a backbone is written.
    """
    import numpy as np
    import torch

    from vla_rl.core.normalization import Statistics
    from vla_rl.core.policy_spec import PolicySpec
    from vla_rl.policies.flow_vla import FlowVLA, preset

    config = preset({"100M": "small", "450M": "base"}.get(name, name))
    if name == "100M":
        expert = dataclasses.replace(config.expert, width=768, layers=10, heads=12)
        config = dataclasses.replace(config, expert=expert)
    if name == "450M":
        _describe_backbone(folder)
        config = dataclasses.replace(config, backbone=dataclasses.replace(config.backbone, folder=str(folder)))
    rng = np.random.default_rng(0)
    statistics = Statistics.from_arrays(rng.normal(size=(64, 8)), rng.normal(size=(64, 8)))
    torch.manual_seed(0)
    model = FlowVLA.build(config, PolicySpec("none", ("front", "top"), (64, 64), 8, 8), statistics, pretrained=False)
    perturb(model, 0)
    return model


def _describe_backbone(folder: Path) -> None:
    """What a policy needs of SmolVLM2-500M beside weights: its sizes, and a tokenizer, here of the task's words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    make_config: Any = transformers.SmolVLMConfig  # its types leave out what it takes
    make_config(
        vision_config={**_VISION, "image_size": 512, "patch_size": 16},
        text_config={
            "model_type": "llama",
            **_TEXT,
            "num_key_value_heads": 5,
            "head_dim": 64,
            "vocab_size": _VOCABULARY,
        },
        scale_factor=4,
        image_token_id=_VOCABULARY - 1,
    ).save_pretrained(folder)
    words = {word: index for index, word in enumerate(dict.fromkeys(["<pad>", "<unk>", *_TASK.split()]))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    whole.save_pretrained(folder)


def make_batch(model: "FlowVLA", size: int, device: str) -> "PolicyBatch":
    """A training batch of noise."""
    import torch

    from vla_rl.policies.base import PolicyBatch

    spec, generator = model.spec, torch.Generator().manual_seed(0)
    shape = (size, *spec.image_size, 3)
    images = {name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for name in spec.cameras}
    return PolicyBatch(
        {name: image.to(device) for name, image in images.items()},
        torch.randn(size, spec.state_dim, generator=generator).to(device),
        model.tokenize([_TASK] * size).to(device),
        torch.randn(size, model.horizon, spec.action_dim, generator=generator).to(device),
        torch.ones(size, model.horizon, 1, dtype=torch.bool, device=device),
    )


def _network(name: str, clock: Clock, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = make_network(name, Path(folder) / "backbone")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        deployed, refit_s = _deployed(model, Path(folder), clock, options.engines)
        model.to(clock.device)
        acting = {
            engine: _acting(model, clock, 1, engine) for engine in ("eager", "compiled") if engine in options.engines
        }
        return {
            "parameters": parameters,
            "chunks_per_s_b1": {**acting, **deployed},
            "chunks_per_s_b64": _acting(model, clock, 64, "eager"),
            "refit_s": refit_s,
            **_learner(model, clock, options.batch),
        }


def _acting(model: "FlowVLA", clock: Clock, size: int, engine: str) -> float:
    """Chunks a second in torch."""
    import torch

    model.eval()
    draw = torch.compile(model.draw) if engine == "compiled" else model.draw
    batch = make_batch(model, size, clock.device)
    noise = torch.randn(size, model.horizon, model.spec.action_dim, device=clock.device)
    with torch.no_grad():
        return size * clock.rate(lambda: draw(batch.images, batch.state, batch.text, noise))


def _deployed(
    model: "FlowVLA", folder: Path, clock: Clock, engines: list[str]
) -> tuple[dict[str, float | str], float | str]:
    """Chunks a second of each engine without torch, or why not; and the seconds until new weights act in the last one
    that works.
    """
    from deploy_trt.build import build_engines
    from deploy_trt.export import export_flow_vla
    from deploy_trt.export.deployment import random_observations
    from deploy_trt.runtime import load_deployed
    from deploy_trt.runtime.refresh import refresh
    from vla_rl.core.errors import UserError

    found: dict[str, float | str] = {}
    refit_s: float | str = "not measured"
    asked = [engine for engine in ("ort-cpu", "ort-cuda", "trt") if engine in engines]
    if not asked:
        return found, refit_s
    observation = random_observations(model.spec, model.statistics.state)[0]
    export_flow_vla(model, folder / "deployment", {"policy_version": 0})
    perturb(model, 1)
    model.save(folder / "newer", {"policy_version": 1})
    for engine in asked:
        try:
            if engine == "trt":
                build_engines(folder / "deployment", "trt")
            policy = load_deployed(folder / "deployment", require=engine)
            found[engine] = clock.rate(functools.partial(policy.infer, observation))
            refit_s = refresh(policy, folder / "newer", keep=False).wall_s
        except UserError as error:
            found[engine] = f"not measured: {error}"
    return found, refit_s


def _learner(model: "FlowVLA", clock: Clock, size: int) -> dict[str, float]:
    """Whole updates: forward, backward, optimizer and average; `flops` of an update's matrix products."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from vla_rl.algorithms.actor import ActorConfig, ActorLearner

    learner, batch = (
        ActorLearner(model, ActorConfig(precision="float32"), seed=0),
        make_batch(model, size, clock.device),
    )
    weight = torch.ones(size, device=clock.device)
    with FlopCounterMode(display=False) as counter:
        learner.update(batch, weight, 0)
    rate = clock.rate(lambda: learner.update(batch, weight, 0))
    return {"learner_samples_per_s": size * rate, "learner_tflops": 1e-12 * counter.get_total_flops() * rate}


def _matrix_tflops(clock: Clock, kind: str) -> float:
    """10^12 operations a second of one large matrix product."""
    import torch

    side = _MATRIX[clock.device]
    left, right = torch.randn(2, side, side, device=clock.device).to(getattr(torch, kind))
    return 2e-12 * side**3 * clock.rate(lambda: left @ right)


def _world_model(clock: Clock) -> float:
    """Imagined frames a second of one stream, decoding included, in features of the network "cpu"."""
    import torch

    from vla_rl.policies.base import example_row
    from world_model.feature_decoder import FeatureDecoder
    from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig
    from world_model.feature_world import FeatureState, FeatureWorld

    policy = make_network("cpu", Path())
    spec, size, device = policy.spec, len(example_row(policy)) + policy.spec.state_dim, clock.device
    dynamics = FeatureDynamics(FeatureDynamicsConfig(), (6, spec.action_dim), torch.arange(size), partial=True)
    decoder = FeatureDecoder(size, len(spec.cameras), spec.image_size).to(device)
    start, action = torch.zeros(1, size, device=device), torch.zeros(1, 1, spec.action_dim, device=device)
    world = FeatureWorld(dynamics.to(device), lambda _: start, lambda actions: actions, decoder)
    state = FeatureState(start, None)

    def step() -> None:
        nonlocal state
        state = world.predict(state, action).state
        world.decode(state).cpu()

    return clock.rate(step)
