"""``vla-rl export``: from a checkpoint to a verified folder, quantised on the way, with an exit code that says so."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from choosers import make_head
from tiny_policy import make_observation

from deploy_trt.runtime import Deployment, load_manifest
from deploy_trt.runtime.manifest import save_manifest, write_digested
from deploy_trt.runtime.weights import pack, unpack
from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.main import main
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.policies.flow_vla import FlowVLA


def make_store(folder: Path) -> Path:
    seen = [make_observation(seed, seed) for seed in range(6)]
    images = {name: np.stack([one.images[name] for one in seen]) for name in seen[0].images}
    actions = np.zeros((6, 2), np.float32)
    state, source = np.stack([one.state for one in seen]), np.zeros(6, np.uint8)
    columns = ("e0", images, state, actions, actions, source, "push the block", True, True)
    EpisodeStore(folder).add(Episode(*columns, Origin.SIM, 3, 0, 20.0, "toy"))
    return folder


@pytest.mark.slow
def test_a_checkpoint_becomes_verified_folders_with_its_residual_head_or_without_one(
    model: FlowVLA, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "policy", {"policy_version": 6})
    head = make_head(model)
    head.save(tmp_path / "policy" / FOLDER)
    store = str(make_store(tmp_path / "store"))
    full, small = tmp_path / "full", tmp_path / "small"
    assert main(["export", str(tmp_path / "policy"), "--out", str(full), "--calibration", store, "--benchmark"]) == 0
    printed = capsys.readouterr().out
    assert "ok  torch, ort-cpu in fp32" in printed
    assert "ok  mutation of expert.layers" in printed
    assert load_manifest(full).policy_version == 6
    recorded = Deployment.read(full).probes()["input.image.front"][0]
    np.testing.assert_array_equal(recorded, make_observation().images["front"])

    quantise = ["export", str(full), "--out", str(small), "--precision", "int8-static"]
    assert main(quantise) == 2
    assert "needs real observations" in capsys.readouterr().err
    assert main([*quantise, "--calibration", store]) == 0
    assert load_manifest(small).precision == "int8-static"
    assert main(["export", str(tmp_path / "policy")]) == 2

    for folder in (full, small):
        assert "corrector" in find_policy(folder).provides
        found = ResidualCorrector.load(folder / FOLDER)
        assert found.spec == head.spec
        np.testing.assert_array_equal(found.weights["head0.weight"], head.weights["head0.weight"])
    shutil.rmtree(full / FOLDER)
    assert main(["export", str(full), "--out", str(small), "--precision", "int8-dynamic"]) == 0
    assert not (small / FOLDER).exists()


@pytest.mark.parametrize("holds", ["config.yaml", "config.json", "store.json"])
def test_what_is_there_already_is_no_place_for_a_deployment(
    holds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corrector = tmp_path / FOLDER / "config.json"
    corrector.parent.mkdir()
    corrector.write_text("{}")
    (tmp_path / holds).write_text("{}")
    assert main(["export", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "give the deployment a folder of its own" in capsys.readouterr().err
    assert corrector.exists()


def test_a_folder_that_acts_otherwise_fails(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One weight changed on the disk, with all digests right: only comparing actions finds it."""
    for file in exported.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    deployment = Deployment.read(tmp_path)
    weights = {name: array.copy() for name, array in unpack(deployment.weights or b"").items()}
    weights["expert.action_out.bias"] += 0.01
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format"] == "vla-rl-deployment"
    changed = write_digested(tmp_path, "weights", ".safetensors", pack(weights))
    save_manifest(tmp_path, type(deployment.manifest)(**{**vars(deployment.manifest), "weights": changed}))
    assert main(["export", str(tmp_path)]) == 1
    assert "FAILED  torch, ort-cpu in fp32" in capsys.readouterr().out


@pytest.mark.slow
def test_success_in_simulation_is_compared_with_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    brief = ["budget.rounds=0", "budget.evaluation_episodes=1", "task.declare.max_episode_steps=60"]
    assert main(["train", "--config", "tiny", "--out", run, *brief]) == 0
    capsys.readouterr()
    assert main(["export", run, "--out", out, "--closed-loop", "2"]) == 0
    printed = capsys.readouterr().out
    assert "ok  closed loop: exported 0/2, in torch 0/2 (95 % intervals overlap)" in printed
    assert main(["export", out, "--closed-loop", "2"]) == 2
    assert "give the run that it comes from" in capsys.readouterr().err
    assert main(["export", run, "--out", f"{out}-bf16", "--precision", "bf16", "--closed-loop", "2"]) == 2
    assert "a backend that runs bf16" in capsys.readouterr().err
    policy = str(Path(run) / "policies" / "version_0000")
    assert main(["export", policy, "--out", f"{out}-2", "--closed-loop", "2"]) == 2
    assert not Path(f"{out}-2").exists()
