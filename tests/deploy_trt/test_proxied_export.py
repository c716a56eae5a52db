"""What improves a base policy goes without torch: proxy, residual and critic. The base policy stays where it is."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from choosers import DRAWS, make_selector
from tiny_policy import SPEC, TINY, make_model, make_observation

from deploy_trt.export import export_policy
from deploy_trt.export.deployment import random_observations
from deploy_trt.runtime import load_deployed, load_manifest
from deploy_trt.runtime.refresh import refresh
from deploy_trt.verify import verify
from tests.fakes import lerobot_tiny
from tests.fakes.lerobot_configs import shrink_resnet
from tests.fakes.resealed import resealed
from vla_rl.acting.policy_folder import find_policy
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.checkpoint import save_policy
from vla_rl.policies.flow_vla import FlowVLAConfig
from vla_rl.policies.folders import load_model, load_policy
from vla_rl.policies.lerobot_adapter import LeRobotModel
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig

SAME = 1e-5


class Noisy:
    """A base policy whose chunks depend on its seed and on the observations that it reads. The last chunk is short."""

    version, horizon, spec, n_obs_steps = 0, 8, SPEC, 1
    lacks = 0

    def reset(self, seed: int) -> None:
        self._seed = seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        assert len(observation.past) == self.n_obs_steps - 1
        noise = np.random.default_rng(self._seed).normal(size=(self.horizon - self.lacks, 2))
        drift = observation.state[:2] + sum(before.state[:2] for before in observation.past)
        return ActionChunk((noise + drift).astype(np.float32), observation.tick, 0, 0)


class Remembering(Noisy):
    n_obs_steps, lacks = 2, 3


def save(
    folder: Path, base: str = "Noisy", seed: int = 0, draws: int = 1, candidates: int = DRAWS, **selection: Any
) -> Path:
    """An improved policy of random weights, with pictures that the proxy sees at half their size."""
    spec = dataclasses.replace(SPEC, image_size=(128, 128))
    statistics = make_model(discrete_dims=(1,)).statistics
    config = ProxyConfig(base=f"{__name__}:{base}", draws=draws, net=FlowVLAConfig(**TINY))
    Noisy.spec = spec
    model = ProxiedPolicy(config, spec, statistics)
    model.load_state_dict({f"net.{name}": weight for name, weight in make_model(seed).state_dict().items()}, False)
    save_policy(folder, model, make_selector(model, seed, candidates, **selection), {"policy_version": seed})
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deployment of `save`. Read only."""
    folder = tmp_path_factory.mktemp("proxied")
    export_policy(save(folder / "policy"), folder / "out")
    return folder / "out"


def observation(seed: int, steps: int = 1) -> Observation:
    seen = []
    for before in range(steps):
        rng = np.random.default_rng([seed, before])
        images = {camera: rng.integers(0, 256, (128, 128, 3), dtype=np.uint8) for camera in SPEC.cameras}
        seen.append(dataclasses.replace(make_observation(seed + before, tick=seed), images=images))
    return dataclasses.replace(seen[-1], past=tuple(seen[:-1]))


@pytest.mark.slow
@pytest.mark.parametrize(("base", "draws"), [("Noisy", 1), ("Noisy", 3), ("Remembering", 2)])
def test_the_deployment_executes_what_torch_executes(base: str, draws: int, tmp_path: Path) -> None:
    policy = save(tmp_path / "policy", base, draws=draws)
    export_policy(policy, tmp_path / "out")
    ours, torchs = load_deployed(tmp_path / "out", require="ort-cpu"), load_policy(policy)
    steps = find_policy(tmp_path / "out").n_obs_steps
    assert steps == find_policy(policy).n_obs_steps == (2 if base == "Remembering" else 1)
    chosen = set()
    for seed in range(4):
        ours.reset(seed)
        torchs.reset(seed)
        seen = observation(seed, steps)
        executed = ours.infer(seen).actions
        np.testing.assert_allclose(executed, torchs.infer(seen).actions, atol=SAME)
        chosen.add(executed.tobytes())
    assert len(chosen) == 4
    assert all(rung.passed is not False for rung in verify(tmp_path / "out", "ort-cpu"))


@pytest.mark.slow
def test_new_weights_are_put_in_place_and_bad_ones_are_not(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "out")
    newer = save(tmp_path / "new", seed=1)
    ours = load_deployed(tmp_path / "out", require="ort-cpu")
    before = ours.infer(observation(0)).actions
    assert refresh(ours, newer).version == 1
    after = ours.infer(observation(0)).actions
    np.testing.assert_allclose(after, load_policy(newer).infer(observation(0)).actions, atol=SAME)
    assert np.abs(after - before).max() > 1e-3
    restarted = load_deployed(tmp_path / "out", require="ort-cpu")
    np.testing.assert_allclose(restarted.infer(observation(0)).actions, after, atol=SAME)
    with pytest.raises(CheckpointError, match="another base"):
        refresh(ours, save(tmp_path / "other", base="Remembering", seed=2))
    np.testing.assert_array_equal(ours.infer(observation(0)).actions, after)


