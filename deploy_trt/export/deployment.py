"""Writes a deployment folder: graphs, weights, probes with torch's answers, and the manifest last."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deploy_trt.export.flow_vla import Precision, flow_vla_graphs
from deploy_trt.export.graph import ExportedGraph, split_weights
from deploy_trt.export.selection import selection_spec
from deploy_trt.runtime.manifest import (
    Affine,
    FileInfo,
    GraphInfo,
    Manifest,
    SamplerInfo,
    TextInfo,
    normalization_of,
    remove_stale,
    save_manifest,
    write_digested,
)
from deploy_trt.runtime.refresh import read_critic
from deploy_trt.runtime.units import Normalization
from deploy_trt.runtime.weights import Array
from vla_rl.core.config import config_to_dict
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.core.normalization import VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation
from vla_rl.policies.base import flat_features
from vla_rl.policies.best_of_n import BestOfN, best_index
from vla_rl.policies.checkpoint import load_selector
from vla_rl.policies.encoders import VOCABULARY
from vla_rl.policies.flow_vla import FlowVLA

PROBES = 8
NOT_WRITTEN = FileInfo("", "")  # until `save_deployment` has written it


def export_flow_vla(
    model: FlowVLA,
    folder: Path,
    meta: Mapping[str, Any],
    precision: Precision = "fp32",
    unrolled: bool = False,
    observations: Sequence[Observation] = (),
    policy_folder: Path | None = None,
) -> Manifest:
    """Export the built-in policy.

    Args:
        model: with trained weights, on the CPU.
        folder: made if missing; a deployment in it is replaced.
        meta: of its checkpoint; ``policy_version`` becomes the manifest's.
        precision, unrolled: see `flow_vla_graphs`.
        observations: real ones to compare the graphs on; without any, random ones are used.
        policy_folder: where the policy lies; the critic in it, if there is one, goes along. None: the policy alone.

    Returns:
        what was written.

    Raises:
        CheckpointError: if the critic is damaged.
        UserError: for options under which a policy cannot choose among its draws, see `flow_vla_graphs`.

    Example:
        >>> sorted(export_flow_vla(policy, Path("deployments/flow"), {"policy_version": 3}).graphs)
        ['prefix', 'step', 'time']
    """
    critic, selector = None, None
    if policy_folder is not None and (critic := read_critic(policy_folder)) is not None:
        selector = load_selector(policy_folder / CRITIC_FOLDER, model)
    config, spec, statistics = model.config, model.spec, model.statistics
    candidates = 0 if selector is None else selector.config.num_samples
    graphs = flow_vla_graphs(model, precision, unrolled, candidates)
    selection = [] if selector is None else [selection_spec(model, selector).export()]
    # Guidance and committed actions act between the steps of the flow.
    kept = {"future_state"} if unrolled else {"future_state", "guidance", "prefix", "xiaomi_prefix"}
    manifest = Manifest(
        policy="flow_vla",
        policy_version=int(meta.get("policy_version", 0)),
        spec=spec,
        horizon=config.horizon,
        precision=precision,
        graphs={},
        reference={},
        weights=None,
        probes=NOT_WRITTEN,
        **normalization_of(statistics),
        text=text_info(model, folder),
        sampler=SamplerInfo(
            kind="unrolled" if unrolled else "flow",
            steps=config.sampling_steps,
            width=spec.action_dim,
            horizon=config.horizon,
            committed=not unrolled,
            guidance_scale=config.guidance_scale if config.indicator else 1.0,
        ),
        provides=tuple(sorted(model.capabilities & kept)),
        selection=None if critic is None else critic[0],
        source={"meta": dict(meta), "config": config_to_dict(config)},
    )
    probes = flow_vla_probes(model, observations, selector)
    reference = [*flow_vla_graphs(model, candidates=candidates), *selection] if precision != "fp32" else []
    return save_deployment(folder, manifest, [*graphs, *selection], probes, reference)


def save_deployment(
    folder: Path,
    manifest: Manifest,
    graphs: Sequence[ExportedGraph],
    probes: Mapping[str, Array],
    reference: Sequence[ExportedGraph] = (),
) -> Manifest:
    """Write a deployment; ``graphs``, ``weights`` and ``probes`` of the manifest are filled in.

    Args:
        folder: made if missing.
        manifest: everything else.
        graphs: they lose their weights here.
        probes: inputs of the first graph as ``input.NAME`` [K, ...], ``noise`` [K, rows, W], and ``actions``
            [K, rows, W], normalized: what torch made of them. Of a policy that selects among N candidates both are [K,
            1 + N, rows, W]. It also has ``tick`` [K], ``features`` [K, F], ``selection_noise`` [K,
            `BestOfN.noise_rows`, W], ``values`` [K, N], ``chosen`` [K] and ``executed`` [K, H, A], raw units.
        reference: the graphs in float32, if ``graphs`` are not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    infos, weights = _write_graphs(folder, graphs)
    buffer = io.BytesIO()
    written = write_digested(folder, "weights", ".safetensors", weights)
    np.savez(buffer, allow_pickle=False, **probes, weights=np.array([written.sha256]))
    manifest = replace(
        manifest,
        graphs=infos,
        reference=_write_graphs(folder, reference)[0],
        weights=written,
        probes=write_digested(folder, "probes", ".npz", buffer.getvalue()),
    )
    save_manifest(folder, manifest)
    remove_stale(folder, manifest)
    return manifest


