"""A deployed policy against the one in torch: the same chunks from the same seeds, and the same refusals."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_policy import make_observation

from deploy_trt.runtime import DeployedPolicy, load_deployed, load_manifest
from deploy_trt.runtime.probe import run_probe
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.protocols import Policy
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy

SAME = 1e-5


def test_it_plans_what_the_policy_in_torch_plans(policy: DeployedPolicy, model: FlowVLA) -> None:
    reference = FlowVLAPolicy(model, version=3)
    assert isinstance(policy, Policy)
    for seed in (0, 7):
        policy.reset(seed)
        reference.reset(seed)
        for tick in (0, 5, 11):
            observation = make_observation(seed, tick, "push the red block over there please now")
            ours, theirs = policy.infer(observation), reference.infer(observation)
            np.testing.assert_allclose(ours.actions, theirs.actions, atol=SAME)
            assert ours.actions.dtype == np.float32
            assert (ours.start_tick, ours.chunk_id, ours.policy_version) == (tick, theirs.chunk_id, 3)


def test_inputs_end_at_the_same_limit_as_in_torch(policy: DeployedPolicy, model: FlowVLA) -> None:
    reference, committed = FlowVLAPolicy(model), np.full((2, 2), 1e4, np.float32)
    plans = []
    for state in (1e3, 1e6):
        observation = dataclasses.replace(make_observation(), state=np.array([state, 2.0, -state], np.float32))
        for given in (None, committed):
            ours, theirs = policy.infer(observation, given).actions, reference.infer(observation, given).actions
            np.testing.assert_allclose(ours, theirs, atol=SAME)
            plans.append(ours)
    np.testing.assert_array_equal(plans[:2], plans[2:])


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_committed_actions_open_the_chunk(policy: DeployedPolicy, model: FlowVLA, length: int) -> None:
    committed = np.random.default_rng(0).normal(size=(length, 2)).astype(np.float32)
    ours = policy.infer(make_observation(), committed).actions
    assert (ours[:length] == committed).all()
    np.testing.assert_allclose(ours, FlowVLAPolicy(model).infer(make_observation(), committed).actions, atol=SAME)


def test_guidance_without_gradients_is_that_of_torch(policy: DeployedPolicy, model: FlowVLA) -> None:
    previous = policy.infer(make_observation()).actions[:6] + 1.0
    ours = policy.infer_guided(make_observation(1), previous, 2, exact_gradient=False)
    theirs = FlowVLAPolicy(model).infer_guided(make_observation(1), previous, 2, exact_gradient=False)
    np.testing.assert_allclose(ours.actions, theirs.actions, atol=SAME)
    with pytest.raises(UserError, match="no gradients"):
        policy.infer_guided(make_observation(), previous, 2, exact_gradient=True)


def test_what_does_not_fit_is_refused(policy: DeployedPolicy) -> None:
    good = make_observation()
    for bad, message in [
        (dataclasses.replace(good, images={"front": good.images["front"]}), "top"),
        (dataclasses.replace(good, images={**good.images, "top": good.images["front"][:8]}), "image size"),
        (dataclasses.replace(good, state=np.zeros(5, np.float32)), "state"),
    ]:
        with pytest.raises(UserError, match=message):
            policy.infer(bad)
    with pytest.raises(UserError, match="given actions"):
        policy.infer(good, np.zeros((9, 2), np.float32))


def test_the_runtime_needs_no_torch(exported: Path, exported_choosing: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from deploy_trt.runtime import load_deployed
for folder in ({str(exported)!r}, {str(exported_choosing)!r}):
    load_deployed(Path(folder), require="ort-cpu")
forbidden = {{"torch", "lerobot", "onnx", "onnxscript", "gymnasium"}} & set(sys.modules)
assert not forbidden, forbidden
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_deployment_acts_from_python_without_torch(exported: Path) -> None:
    script = f"""
import sys
import vla_rl as vla
sys.modules.update(torch=None, lerobot=None, mujoco=None, gymnasium=None)
assert vla.rollout({str(exported)!r}, "mock", settings={{"robot.duration_s": 0.3}}) == [None]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_nothing_of_this_machine_is_in_the_folder(exported: Path) -> None:
    here = str(Path(__file__).parents[2]).encode()
    assert not [file.name for file in exported.iterdir() if file.is_file() and here in file.read_bytes()]


def test_a_damaged_folder_is_named(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no deployed policy"):
        load_manifest(tmp_path)
    for file in exported.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = next(tmp_path.glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(CheckpointError, match="not the file that the manifest means"):
        load_deployed(tmp_path, require="ort-cpu")
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="not the manifest"):
        load_manifest(tmp_path)


def test_the_reason_of_a_folder_stands_before_backends_that_are_not_installed(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CheckpointError("it plans another chunk than was recorded")

    monkeypatch.setattr("deploy_trt.runtime.loading._try", fail)
    with pytest.raises(UserError, match=r"no backend runs [^;]*: ort-cpu: it plans another chunk.*; trt: "):
        load_deployed(exported)


def test_a_required_backend_that_is_missing_is_an_error_and_a_wished_one_a_line(
    exported: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match=r"no backend runs .*trt: "):
        load_deployed(exported, require="trt")
    with pytest.raises(UserError, match="Did you mean 'ort-cpu'"):
        load_deployed(exported, require="ortcpu")  # type: ignore[arg-type]
    with caplog.at_level("INFO"):
        load_deployed(exported)
    (line,) = caplog.messages
    assert line.startswith("policy on ")
    assert "no trt (" in line


def test_a_probe_survives_a_crash() -> None:
    """A lean TensorRT runtime without a driver does not raise, it segfaults."""
    found = run_probe("import ctypes; ctypes.string_at(0)")
    assert not found.works
    assert "crashed" in found.reason
    assert "no such thing" in run_probe("raise RuntimeError('no such thing')").reason