def test_a_wrong_proxy_is_found(exported: Path, tmp_path: Path) -> None:
    """The chunks are recorded, so only what reads the features can show it."""
    shutil.copytree(exported, tmp_path / "wrong")
    refresh(load_deployed(tmp_path / "wrong", require="ort-cpu"), save(tmp_path / "new", seed=1))
    failed = [rung.name for rung in verify(tmp_path / "wrong", "ort-cpu") if rung.passed is False]
    assert "selection graph" in failed


def improved(folder: Path, base: Path, draws: int = 1) -> Path:
    """An improved policy of random weights, whose base policy lies in a folder."""
    own = load_model(base)[0]
    torch.manual_seed(0)
    model = ProxiedPolicy(ProxyConfig(base=str(base), draws=draws, net=FlowVLAConfig(**TINY)), own.spec, own.statistics)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_policy(folder, model, make_selector(model), {"policy_version": 1})
    return folder


def executes_the_same(policy: Path, deployment: Path, spec: PolicySpec) -> None:
    """The base policy may lie elsewhere, and torch has no part in a deployment."""
    export_policy(policy, deployment)
    shutil.move(deployment, deployment.with_name("moved"))
    ours, torchs = load_deployed(deployment.with_name("moved"), require="ort-cpu"), load_policy(policy)
    executed = []
    for tick, seen in enumerate(random_observations(spec, load_model(policy)[0].statistics.state)[:3]):
        ours.reset(tick)
        torchs.reset(tick)
        executed.append(ours.infer(seen).actions)
        np.testing.assert_allclose(executed[-1], torchs.infer(seen).actions, atol=1e-4)
    assert np.abs(executed[1] - executed[0]).max() > 1e-3


@pytest.mark.slow
def test_a_base_policy_of_ours_goes_along(tmp_path: Path) -> None:
    make_model(3).save(tmp_path / "base")
    executes_the_same(improved(tmp_path / "policy", tmp_path / "base", draws=3), tmp_path / "out", SPEC)
    manifest = tmp_path / "moved" / "base" / "manifest.json"
    manifest.write_text(resealed(json.loads(manifest.read_text()) | {"policy_version": 9}))
    with pytest.raises(CheckpointError, match="not the file that the manifest means"):
        load_deployed(tmp_path / "moved", require="ort-cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lerobot and transformers; not ours
@pytest.mark.parametrize("kind", ["act", "smolvla", "diffusion"])
def test_a_base_policy_of_lerobot_goes_along(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="SmolVLA needs the extra 'lerobot-policies'")
    pytest.importorskip("diffusers", reason="the diffusion policy needs the extra 'lerobot-policies'")
    shrink_resnet(monkeypatch)
    (tmp_path / "vlm").mkdir()
    LeRobotModel(lerobot_tiny.make(kind, tmp_path / "vlm"), lerobot_tiny.SPEC, lerobot_tiny.statistics()).save(
        tmp_path / "base"
    )
    policy = improved(tmp_path / "policy", tmp_path / "base")
    if kind == "diffusion":
        with pytest.raises(ConfigError, match=r"serve it"):
            export_policy(policy, tmp_path / "out")
        return
    executes_the_same(policy, tmp_path / "out", lerobot_tiny.SPEC)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    policy = save(tmp_path / "policy")
    with pytest.raises(UserError, match="no critic"):
        export_policy(policy, tmp_path / "out", with_critic=False)
    with pytest.raises(ConfigError, match="half_precision"):
        export_policy(policy, tmp_path / "out", precision="fp16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": None}, "does not fit the base"),
        ({"selection": None}, "nothing selects"),
        ({"base": {"name": "folder", "draws": 1, "n_obs_steps": 1}}, "base is"),
        ({"base": {"name": f"{__name__}:Noisy", "draws": 0, "n_obs_steps": 1}}, "base is"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, exported: Path, tmp_path: Path
) -> None:
    content = json.loads((exported / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(resealed(content))
    assert load_manifest(tmp_path).base
    (tmp_path / "manifest.json").write_text(resealed(content | change))
    with pytest.raises(CheckpointError, match=message):
        load_manifest(tmp_path)


def test_the_base_policy_of_another_robot_is_refused(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noisy, "spec", SPEC)
    with pytest.raises(UserError, match=r"Noisy has the image_size \(16, 16\), this deployment \(128, 128\)"):
        load_deployed(exported, require="ort-cpu")
