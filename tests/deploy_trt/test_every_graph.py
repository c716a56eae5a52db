"""Every policy as graphs: ONNX Runtime gives what torch gives, and TensorRT-RTX builds every graph without a GPU."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy_trt.build import RTX_REQUEST, build_engines, rtx_without_gpu, run_worker
from deploy_trt.export import export_flow_vla
from deploy_trt.export.graph import ExportedGraph, GraphSpec, split_weights
from deploy_trt.export.lerobot import export_lerobot
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed, open_backend
from deploy_trt.runtime.folder import materialised
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.program import Program, probe_actions
from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy

KINDS = ("act", "diffusion", "smolvla", "pi0")


def build_without_gpu(graphs: Sequence[ExportedGraph], folder: Path) -> None:
    """TensorRT-RTX's parser and builder, on this CPU."""
    if reason := rtx_without_gpu():
        pytest.skip(reason)
    serialized, weights = split_weights(graphs)
    with materialised(serialized, weights) as files:
        for name in serialized:
            request = {**RTX_REQUEST, "onnx": str(files / f"{name}.onnx"), "engine": str(folder / name)}
            assert run_worker(request)["bytes"] > 0


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("lerobot.policies", reason="needs the extra 'train'")
    pytest.importorskip("transformers", reason="needs the extra 'lerobot-policies'")
    pytest.importorskip("diffusers", reason="needs the extra 'lerobot-policies'")
    from tests.fakes import lerobot_tiny

    made: dict[str, tuple[Any, Path]] = {}

    def make(kind: str) -> tuple[Any, Path]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            options = {"clip_sample_range": 4.0} if kind == "diffusion" else {}
            policy = lerobot_tiny.make(kind, folder, **options)
            lerobot_tiny.write_tokenizer(folder / "words.json")
            tiny = (lerobot_tiny.SPEC, lerobot_tiny.statistics(), lerobot_tiny.IMAGE_STATISTICS)
            export_lerobot(policy, folder / "out", *tiny, folder / "words.json", {"policy_version": 5})
            made[kind] = policy, folder / "out"
        return made[kind]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_lerobot_policies_give_the_chunks_of_lerobot(lerobot: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against lerobot's own ``predict_action_chunk``, fed as lerobot feeds it."""
    policy, folder = lerobot(kind)
    deployed = load_deployed(folder, require="ort-cpu")
    rng = np.random.default_rng(1)
    images = {camera: rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for camera in ("front", "top")}
    observation = Observation(images, rng.normal(2, 3, 3).astype(np.float32), "push block", 4)
    deployed.reset(3)
    chunk = deployed.infer(observation)
    assert chunk.policy_version == 5

    seen = _lerobots_answer(policy, deployed, observation, kind, monkeypatch)
    raw = deployed.program.units.denormalize(seen)
    np.testing.assert_allclose(chunk.actions, raw, atol=1e-4)
    elsewhere = deployed.infer(replace(observation, state=observation.state + 1))
    assert np.abs(chunk.actions - elsewhere.actions).max() > 1e-4


def _lerobots_answer(
    policy: Any, deployed: DeployedPolicy, observation: Observation, kind: str, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """lerobot's chunk for the same noise, normalized, [H, A]."""
    from tests.fakes.lerobot_tiny import IMAGE_STATISTICS
    from vla_rl.core.flow_sampling import flow_noise

    sampler = deployed.manifest.sampler
    batch: dict[str, Any] = {"observation.state": torch.from_numpy(deployed.inputs(observation)["state"])}
    for camera, image in observation.images.items():
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255.0
        if kind in ("act", "diffusion"):
            mean, std = (torch.tensor(row).view(1, 3, 1, 1) for row in IMAGE_STATISTICS[camera])
            pixels = (pixels - mean) / std
        batch[f"observation.images.{camera}"] = pixels
    if kind == "act":
        return policy.predict_action_chunk(batch)[0].numpy()
    noise = torch.from_numpy(flow_noise(3, observation.tick, sampler.horizon, sampler.width))[None]
    if kind == "diffusion":
        from deploy_trt.runtime.policy import _STEP_NOISE_SEED

        rows = flow_noise(3 ^ _STEP_NOISE_SEED, observation.tick, sampler.steps * sampler.horizon, sampler.width)
        fresh = iter(torch.from_numpy(rows.reshape(sampler.steps, 1, sampler.horizon, sampler.width)))
        module = sys.modules["diffusers.schedulers.scheduling_ddpm"]
        monkeypatch.setattr(module, "randn_tensor", lambda *_, **__: next(fresh))
        stacked = torch.stack([batch[f"observation.images.{camera}"] for camera in ("front", "top")], 1)[:, None]
        prepared = {"observation.state": batch["observation.state"][:, None], "observation.images": stacked}
        with torch.no_grad():
            return policy.diffusion.generate_actions(prepared, noise=noise)[0].numpy()
    tokens = deployed._tokenize(observation.task)
    batch["observation.language.tokens"] = torch.from_numpy(tokens["text"])
    batch["observation.language.attention_mask"] = torch.from_numpy(tokens["text_mask"])
    return policy.predict_action_chunk(batch, noise=noise)[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_lerobots_graphs_build_without_a_gpu(lerobot: Any, kind: str) -> None:
    _, folder = lerobot(kind)
    if reason := rtx_without_gpu():
        pytest.skip(reason)
    assert all(engine.file.stat().st_size for engine in build_engines(folder, "trt-rtx", without_gpu=True))


@pytest.mark.slow
def test_ours_build_without_a_gpu_and_are_found_again(exported_choosing: Path, tmp_path: Path) -> None:
    """Graph ``selection`` is one of them."""
    if reason := rtx_without_gpu():
        pytest.skip(reason)
    folder = shutil.copytree(exported_choosing, tmp_path / "deployment")
    for cached in (False, True):
        engines = build_engines(folder, "trt-rtx", without_gpu=True)
        assert [engine.cached for engine in engines] == [cached] * 4
    with pytest.raises(UserError, match="only TensorRT-RTX builds without a GPU"):
        build_engines(folder, "trt", without_gpu=True)


@pytest.mark.slow
def test_the_unrolled_graph_gives_the_same_chunks(model: FlowVLA, policy: DeployedPolicy, tmp_path: Path) -> None:
    from tiny_policy import make_observation

    export_flow_vla(model, tmp_path, {}, unrolled=True)
    unrolled = load_deployed(tmp_path, require="ort-cpu")
    assert (policy.manifest.provides, unrolled.manifest.provides) == (("guidance", "prefix"), ())
    ours = unrolled.infer(make_observation()).actions
    np.testing.assert_allclose(ours, policy.infer(make_observation()).actions, atol=1e-5)
    with pytest.raises(UserError, match="cannot begin a chunk"):
        unrolled.infer(make_observation(), ours[:2])


@pytest.mark.slow
def test_guidance_modulation_rotary_positions_and_windows_survive(tmp_path: Path) -> None:
    """The options of the policy that change its graphs, all at once."""
    from tiny_policy import make_model, make_observation

    from vla_rl.policies.flow_vla import ExpertConfig, TextConfig

    expert = ExpertConfig(width=32, layers=1, heads=2, actions_per_token=1, window=3, rotary=True)
    text = TextConfig(max_words=6, film=True)
    model = make_model(expert=expert, text=text, indicator=True, guidance_scale=2.0, sampling_steps=2, prefix_max=3)
    export_flow_vla(model, tmp_path, {})
    deployed, reference = load_deployed(tmp_path, require="ort-cpu"), FlowVLAPolicy(model)
    for committed in (None, np.zeros((2, 2), np.float32)):
        ours, theirs = (one.infer(make_observation(), committed).actions for one in (deployed, reference))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_the_world_models_step_is_a_graph(tmp_path: Path) -> None:
    from benchmarks.deploy import world_model_step

    spec = world_model_step()
    graph = spec.export()
    _same_as_module(spec, graph)
    build_without_gpu([graph], tmp_path)


def _same_as_module(spec: GraphSpec, graph: ExportedGraph) -> None:
    with torch.no_grad():
        expected = spec.module(*spec.inputs.values())
    serialized, weights = split_weights([graph])
    backend = OrtBackend("ort-cpu", serialized, weights)
    feeds = {name: backend.put(tensor.numpy()) for name, tensor in spec.inputs.items()}
    outputs = backend.run(graph.name, feeds)
    for name, tensor in zip(spec.outputs, expected, strict=True):
        np.testing.assert_allclose(backend.get(outputs[name]), tensor.numpy(), atol=1e-4)


@pytest.mark.slow
def test_recorded_probes_are_torchs(deployment: Deployment) -> None:
    program = Program(deployment.manifest, open_backend(deployment, "ort-cpu"))
    probes = deployment.probes()
    for ours, theirs in zip(probe_actions(program, probes), probes["actions"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
