"""Adapters of lerobot's policies, tiny and random: trained in place of the weights, saved alone, merged."""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_lerobot_adapter import SPEC, make_batch, statistics

from tests.fakes.lerobot_configs import shrink_resnet, tiny_config
from vla_rl.algorithms.actor import ActorConfig, ActorLearner
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.policies.folders import load_model
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig
from vla_rl.policies.lerobot_adapter.lora import LoraConfig
from vla_rl.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = [
    pytest.mark.slow,  # importing lerobot alone takes 7 s
    pytest.mark.filterwarnings("ignore"),  # of lerobot, peft and transformers; not ours
]
TARGETS = {"act": r".*encoder\.layers\.0\.linear\d", "smolvla": ""}


@pytest.fixture(scope="module", autouse=True)
def lerobot() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")
        pytest.importorskip("peft", reason="needs the extra 'lora'")
        pytest.importorskip("transformers", reason="SmolVLA needs the extra 'lerobot-policies'")
        shrink_resnet(patch)
        logging.disable(logging.WARNING)
        yield
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", params=TARGETS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a policy without adapters. Read only."""
    folder = tmp_path_factory.mktemp("base") / request.param
    write_base(request.param, folder)
    return folder


def write_base(kind: str, folder: Path) -> None:
    from lerobot.policies.factory import get_policy_class

    from vla_rl.policies.lerobot_adapter.folder import check_interface

    config = tiny_config(kind, folder.parent / "vlm")
    check_interface(config, SPEC)
    torch.manual_seed(0)
    LeRobotModel(get_policy_class(kind)(config), SPEC, statistics()).save(folder)


def with_adapters(base: Path, **options: Any) -> LeRobotModel:
    lora = LoraConfig(**{"rank": 4, "targets": TARGETS.get(base.name, ""), **options})
    torch.manual_seed(1)
    return LeRobotModel.build(LeRobotPolicyConfig(folder=str(base), lora=lora), SPEC, statistics())


def learner_of(model: LeRobotModel) -> ActorLearner:
    return ActorLearner(model, ActorConfig(learning_rate=3e-2, warmup_steps=1), seed=0)


def train(learner: ActorLearner, steps: range) -> None:
    batch = make_batch(learner.model)  # type: ignore[arg-type]
    for step in steps:
        learner.update(batch, torch.tensor([2.0, 0.0, 1.0]), step)


def chunk(model: Any) -> np.ndarray:
    batch, noise = make_batch(model), torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(7))
    drawn: np.ndarray = model.eval().draw(batch.images, batch.state, batch.text, noise).numpy()
    return drawn


def test_adapters_learn_and_the_weights_stay(base: Path) -> None:
    model, old = with_adapters(base), load_model(base)[0]
    np.testing.assert_allclose(chunk(model), chunk(old), atol=1e-5)  # they add nothing before they are trained
    learner = learner_of(model)
    train(learner, range(3))
    np.testing.assert_array_equal(chunk(old), chunk(load_model(base)[0]))
    assert np.abs(chunk(model) - chunk(old)).max() > 1e-4
    ours = {name.replace(".base_layer", ""): weight for name, weight in model.named_parameters()}
    for name, weight in old.named_parameters():
        assert torch.equal(ours[name], weight), name
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == model.state_dict().keys()
    assert all(model.get_parameter(name).grad is not None for name in trained), "an adapter is never reached"
    shared = [weight is model.get_parameter(name) for name, weight in learner.average.named_parameters()]
    assert shared.count(False) == len(trained), "the average has a copy of frozen weights"


def test_a_folder_holds_the_adapters_alone_and_comes_back(base: Path, tmp_path: Path) -> None:
    learner = learner_of(with_adapters(base))
    train(learner, range(3))
    acting: Any = learner.policy()
    acting.save(tmp_path / "policy", {"policy_version": 2})
    assert not (tmp_path / "policy" / "model.safetensors").exists()
    found, meta = load_model(tmp_path / "policy")
    assert meta == {"policy_version": 2}
    np.testing.assert_allclose(chunk(found), chunk(acting), atol=1e-5)
    train(learner_of(found), range(1))  # and is trained further
    with pytest.raises(CheckpointError, match="needs a trained policy"):
        with_adapters(tmp_path / "policy")
    with pytest.raises(CheckpointError, match="adapters alone"):
        with_adapters(tmp_path / "policy", rank=0)


def test_peft_reads_the_folder(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    model = with_adapters(base)
    train(learner_of(model), range(2))
    model.save(tmp_path / "policy")
    description = json.loads((tmp_path / "policy" / "adapter_config.json").read_text())
    assert description["base_model_name_or_path"] == str(base)
    other: Any = load_model(base)[0]
    PeftModel.from_pretrained(other.policy, tmp_path / "policy")
    np.testing.assert_allclose(chunk(other), chunk(model), atol=1e-5)


def test_merged_it_is_a_plain_policy(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    model = with_adapters(base)
    train(learner_of(model), range(3))
    model.save(tmp_path / "policy", {"policy_version": 2})
    program = "vla_rl.policies.lerobot_adapter"
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path / "policy"), str(tmp_path / "merged")])
    runpy.run_module(program, run_name="__main__", alter_sys=False)
    merged, meta = load_model(tmp_path / "merged")
    assert meta == {"policy_version": 2}
    assert merged.state_dict().keys() == load_model(base)[0].state_dict().keys()
    np.testing.assert_allclose(chunk(merged), chunk(model), atol=1e-5)


def test_a_resumed_learner_ends_in_the_same_weights(base: Path, tmp_path: Path) -> None:
    whole, first = learner_of(with_adapters(base)), learner_of(with_adapters(base))
    train(whole, range(4))
    train(first, range(2))
    saved = save_checkpoint(tmp_path, 2, first.state_dict())
    size = sum(file.stat().st_size for file in saved.iterdir())
    assert size < (base / "model.safetensors").stat().st_size
    resumed = learner_of(with_adapters(base))
    resumed.load_state_dict(load_checkpoint(saved)[1])
    train(resumed, range(2, 4))
    for learner in (whole, first):
        pairs = zip(learner.policy().parameters(), resumed.policy().parameters(), strict=True)
        same = [torch.equal(ours, theirs) for ours, theirs in pairs]
        assert all(same) == (learner is whole)


@pytest.mark.parametrize("base", ["act"], indirect=True)
def test_what_does_not_fit_is_refused(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"policy\.lora\.targets=nothing"):
        with_adapters(base, targets="nothing")
    with pytest.raises(CheckpointError, match=r"lerobot has no default for act"):
        with_adapters(base, targets="")
    with pytest.raises(UserError, match=r"policy\.lora\.rank is -1"):
        LoraConfig(rank=-1)
    write_base("act", tmp_path / "base")
    model = with_adapters(tmp_path / "base", targets=TARGETS["act"])
    model.save(tmp_path / "policy")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(CheckpointError, match=r"install vla-rl\[lora\]"):
        load_model(tmp_path / "policy")
    monkeypatch.undo()
    weights = tmp_path / "base" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + bytes(4))
    with pytest.raises(CheckpointError, match="missing or has changed"):
        load_model(tmp_path / "policy")
    weights.unlink()
    with pytest.raises(CheckpointError, match="missing or has changed"):
        load_model(tmp_path / "policy")
    (tmp_path / "base" / "vla_rl.json").unlink()
    with pytest.raises(CheckpointError, match=r"policy\.lora\.rank needs a trained policy"):
        with_adapters(tmp_path / "base", targets=TARGETS["act"])
