"""New weights in a running policy: what acts is the old policy or the new one, whole. What may not act never does."""

import json
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import fake_tensorrt
import numpy as np
import pytest
from choosers import make_head, make_selector, save_choosing
from tiny_policy import make_observation

from deploy_trt import exploration
from deploy_trt.exploration import ExplorationPolicies
from deploy_trt.quantize import quantize_deployment, record_feeds
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed, loading
from deploy_trt.runtime import refresh as refresh_module
from deploy_trt.runtime.cuda import CudaRuntime
from deploy_trt.runtime.manifest import CRITIC_LEFT_OUT
from deploy_trt.runtime.probe import Probe, probe
from deploy_trt.runtime.program import Program
from deploy_trt.runtime.refresh import refresh, selection_weights, watch
from deploy_trt.runtime.trt import TrtBackend
from tests.fakes.resealed import resealed
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.version_watcher import VersionWatcher
from vla_rl.policies.corrector import FOLDER
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy


@pytest.fixture
def copied(policy: DeployedPolicy, tmp_path: Path) -> DeployedPolicy:
    policy.folder = Path(shutil.copytree(policy.folder, tmp_path / "deployment"))
    return policy


def test_new_weights_act_and_survive_a_restart(copied: DeployedPolicy, newer: tuple[FlowVLA, Path]) -> None:
    model, checkpoint = newer
    before = copied.infer(make_observation()).actions
    done = refresh(copied, checkpoint)
    assert done.version == copied.version == 4
    assert done.max_abs < 1e-4
    expected = FlowVLAPolicy(model).infer(make_observation()).actions
    np.testing.assert_allclose(copied.infer(make_observation()).actions, expected, atol=1e-5)
    assert np.abs(before - expected).max() > 1e-3
    restarted = load_deployed(copied.folder, require="ort-cpu")
    assert restarted.version == 4
    np.testing.assert_allclose(restarted.infer(make_observation()).actions, expected, atol=1e-5)
    assert len(list(copied.folder.glob("weights-*"))) == 1