def _write_graphs(folder: Path, graphs: Sequence[ExportedGraph]) -> tuple[dict[str, GraphInfo], bytes]:
    serialized, weights = split_weights(graphs)
    infos = {}
    for graph in graphs:
        written = write_digested(folder, graph.name, ".onnx", serialized[graph.name])
        infos[graph.name] = GraphInfo(written.file, written.sha256, graph.inputs, graph.outputs)
    return infos, weights


@torch.no_grad()
def flow_vla_probes(model: Any, observations: Sequence[Observation], selector: BestOfN | None) -> dict[str, Array]:
    """Probe inputs and what the model in torch makes of them, see `save_deployment`. Behind a proxy, noise stands for
    the chunks of the base policy, which need not be there.
    """
    spec, horizon, state = model.spec, model.horizon, Normalization(Affine.of(model.statistics.state))
    rows: list[dict[str, Array]] = []
    for index, observation in enumerate(observations or random_observations(spec, model.statistics.state)):
        images = {name: torch.from_numpy(np.ascontiguousarray(observation.images[name]))[None] for name in spec.cameras}
        text = model.tokenize([observation.task])
        noise_rows = horizon if selector is None else selector.noise_rows(horizon)
        noise = torch.from_numpy(flow_noise(0, index, noise_rows, spec.action_dim))[None]
        tokens, mask = model.features(images, torch.from_numpy(observation.state)[None], text)
        starts = noise if selector is None else selector.starts(noise)[0]
        actions = _integrated(model, tokens, mask, starts) if isinstance(model, FlowVLA) else starts
        row = {f"input.image.{name}": image for name, image in images.items()}
        row |= {"input.state": torch.from_numpy(state.network_input(observation.state))[None], "input.text": text}
        row |= {"noise": starts, "actions": actions}
        if selector is not None:
            features, tick = flat_features(tokens, mask), torch.tensor([float(observation.tick)])
            drawn, free = model.encoder.to_raw_actions(actions)[None], torch.ones(horizon)
            executed, values = selector.judged(model, features, tick, noise, drawn, free, 0)
            chosen = best_index(executed, values)
            row |= {"noise": starts[None], "actions": actions[None], "features": features, "selection_noise": noise}
            row |= {"tick": tick, "values": values, "chosen": chosen, "executed": executed[[0], chosen]}
        rows.append({name: tensor.numpy() for name, tensor in row.items()})
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _integrated(model: FlowVLA, tokens: Tensor, mask: Tensor, starts: Tensor) -> Tensor:
    prefix, unconditional = model.acting_prefixes(tokens, mask)
    prefix, actions = prefix.repeat(len(starts)), starts
    unconditional = None if unconditional is None else unconditional.repeat(len(starts))
    for step in range(model.config.sampling_steps):
        time = torch.full(actions.shape[:2], step / model.config.sampling_steps)
        velocity = model.guided_velocity(actions, time, prefix, unconditional)
        actions = actions + velocity / model.config.sampling_steps
    return actions


def random_observations(spec: PolicySpec, state: VectorStatistics) -> list[Observation]:
    """Observations of nothing, for where there are no real ones: noise in the images, states of the usual size."""
    rng = np.random.default_rng(0)
    mean, std = np.array(state.mean, np.float32), np.array(state.std, np.float32)
    return [
        Observation(
            {name: rng.integers(0, 256, (*spec.image_size, 3), dtype=np.uint8) for name in spec.cameras},
            mean + std * rng.standard_normal(spec.state_dim, dtype=np.float32),
            "put the peg into the hole",
            tick,
        )
        for tick in range(PROBES)
    ]


def text_info(model: FlowVLA, folder: Path) -> TextInfo:
    """Return how a policy reads its task sentence; a tokenizer is written into the deployment."""
    text = model.config.text
    if not model.config.backbone.folder:
        return TextInfo("hashed_words", text.max_words, VOCABULARY)
    content = model.backbone.tokenizer.backend_tokenizer.to_str().encode()
    return tokenizer_text(folder, content, text.max_words, first=1)


def tokenizer_text(folder: Path, content: bytes, length: int, first: int = 0, suffix: str = "") -> TextInfo:
    """Write a ``tokenizer.json`` into a deployment, and say how it is used; see `TextInfo`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = write_digested(folder, "tokenizer", ".json", content)
    return TextInfo("tokenizer", length, file=info.file, sha256=info.sha256, first=first, suffix=suffix)
