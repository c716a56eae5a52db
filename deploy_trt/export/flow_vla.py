"""The graphs of the built-in policy: ``prefix`` once per observation, ``time`` once per weights, ``step`` once per
integration step. Or one unrolled graph.

Normalization, noise, the loop and discrete dimensions are the runtime's. The integration inside ``step`` is in float32
whatever the precision of the network: in half precision its rounding errors add up to other actions.
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from deploy_trt.export.graph import ExportedGraph, GraphSpec, example_inputs
from vla_rl.core.errors import UserError
from vla_rl.policies.base import Indicator, flat_features
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.flow_vla.expert import Prefix

Precision = Literal["fp32", "fp16", "bf16"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class PrefixGraph(nn.Module):
    """Map images, normalized state and text to the inputs of ``step``: keys, values, modulation (and mask). It also
    gives the features of a selector, which never reads the sentence.
    """

    def __init__(self, policy: FlowVLA, shows_features: bool = False) -> None:
        super().__init__()
        self.policy, self.shows_features = policy, shows_features
        self.dtype = policy.state_token.weight.dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        policy, cameras = self.policy, self.policy.spec.cameras
        images = {camera: image.to(self.dtype) for camera, image in zip(cameras, inputs[: len(cameras)], strict=True)}
        state, text, *indicator = inputs[len(cameras) :]
        tokens, mask = policy.tokens_of(images, state.to(self.dtype), text, indicator[0] if indicator else None)
        prefix = policy.expert.read_prefix(tokens, mask)
        shown = []
        if self.shows_features:
            seen = policy.tokens_of(images, state.to(self.dtype), text, None) if indicator else (tokens, mask)
            shown = [flat_features(*seen).float()]
        masks = [mask] if _masked(policy) else []
        return (*prefix.keys, *prefix.values, prefix.modulation, *masks, *shown)


class TimeGraph(nn.Module):
    """Flow times of all steps, float32 [steps, H] -> [steps, 4, 1, T, width]. Always in float32: it runs once, and the
    sines of its largest angles mean nothing in half precision.
    """

    def __init__(self, policy: FlowVLA) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, time: Tensor) -> Tensor:
        return self.policy.expert.modulate(time).transpose(0, 1).unsqueeze(2)


class StepGraph(nn.Module):
    """One Euler step of B chunks. ``step_size`` float32 [1, H] is 0 for committed actions, which stay unchanged."""

    def __init__(self, policy: FlowVLA, tokens: int) -> None:
        super().__init__()
        self.policy = policy
        self.tokens = tokens

    def forward(
        self, actions: Tensor, time_modulation: Tensor, step_size: Tensor, *prefix: Tensor
    ) -> tuple[Tensor, Tensor]:
        expert = self.policy.expert
        layers = len(expert.layers)
        keys, values, modulation = list(prefix[:layers]), list(prefix[layers : 2 * layers]), prefix[2 * layers]
        if len(actions) > 1:
            keys, values = ([part.expand(len(actions), -1, -1, -1) for part in parts] for parts in (keys, values))
        # Without a backbone every token is there always: a constant, which the optimizer removes.
        mask = prefix[-1] if _masked(self.policy) else torch.ones(1, self.tokens, dtype=torch.bool)
        noisy, of_time = actions.to(modulation.dtype), time_modulation.to(modulation.dtype)
        velocity = expert.denoise(noisy, of_time, step_size > 0, Prefix(keys, values, modulation, mask)).float()
        return velocity, actions + step_size[..., None] * velocity


class UnrolledGraph(nn.Module):
    """Everything from images to normalized actions in one graph: fastest where a call is dear, slow to export."""

    def __init__(self, policy: FlowVLA) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, noise: Tensor, *inputs: Tensor) -> Tensor:
        prefix = PrefixGraph(self.policy)(*inputs)
        steps = self.policy.config.sampling_steps
        step = StepGraph(self.policy, prefix[0].shape[2])
        times = (torch.arange(steps) / steps)[:, None].expand(-1, noise.shape[1])
        modulations, actions = TimeGraph(self.policy)(times), noise
        for index in range(steps):
            _, actions = step(actions, modulations[index], torch.full(noise.shape[:2], 1 / steps), *prefix)
        return actions


def flow_vla_graphs(
    model: FlowVLA, precision: Precision = "fp32", unrolled: bool = False, candidates: int = 0
) -> list[ExportedGraph]:
    """Export a policy with trained weights, on the CPU.

    Args:
        precision: Of weights and activations. TensorRT takes it from the graph's types; there is no builder flag.
        unrolled: One graph instead of three, in float32.
        candidates: N, of a policy with best-of-N selection: the step has 1 + N chunks, and the prefix also gives the
            selector's features. 0: of one chunk.

    Raises:
        UserError: For what has no graph: an unrolled policy with classifier-free guidance, in half precision, or with
            candidates.
    """
    if unrolled and candidates:
        raise UserError(
            "an unrolled graph draws one chunk without features for the policy's critic. Leave --unrolled out, or "
            "export the policy --without-critic"
        )
    if unrolled:
        if model.config.guidance_scale != 1.0 or precision != "fp32":
            raise UserError("an unrolled graph is in fp32 and has no classifier-free guidance; leave --unrolled out")
        noise = torch.randn(1, model.config.horizon, model.spec.action_dim)
        inputs = {"noise": noise, **_example_inputs(model)}
        return [GraphSpec("policy", UnrolledGraph(model), inputs, ["actions"]).export()]
    times = torch.rand(model.config.sampling_steps, model.config.horizon)
    time = GraphSpec("time", TimeGraph(model), {"time": times}, ["time_modulation"])
    exported = [time.export()]
    with torch.no_grad():
        modulation = time.module(times)[0]
    if precision != "fp32":
        exact, model = model, copy.deepcopy(model).to(DTYPES[precision])
        if model.config.expert.rotary:  # rounded angles would be other positions
            model.expert.frequency = exact.expert.frequency
    return exported + [spec.export() for spec in _prefix_and_step(model, modulation, candidates)]


def _prefix_and_step(model: FlowVLA, time_modulation: Tensor, candidates: int) -> list[GraphSpec]:
    """Return the graphs of the observation and of a step."""
    layers = range(len(model.expert.layers))
    read = [*(f"key.{i}" for i in layers), *(f"value.{i}" for i in layers), "modulation"]
    read += ["mask"] if _masked(model) else []
    inputs, names = _example_inputs(model), [*read, *(["features"] if candidates else [])]
    prefix = PrefixGraph(model, shows_features=candidates > 0)
    with torch.no_grad():
        seen = dict(zip(names, prefix(*inputs.values()), strict=True))
    horizon = model.config.horizon
    of_step = {
        "actions": torch.randn(1 + candidates, horizon, model.spec.action_dim),
        "time_modulation": time_modulation,
        "step_size": torch.rand(1, horizon),
        **{name: seen[name] for name in read},
    }
    step = StepGraph(model, seen["key.0"].shape[2])
    return [
        GraphSpec("prefix", prefix, inputs, names),
        GraphSpec("step", step, of_step, ["velocity", "next_actions"]),
    ]


def _example_inputs(model: FlowVLA) -> dict[str, Tensor]:
    inputs = {**example_inputs(model.spec), "text": model.tokenize(["put the peg into the hole"])}
    if model.config.indicator:
        inputs["indicator"] = torch.tensor([int(Indicator.POSITIVE)])
    return inputs


def _masked(model: FlowVLA) -> bool:
    return bool(model.config.backbone.folder)
