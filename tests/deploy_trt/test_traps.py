"""The eight traps of deploying weights that change. Each of them went wrong somewhere, mostly without a word."""

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tiny_policy import make_observation
from torch import nn

import deploy_trt.build
from deploy_trt.build import check_version, engine_key
from deploy_trt.export.flow_vla import flow_vla_graphs
from deploy_trt.export.graph import export_module, split_weights
from deploy_trt.quantize import quantize_deployment
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed
from deploy_trt.runtime.ladder import TOLERANCES, difference
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.program import Program, probe_actions
from deploy_trt.runtime.refresh import refresh
from deploy_trt.runtime.weights import pack, unpack
from deploy_trt.verify import mutation_test
from tests.fakes.resealed import resealed
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy


class Twins(nn.Module):
    """Two norms with equal weights and a transposed product: what the exporter's optimizer merges and folds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.product = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.product(self.first(x)) * 2)


def test_1_weights_keep_their_names_and_new_ones_reach_every_node(
    policy: DeployedPolicy, newer: tuple[FlowVLA, Path], tmp_path: Path
) -> None:
    """The exporter's optimizer merges equal weights and folds transposes; new weights by name then miss."""
    module = Twins()
    graph = export_module("twins", module, {"x": torch.randn(2, 4)}, ["y"])
    assert set(graph.weights) == set(module.state_dict())
    serialized, weights = split_weights([graph])
    changed = {
        name: np.random.default_rng(0).normal(size=array.shape).astype(np.float32)
        for name, array in unpack(weights).items()
    }
    backend = OrtBackend("ort-cpu", serialized, pack(changed))
    x = torch.randn(2, 4)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in changed.items()})
    ours = backend.get(backend.run("twins", {"x": backend.put(x.numpy())})["y"])
    np.testing.assert_allclose(ours, module(x).detach().numpy(), atol=1e-5)

    new, checkpoint = newer
    policy.folder = Path(shutil.copytree(policy.folder, tmp_path / "copy"))
    refresh(policy, checkpoint)
    np.testing.assert_allclose(
        policy.infer(make_observation()).actions, FlowVLAPolicy(new).infer(make_observation()).actions, atol=1e-5
    )


@pytest.mark.slow
def test_2_no_axis_is_frozen_or_freed_without_a_word(deployment: Deployment, model: FlowVLA) -> None:
    """A language length that varies is frozen by the exporter: it is padded to a fixed length instead."""
    for graph in deployment.manifest.graphs.values():
        assert all(size > 0 for info in graph.inputs.values() for size in info.shape)
    assert deployment.manifest.graphs["prefix"].inputs["text"].shape == (1, model.config.text.max_words)


@pytest.mark.slow
def test_3_cosine_is_not_enough_and_a_graph_that_kept_old_weights_is_found(deployment: Deployment) -> None:
    old = np.random.default_rng(0).normal(size=(8, 4))
    slightly_wrong = difference([old * (1 + 0.02 * np.sin(np.arange(4)))], [old])
    assert slightly_wrong.cosine > 0.999
    assert not slightly_wrong.within(TOLERANCES["fp32"])

    class KeepsOldWeights(OrtBackend):
        def with_weights(self, graphs: object, weights: object) -> OrtBackend:
            return self

    def rungs(kind: type[OrtBackend]) -> list[bool | None]:
        backend = kind("ort-cpu", deployment.graphs, deployment.weights)
        return [rung.passed for rung in mutation_test(deployment, Program(deployment.manifest, backend))]

    assert all(rungs(OrtBackend))
    assert len(rungs(OrtBackend)) > 5
    assert not any(rungs(KeepsOldWeights))


@pytest.mark.slow
def test_4_precision_comes_from_types_and_never_from_a_builder_flag(model: FlowVLA) -> None:
    """TensorRT 11 has no weak typing: a flag for half precision gives float32 there, without an error."""
    source = inspect.getsource(deploy_trt.build)
    assert not re.search(r"BuilderFlag\.(FP16|BF16|INT8|FP8)|fp16=|int8=|Calibrator", source)
    assert "strongly_typed=True" in source
    serialized, weights = split_weights(flow_vla_graphs(model, "bf16"))
    assert {array.dtype.name for name, array in unpack(weights).items() if "time" not in name} == {"bfloat16"}
    step = onnx.load_from_string(serialized["step"])
    types = {value.name: value.type.tensor_type.elem_type for value in (*step.graph.input, *step.graph.output)}
    assert types["actions"] == types["next_actions"] == onnx.TensorProto.FLOAT
    assert types["key.0"] == onnx.TensorProto.BFLOAT16
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_5_versions_that_lose_a_bias_are_refused() -> None:
    for version in ("11.3.0.99", "11.3.1", "8.6.1"):
        with pytest.raises(UserError, match="TensorRT"):
            check_version(version)
    for version in ("10.3.0", "10.16.2", "11.4.1"):
        check_version(version)