def test_graphs_that_act_otherwise_never_act(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that keeps its old weights is found before the swap; the old policy goes on, also after a restart."""
    before = copied.infer(make_observation()).actions
    monkeypatch.setattr(refresh_module, "backend_with", lambda running, deployment: running)
    with pytest.raises(UserError, match="The old weights go on acting"):
        refresh(copied, newer[1])
    assert copied.version == 3
    assert (copied.infer(make_observation()).actions == before).all()
    assert load_deployed(copied.folder, require="ort-cpu").version == 3


def test_a_version_with_another_residual_head_is_refused(
    copied: DeployedPolicy, model: FlowVLA, newer: tuple[FlowVLA, Path]
) -> None:
    """It acts in the control process: a new version beside the old head would be a policy that nobody has tried."""
    heads = [make_head(model) for _ in range(2)]
    watcher = watch(copied, newer[1].parent)
    for deployed, found, said in [(None, 1, "another residual head"), (0, 1, "export it anew"), (0, None, r"\(none\)")]:
        for folder, head in ((copied.folder, deployed), (newer[1], found)):
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
            if head is not None:
                heads[head].save(folder / FOLDER)
        with pytest.raises(CheckpointError, match=said):
            refresh(copied, newer[1])
        watcher.look()
        assert "another residual head" in str(watcher.last_error)
        assert copied.version == Deployment.read(copied.folder).manifest.policy_version == 3
    (newer[1] / FOLDER).mkdir()
    with pytest.raises(CheckpointError, match="holds no residual head that can be read"):
        refresh(copied, newer[1])
    heads[0].save(newer[1] / FOLDER)
    watcher.look()
    assert copied.version == 4, "it is looked at again when its head has come"


def test_weights_that_are_not_finite_are_refused(copied: DeployedPolicy, newer: tuple[FlowVLA, Path]) -> None:
    model, checkpoint = newer
    model.expert.action_in.weight.data[0, 0] = float("nan")
    model.save(checkpoint, {"policy_version": 4})
    with pytest.raises(UserError, match="not finite"):
        refresh(copied, checkpoint)
    assert copied.version == 3


@pytest.mark.parametrize(
    ("place", "other", "message"),
    [
        ("statistics.state.std", [3.0, 3.0, 2.0], "normalization of the state"),
        ("statistics.action.std", [2.0, 2.0], "normalization of the action"),
        ("statistics.action.high", [20.0, 20.0], "normalization of the action"),
        ("statistics.discrete_dims", [], "normalization of the action"),
        ("statistics.discrete_dims", [0, 1], "normalization of the action"),
        ("spec.cameras", ["top", "front"], "cameras"),
        ("spec.image_size", [32, 32], r"image_size \(32, 32\), the deployed policy \(16, 16\)"),
        ("spec.state_dim", 4, "state_dim 4, the deployed policy 3; export it anew"),
        ("spec.control_hz", 50.0, "control_hz"),
        ("spec.delta_dims", [0], "delta_dims"),
        ("spec.sizes", [[2, 1], [3, 2]], "sizes"),
        (
            "spec.dimensions",
            [[{"names": ["x", "y", "z"]}, {"names": ["x", "y"]}]],
            "x, y, z, the deployed .* undeclared",
        ),
        ("config.horizon", 4, "horizon"),
    ],
)
def test_a_checkpoint_of_another_normalisation_or_robot_is_refused(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], place: str, other: object, message: str
) -> None:
    before = copied.infer(make_observation()).actions
    file, *parts, name = newer[1] / "config.json", *place.split(".")
    part = content = json.loads(file.read_text())
    for inner in parts:
        part = part[inner]
    part[name] = other
    file.write_text(resealed(content))
    with pytest.raises(CheckpointError, match=message):
        refresh(copied, newer[1])
    assert copied.version == 3
    assert (copied.infer(make_observation()).actions == before).all()


def test_a_watched_folder_refreshes_between_chunks(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """While new versions come in, every chunk is that of one version; a bad one is said once and changes nothing."""
    model, checkpoint = newer
    policies = checkpoint.parent
    old = copied.infer(make_observation()).actions
    new = FlowVLAPolicy(model).infer(make_observation()).actions
    with watch(copied, policies, period_s=0.01) as watcher:
        deadline_s = time.monotonic() + 60
        while copied.version < 4 and time.monotonic() < deadline_s:
            chunk = copied.infer(make_observation())
            assert min(np.abs(chunk.actions - old).max(), np.abs(chunk.actions - new).max()) < 1e-5
        assert copied.version == 4
        (policies / "version_0005").mkdir()
        (policies / "version_0005" / "config.json").write_text("{}")
        while watcher.last_error is None and time.monotonic() < deadline_s:
            threading.Event().wait(0.01)
    assert "is not the config of" in str(watcher.last_error)
    assert copied.version == 4
    np.testing.assert_allclose(copied.infer(make_observation()).actions, new, atol=1e-5)


def test_a_version_that_was_copied_in_part_is_looked_at_again(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], tmp_path: Path
) -> None:
    """The config came first: refused, without a second look at the same files; whole, it acts."""
    version = tmp_path / "policies" / "version_0004"
    version.mkdir(parents=True)
    shutil.copy(newer[1] / "config.json", version)
    watcher = watch(copied, version.parent)
    watcher.look()
    assert copied.version < 4
    assert "cannot read the weights" in str(watcher.last_error)
    watcher.last_error = None
    watcher.look()
    assert watcher.last_error is None
    for file in newer[1].glob("*.safetensors"):
        shutil.copy(file, version)
    watcher.look()
    assert copied.version == 4


def test_a_version_whose_critic_comes_last_is_looked_at_again(
    exported_choosing: Path, model: FlowVLA, tmp_path: Path
) -> None:
    """As rsync copies, a folder's own files first; and a critic's file that grows where it lies."""
    deployed = load_deployed(shutil.copytree(exported_choosing, tmp_path / "deployment"), require="ort-cpu")
    whole = save_choosing(tmp_path / "whole", model, make_selector(model, 1), version=4)
    version = tmp_path / "policies" / "version_0004"
    version.mkdir(parents=True)
    for file in whole.glob("*.*"):
        shutil.copy(file, version)
    watcher = watch(deployed, version.parent)
    watcher.look()
    assert deployed.version == 3
    assert watcher.last_error
    shutil.copytree(whole / "critic", version / "critic")
    (weights,) = (version / "critic").glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-8])
    watcher.look()
    assert deployed.version == 3
    weights.write_bytes(content)
    watcher.look()
    assert deployed.version == 4


def test_a_version_that_is_an_older_one_again_comes_in_once(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a check that failed, a run writes the version before as its next: that is no newer for ever."""
    taken: list[Path] = []
    real = refresh_module.refresh

    def counted(policy: DeployedPolicy, checkpoint: Path) -> refresh_module.Refreshed:
        taken.append(checkpoint)
        return real(policy, checkpoint)

    monkeypatch.setattr(refresh_module, "refresh", counted)
    shutil.copytree(newer[1], newer[1].parent / "version_0006")  # of version 4, as its weights say
    watcher = watch(copied, newer[1].parent)
    for _ in range(3):
        watcher.look()
    assert [folder.name for folder in taken] == ["version_0006"]


def test_a_policy_that_was_exported_without_its_critic_follows_its_run(
    newer: tuple[FlowVLA, Path], copied: DeployedPolicy
) -> None:
    """Whatever lies in ``critic``, a residual without one or a damaged one: what is deployed does not use it."""
    manifest = Deployment.read(copied.folder).manifest
    source = {**manifest.source, "meta": {**manifest.source.get("meta", {}), "critic": CRITIC_LEFT_OUT}}
    (newer[1] / "critic").mkdir()
    (newer[1] / "critic" / "config.json").write_text("{}")
    assert selection_weights(newer[1], replace(manifest, source=source)) == {}


def test_the_watching_goes_on_after_a_file_has_vanished(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = VersionWatcher.look

    def vanishing(self: VersionWatcher) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise FileNotFoundError("config.json")
        real(self)

    monkeypatch.setattr(VersionWatcher, "look", vanishing)
    with watch(copied, newer[1].parent, period_s=0.01):
        deadline_s = time.monotonic() + 60
        while copied.version < 4 and time.monotonic() < deadline_s:
            threading.Event().wait(0.01)
    assert copied.version == 4


def make_trt(deployment: Deployment) -> TrtBackend:
    plans = {
        name: fake_tensorrt.plan(graph, deployment.weights or b"", deployment.manifest.graphs[name])
        for name, graph in deployment.graphs.items()
    }
    cuda = CudaRuntime(fake_tensorrt.CUDA)
    return TrtBackend("trt", deployment.manifest, plans, sys.modules["fake_tensorrt"], cuda)


def test_engines_share_buffers_and_launch_the_loop_once(deployment: Deployment, policy: DeployedPolicy) -> None:
    """On a host that plays TensorRT: what is bound to what, the captured loop, and no memory that grows."""
    on_trt = DeployedPolicy(Program(deployment.manifest, make_trt(deployment)), deployment.folder)
    np.testing.assert_allclose(
        on_trt.infer(make_observation()).actions, policy.infer(make_observation()).actions, atol=1e-6
    )
    launches, allocated = fake_tensorrt.CUDA.launches, len(fake_tensorrt.CUDA.memory)
    captured = len(fake_tensorrt.CUDA.graphs)
    for seed in range(5):
        ours, theirs = (one.infer(make_observation(seed)).actions for one in (on_trt, policy))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert fake_tensorrt.CUDA.launches == launches + 5
    assert len(fake_tensorrt.CUDA.graphs) == captured
    assert len(fake_tensorrt.CUDA.memory) == allocated


def test_engines_draw_all_candidates_at_once(exported_choosing: Path) -> None:
    deployment = Deployment.read(exported_choosing)
    on_trt = DeployedPolicy(deployment.program(make_trt(deployment)), deployment.folder)
    expected = load_deployed(exported_choosing, require="ort-cpu")
    np.testing.assert_allclose(
        on_trt.infer(make_observation()).actions, expected.infer(make_observation()).actions, atol=1e-6
    )
    launches = fake_tensorrt.CUDA.launches
    np.testing.assert_allclose(
        on_trt.infer(make_observation(1)).actions, expected.infer(make_observation(1)).actions, atol=1e-6
    )
    assert fake_tensorrt.CUDA.launches == launches + 1


def test_engines_are_refitted_beside_the_running_ones(
    copied: DeployedPolicy, newer: tuple[FlowVLA, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment.read(copied.folder)
    running = make_trt(deployment)
    on_trt = DeployedPolicy(Program(deployment.manifest, running), copied.folder)
    before = on_trt.infer(make_observation()).actions
    monkeypatch.setattr(fake_tensorrt, "MISSING", ["expert.action_in.weight"])
    with pytest.raises(UserError, match=r"would keep old weights .*action_in"):
        refresh(on_trt, newer[1])
    assert (on_trt.infer(make_observation()).actions == before).all()
    monkeypatch.setattr(fake_tensorrt, "MISSING", [])
    refresh(on_trt, newer[1])
    expected = FlowVLAPolicy(newer[0]).infer(make_observation()).actions
    np.testing.assert_allclose(on_trt.infer(make_observation()).actions, expected, atol=1e-5)
    assert on_trt.program.backend is not running


@pytest.mark.slow
def test_quantised_policies_are_close_and_differ(exported: Path, policy: DeployedPolicy, tmp_path: Path) -> None:
    observations = [make_observation(seed, seed) for seed in range(8)]
    feeds = record_feeds(Deployment.read(exported), observations)
    assert {name: len(rows) for name, rows in feeds.items()} == {"prefix": 8, "time": 1, "step": 24}
    for mode in ("int8-dynamic", "int8-static"):
        quantize_deployment(exported, tmp_path / mode, mode, observations, check=False)
        quantised = load_deployed(tmp_path / mode, require="ort-cpu")
        gap = np.abs(quantised.infer(make_observation(1)).actions - policy.infer(make_observation(1)).actions)
        assert 1e-6 < gap[:, 0].max() < 1.0  # of actions whose deviation is 2; the other dimension has two levels
        assert quantised.version == 3
        with pytest.raises(UserError, match="quantise the new checkpoint"):
            refresh(quantised, exported)


@pytest.mark.slow
def test_collecting_on_engines_builds_once_and_refits(
    newer: tuple[FlowVLA, Path], model: FlowVLA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path / "version_0003", {"policy_version": 3})
    builds = []

    def build(folder: Path, *_: object) -> None:
        builds.append(folder)

    monkeypatch.setattr(exploration, "build_engines", build)
    monkeypatch.setattr(TrtBackend, "open", lambda name, folder, manifest: make_trt(Deployment.read(folder)))
    for module in (loading, exploration):
        monkeypatch.setattr(module, "probe", lambda name: Probe(True))
    with ExplorationPolicies("trt") as policies:
        policy = policies.load(tmp_path / "version_0003")
        assert (policy.version, policy.program.backend.name) == (3, "trt")
        before = policy.infer(make_observation()).actions
        assert policies.load(newer[1]) is policy
        after = policy.infer(make_observation()).actions
    assert len(builds) == 1
    assert (policy.version, policy.program.backend.name) == (4, "trt")
    for actions, exact in ((before, model), (after, newer[0])):
        np.testing.assert_allclose(actions, FlowVLAPolicy(exact).infer(make_observation()).actions, atol=1e-5)


def test_without_tensorrt_nobody_begins_to_collect_on_engines() -> None:
    if probe("trt").works:
        pytest.skip("TensorRT works here")
    with pytest.raises(UserError, match="TensorRT does not work here"):
        ExplorationPolicies("trt")


@pytest.mark.slow
def test_collecting_in_low_precision_follows_the_versions(
    newer: tuple[FlowVLA, Path], model: FlowVLA, tmp_path: Path
) -> None:
    model.save(tmp_path / "version_0003", {"policy_version": 3})
    with ExplorationPolicies("int8-dynamic") as policies:
        first, second = policies.load(tmp_path / "version_0003"), policies.load(newer[1])
    assert (first.version, second.version) == (3, 4)
    for quantised, exact in [(first, model), (second, newer[0])]:
        gap = np.abs(
            quantised.infer(make_observation()).actions - FlowVLAPolicy(exact).infer(make_observation()).actions
        )
        assert 1e-6 < gap[:, 0].max() < 1.0
    with pytest.raises(UserError, match="Did you mean 'int8-static'"):
        ExplorationPolicies("int8-sttic")
    with pytest.raises(UserError, match="real observations"):
        ExplorationPolicies("int8-static")
