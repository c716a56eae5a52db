"""Deployment folders of lerobot's act, diffusion, smolvla and pi0. lerobot itself is the caller's to import."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deploy_trt.export.deployment import NOT_WRITTEN, random_observations, save_deployment, tokenizer_text
from deploy_trt.export.graph import GraphSpec, example_inputs
from deploy_trt.export.lerobot_graphs import (
    ActGraph,
    DiffusionPrefix,
    DiffusionStep,
    ImageNormalization,
    Pi0Prefix,
    SmolVLAPrefix,
    VlaStep,
)
from deploy_trt.runtime.backend import Backend, Value
from deploy_trt.runtime.manifest import Affine, GraphInfo, Manifest, SamplerInfo, TextInfo
from deploy_trt.runtime.program import Program
from deploy_trt.runtime.units import Normalization
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec

KINDS = ("act", "diffusion", "smolvla", "pi0")
_STD_EPSILON = 1e-8  # lerobot's
_IMAGE_PREFIX = "observation.images."


def export_lerobot(
    policy: Any,
    folder: Path,
    spec: PolicySpec,
    statistics: Statistics,
    image_statistics: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    tokenizer: Path | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Manifest:
    """Export a policy of lerobot.

    Args:
        policy: a trained ``PreTrainedPolicy`` on the CPU, of one of `KINDS`.
        folder: made if missing; a deployment in it is replaced.
        spec: of the robot; its cameras are the policy's, in the policy's order.
        statistics: of state and action, of the training data.
        image_statistics: camera -> (mean, std) of its channels in [0, 1], if the policy normalizes images.
        tokenizer: the ``tokenizer.json`` of smolvla and pi0.
        meta: plain data to keep; ``policy_version`` becomes the manifest's.

    Raises:
        UserError: for a policy of another kind, or options that have no graph.
    """
    kind = policy.config.type
    if kind not in KINDS:
        raise UserError(f"lerobot's {kind!r} has no exporter.{did_you_mean(kind, KINDS)}")
    keys = [_IMAGE_PREFIX + camera for camera in spec.cameras]
    if list(policy.config.image_features) != keys:
        raise UserError(f"the policy sees {list(policy.config.image_features)}, the robot has {keys}, in this order")
    policy.eval()
    inputs = example_inputs(spec)
    if kind in ("smolvla", "pi0"):
        specs, sampler, horizon = _vla(policy, spec, inputs)
        if tokenizer is None:
            raise UserError(f"{kind} reads its task with a tokenizer; give the path of its tokenizer.json")
        text = tokenizer_text(folder, tokenizer.read_bytes(), policy.config.tokenizer_max_length, suffix="\n")
    else:
        normalizations = _image_normalizations(policy, spec, image_statistics or {})
        specs, sampler, horizon = (_act if kind == "act" else _diffusion)(policy, spec, inputs, normalizations)
        text = TextInfo()
    graphs = [graph.export() for graph in specs]
    widened = statistics.widened()
    mapping = {str(getattr(name, "value", name)): mode for name, mode in policy.config.normalization_mapping.items()}
    manifest = Manifest(
        policy=kind,
        policy_version=int((meta or {}).get("policy_version", 0)),
        spec=spec,
        horizon=horizon,
        precision="fp32",
        graphs={graph.name: GraphInfo("", "", graph.inputs, graph.outputs) for graph in graphs},
        reference={},
        weights=None,
        probes=NOT_WRITTEN,
        state=lerobot_affine(widened.state, mapping["STATE"]),
        action=lerobot_affine(widened.action, mapping["ACTION"]),
        state_mean=statistics.state.mean,
        action_mean=statistics.action.mean,
        discrete=(),
        text=text,
        sampler=sampler,
        provides=("guidance",) if sampler.kind == "flow" else (),
        source={"meta": dict(meta or {})},
    )
    probes = _module_probes(manifest, specs, statistics.state)
    return save_deployment(folder, manifest, graphs, probes)


def lerobot_affine(statistics: VectorStatistics, mode: Any) -> Affine:
    """Return a normalization mode of lerobot as an `Affine`; UserError for an unknown one."""
    mean, std, low, high, q01, q99 = (
        np.asarray(row)
        for row in (statistics.mean, statistics.std, statistics.low, statistics.high, statistics.q01, statistics.q99)
    )
    name = str(getattr(mode, "value", mode))
    affines = {
        "MEAN_STD": (mean, std + _STD_EPSILON),
        "MIN_MAX": ((low + high) / 2, (high - low) / 2),
        "QUANTILES": ((q01 + q99) / 2, (q99 - q01) / 2),
        "IDENTITY": (np.zeros_like(mean), np.ones_like(mean)),
    }
    if name not in affines:
        raise UserError(f"normalization {name!r} has no exporter.{did_you_mean(name, affines)}")
    offset, scale = affines[name]
    return Affine(tuple(offset.tolist()), tuple(scale.tolist()), () if name == "IDENTITY" else statistics.limit)


def _module_probes(manifest: Manifest, specs: Sequence[GraphSpec], state: VectorStatistics) -> dict[str, Array]:
    """Probes of a policy whose modules are the reference, see `save_deployment`."""
    program, sampler = Program(manifest, ModuleBackend(specs)), manifest.sampler
    normalization = Normalization(manifest.state)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Array]] = []
    for index, observation in enumerate(random_observations(manifest.spec, state)):
        inputs: dict[str, Array] = {f"image.{name}": image[None] for name, image in observation.images.items()}
        inputs["state"] = normalization.network_input(observation.state)[None]
        if manifest.text.kind == "tokenizer":
            length = 1 + index % manifest.text.length  # of each length, since a frozen one would go unnoticed
            inputs["text_mask"] = np.arange(manifest.text.length)[None] < length
            inputs["text"] = np.where(inputs["text_mask"], rng.integers(1, 8, (1, manifest.text.length)), 0)
        row = {f"input.{name}": array for name, array in inputs.items()}
        row["noise"] = flow_noise(0, index, max(sampler.horizon, 1), max(sampler.width, 1))[None]
        if sampler.step_noise:
            row["step_noise"] = rng.standard_normal((1, sampler.steps, sampler.horizon, sampler.width), np.float32)
        fresh = row.get("step_noise")
        drawn = program.sample(inputs, row["noise"], step_noise=None if fresh is None else fresh[0])
        rows.append({**row, "actions": np.array(drawn.actions)})
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


class ModuleBackend(Backend):
    """Runs the modules that graphs are made of: the same sampling loop in torch."""

    def __init__(self, specs: Sequence[GraphSpec]) -> None:
        self.name = "torch"
        self._specs = {spec.name: spec for spec in specs}

    def put(self, array: Array) -> Value:
        return torch.from_numpy(np.array(array))

    def get(self, value: Value) -> Array:
        array: Array = value.numpy()
        return array

    @torch.no_grad()
    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        spec = self._specs[graph]
        outputs = spec.module(*(feeds[name] for name in spec.inputs))
        return dict(zip(spec.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))


def _act(
    policy: Any, spec: PolicySpec, inputs: dict[str, Tensor], normalizations: list[ImageNormalization]
) -> tuple[list[GraphSpec], SamplerInfo, int]:
    graph = GraphSpec("policy", ActGraph(policy, normalizations), inputs, ["actions"])
    return [graph], SamplerInfo("direct", width=spec.action_dim), policy.config.chunk_size


def _diffusion(
    policy: Any, spec: PolicySpec, inputs: dict[str, Tensor], normalizations: list[ImageNormalization]
) -> tuple[list[GraphSpec], SamplerInfo, int]:
    config, scheduler = policy.config, policy.diffusion.noise_scheduler
    if config.n_obs_steps != 1 or config.env_state_feature:
        raise UserError(
            f"diffusion with n_obs_steps={config.n_obs_steps}: a deployment reads one observation for each chunk; "
            "train it with n_obs_steps=1 and without an environment state"
        )
    steps = policy.diffusion.num_inference_steps
    timesteps, coefficients = diffusion_schedule(scheduler, steps)
    stochastic = bool(np.any(coefficients[:, -1]))
    prefix = DiffusionPrefix(policy, normalizations)
    with torch.no_grad():
        condition = prefix(*inputs.values())
    actions = torch.randn(1, config.horizon, spec.action_dim)
    of_step = {
        "actions": actions,
        "timestep": torch.tensor([int(timesteps[0])]),
        "coefficients": torch.from_numpy(coefficients[:1]),
        "condition": condition,
        **({"step_noise": torch.randn_like(actions)} if stochastic else {}),
    }
    specs = [
        GraphSpec("prefix", prefix, inputs, ["condition"]),
        GraphSpec("step", DiffusionStep(policy, stochastic), of_step, ["next_actions"]),
    ]
    schedule = {"timestep": timesteps[:, None].tolist(), "coefficients": coefficients[:, None].tolist()}
    sampler = SamplerInfo("diffusion", steps, spec.action_dim, config.horizon, schedule=schedule, step_noise=stochastic)
    return specs, sampler, config.n_action_steps


def diffusion_schedule(scheduler: Any, steps: int) -> tuple[Array, Array]:
    """Timesteps int64 [steps] and coefficients float32 [steps, 6] of `DiffusionStep`.

    DDPM: equations 6 and 7 of arXiv 2006.11239; DDIM without noise: equation 12 of arXiv 2010.02502.
    """
    scheduler.set_timesteps(steps)
    products = scheduler.alphas_cumprod.double().numpy()
    stochastic = type(scheduler).__name__ == "DDPMScheduler"
    timesteps = np.asarray(scheduler.timesteps, np.int64)
    stride = scheduler.config.num_train_timesteps // steps
    rows = []
    for timestep in timesteps.tolist():
        product = products[timestep]
        before = timestep - stride
        last = 1.0 if stochastic else float(scheduler.final_alpha_cumprod)
        earlier = products[before] if before >= 0 else last
        if stochastic:
            alpha = product / earlier
            variance = max((1 - earlier) / (1 - product) * (1 - alpha), 1e-20) if timestep > 0 else 0.0
            of_clean = np.sqrt(earlier) * (1 - alpha) / (1 - product)
            of_actions = np.sqrt(alpha) * (1 - earlier) / (1 - product)
            rows.append((np.sqrt(product), np.sqrt(1 - product), of_clean, of_actions, 0.0, np.sqrt(variance)))
        else:
            rows.append((np.sqrt(product), np.sqrt(1 - product), np.sqrt(earlier), 0.0, np.sqrt(1 - earlier), 0.0))
    return timesteps, np.array(rows, np.float32)


def _vla(policy: Any, spec: PolicySpec, inputs: dict[str, Tensor]) -> tuple[list[GraphSpec], SamplerInfo, int]:
    config = policy.config
    if getattr(config, "adapt_to_pi_aloha", False):
        raise UserError("adapt_to_pi_aloha changes states and actions outside the graphs; switch it off and train anew")
    length = config.tokenizer_max_length
    inputs = {
        **inputs,
        "text": torch.randint(1, 8, (1, length)),
        "text_mask": torch.arange(length)[None] < max(1, length // 2),
    }
    keys = [_IMAGE_PREFIX + camera for camera in spec.cameras]
    prefix = SmolVLAPrefix(policy, keys) if config.type == "smolvla" else Pi0Prefix(policy, keys)
    with torch.no_grad():
        outputs = prefix(*inputs.values())
    extra = ["mask"] if config.type == "smolvla" else ["mask", "padded_state"]
    layers = (len(outputs) - len(extra)) // 2
    names = [*(f"key.{i}" for i in range(layers)), *(f"value.{i}" for i in range(layers)), *extra]
    steps = config.num_steps if config.type == "smolvla" else config.num_inference_steps
    of_step = {
        "actions": torch.randn(1, config.chunk_size, config.max_action_dim),
        "time": torch.tensor([0.5]),
        **dict(zip(names, outputs, strict=True)),
    }
    specs = [
        GraphSpec("prefix", prefix, inputs, names),
        GraphSpec("step", VlaStep(policy, layers, steps), of_step, ["velocity", "next_actions"]),
    ]
    schedule = {"time": [[index / steps] for index in range(steps)]}
    sampler = SamplerInfo("flow", steps, config.max_action_dim, config.chunk_size, schedule=schedule)
    return specs, sampler, config.chunk_size


def _image_normalizations(
    policy: Any, spec: PolicySpec, image_statistics: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> list[ImageNormalization]:
    mode = str(getattr(policy.config.normalization_mapping.get("VISUAL", "IDENTITY"), "value", "IDENTITY"))
    normalizations = []
    for camera in spec.cameras:
        if mode == "MEAN_STD" and camera not in image_statistics:
            raise UserError(f"the policy normalizes images; give the mean and std of camera {camera!r}")
        mean, std = image_statistics[camera] if mode == "MEAN_STD" else ((0.0,) * 3, (1.0,) * 3)
        normalizations.append(ImageNormalization(torch.tensor(mean), torch.tensor(std) + _STD_EPSILON))
    return normalizations