@pytest.mark.slow
def test_6_the_integration_is_in_float32_in_every_precision(model: FlowVLA) -> None:
    """In half precision small steps vanish beside large actions; pi0.5 came out with a cosine of -0.55."""
    graphs = flow_vla_graphs(model, "fp16")
    serialized, weights = split_weights(graphs)
    step = onnx.load_from_string(serialized["step"])
    producers = {output: node for node in step.graph.node for output in node.output}
    total = producers["next_actions"]
    assert total.op_type == "Add"
    assert "actions" in total.input
    backend = OrtBackend("ort-cpu", {"step": serialized["step"]}, weights)
    infos = {graph.name: graph for graph in graphs}["step"].inputs
    feeds = {name: np.zeros(info.shape, info.dtype) for name, info in infos.items()}
    feeds["actions"] += np.float32(1000)
    feeds["step_size"] += np.float32(1e-3)
    outputs = {
        name: backend.get(value)
        for name, value in backend.run("step", {k: backend.put(v) for k, v in feeds.items()}).items()
    }
    moved = outputs["next_actions"].astype(np.float64) - 1000
    assert np.abs(moved).max() > 0
    np.testing.assert_allclose(moved, 1e-3 * outputs["velocity"], atol=1e-4)  # float16 near 1000 has steps of 0.5


@pytest.mark.parametrize("mode", ["int8-static", "fp8"])
def test_7_calibration_without_data_is_an_error(exported: Path, tmp_path: Path, mode: str) -> None:
    with pytest.raises(UserError, match="needs real observations"):
        quantize_deployment(exported, tmp_path / "out", mode)
    assert not (tmp_path / "out").exists()


def test_8_engines_are_built_to_be_refitted_with_other_weights() -> None:
    """REFIT_IDENTICAL, and STRIP_PLAN that implies it, are undefined for weights that changed."""
    source = re.sub(r"#.*", "", inspect.getsource(deploy_trt.build))
    assert "BuilderFlag.REFIT)" in source
    assert "REFIT_IDENTICAL" not in source
    assert "STRIP_PLAN" not in source


def test_an_engine_is_found_again_under_all_that_it_depends_on(exported: Path) -> None:
    deployment = Deployment.read(exported)
    manifest = deployment.manifest
    assert manifest.weights is not None
    refreshed = replace(manifest, weights=replace(manifest.weights, sha256="0" * 64))
    keys = {
        engine_key(
            replace(deployment, manifest=found),
            next(iter(manifest.graphs)),
            (backend, version, 87),
            without_gpu,
        )
        for found in (manifest, refreshed, replace(manifest, precision="bf16"))
        for backend in ("trt", "trt-rtx")
        for version in ("10.3", "10.4")
        for without_gpu in (True, False)
    }
    assert len(keys) == 24, "an engine with the weights before a refresh would act in place of the new ones"


def test_a_refused_checkpoint_leaves_the_policy_as_it_is(
    policy: DeployedPolicy, newer: tuple[FlowVLA, Path], tmp_path: Path
) -> None:
    policy.folder = Path(shutil.copytree(policy.folder, tmp_path / "copy"))
    before = policy.infer(make_observation()).actions
    _, checkpoint = newer
    description = (checkpoint / "config.json").read_text()
    for damaged, message in [
        (resealed(json.loads(description.replace('"horizon": 8', '"horizon": 16'))), "another horizon"),
        (description.replace('"sha256": "', '"sha256": "0'), "damaged"),
        ("{}", "not the config of a vla-rl-policy"),
        (description.replace('"policy_version": 4', '"policy_version": 5'), "damaged"),
    ]:
        (checkpoint / "config.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=message):
            refresh(policy, checkpoint)
    assert policy.version == 3
    np.testing.assert_array_equal(policy.infer(make_observation()).actions, before)
    assert probe_actions(policy.program, Deployment.read(policy.folder).probes())
    assert isinstance(load_deployed(policy.folder, require="ort-cpu"), DeployedPolicy)
