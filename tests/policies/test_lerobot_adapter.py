"""Policies of lerobot, tiny and random, as models and policies of ours; ours under lerobot's tools.

lerobot is imported once for the whole file, and each policy is built once.
"""

import json
import logging
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policy import make_model, make_observation

from deploy_trt.export.lerobot import lerobot_affine
from deploy_trt.runtime.units import Normalization
from tests.fakes.lerobot_configs import shrink_pi, shrink_resnet, tiny_config
from vla_rl.acting.policy_folder import find_policy
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Observation
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.base import PolicyBatch
from vla_rl.policies.folders import load_model, load_policy
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig
from vla_rl.policies.lerobot_adapter.losses import per_sample_loss

SPEC = PolicySpec("toy", ("front", "top"), (32, 32), 3, 2)
KINDS = ["act", "diffusion", "smolvla", "pi0", "pi05"]
pytestmark = [
    pytest.mark.slow,  # importing lerobot alone takes 7 s
    pytest.mark.filterwarnings("ignore"),  # of lerobot, transformers and diffusers; not ours
]


@pytest.fixture(scope="module", autouse=True)
def lerobot() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers", reason="SmolVLA and pi need the extra 'lerobot-policies'")
        pytest.importorskip("diffusers", reason="the diffusion policy needs the extra 'lerobot-policies'")
        import lerobot_policy_vla_rl  # noqa: F401

        shrink_resnet(patch)
        logging.disable(logging.WARNING)
        yield patch
        logging.disable(logging.NOTSET)


def statistics() -> Statistics:
    random = np.random.default_rng(0)
    return Statistics.from_arrays(random.normal(size=(64, 3)), random.normal(1.0, 2.0, size=(64, 2)))


@pytest.fixture(scope="module")
def tiny_pi(lerobot: pytest.MonkeyPatch) -> None:
    shrink_pi(lerobot)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, lerobot: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from lerobot.policies.factory import get_policy_class

    from vla_rl.policies.lerobot_adapter.folder import check_interface

    if request.param in ("pi0", "pi05"):
        request.getfixturevalue("tiny_pi")
    config = tiny_config(request.param, tmp_path_factory.mktemp(request.param))
    check_interface(config, SPEC)
    torch.manual_seed(0)
    return LeRobotModel(get_policy_class(request.param)(config), SPEC, statistics())


def make_batch(model: LeRobotModel, size: int = 3) -> PolicyBatch:
    random = torch.Generator().manual_seed(3)
    images = {
        camera: torch.randint(0, 256, (size, 32, 32, 3), generator=random, dtype=torch.uint8) for camera in SPEC.cameras
    }
    actions = torch.randn(size, 4, 2, generator=random)
    text = model.tokenize(["push it", "open it", "push it"][:size])
    valid = torch.ones(size, 4, 2, dtype=torch.bool)
    return PolicyBatch(images, torch.randn(size, 3, generator=random), text, actions, valid)


def loss_of(model: LeRobotModel, batch: PolicyBatch) -> torch.Tensor:
    model.train()
    return model.loss(batch, torch.Generator().manual_seed(5))[0]


def test_the_mean_over_samples_is_lerobots_own_loss(model: LeRobotModel) -> None:
    batch = make_batch(model)
    ours = loss_of(model, batch)
    seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(5)))
    inputs = model._inputs(batch.images, batch.state, batch.text) | {"action": batch.actions}
    with model._seeded(seed):
        prepared = model.prepared(inputs)
        pad = torch.zeros(3, 4, dtype=torch.bool)
        theirs, _ = model.policy.forward({**prepared, "action_is_pad": pad})
    assert ours.shape == (3,)
    torch.testing.assert_close(ours.mean(), theirs)
    assert len(set(ours.tolist())) == 3


def test_the_state_ends_at_its_limit_as_in_a_deployment(model: LeRobotModel) -> None:
    batch = make_batch(model)
    batch.state[0, 0], batch.state[1, 2] = 1e4, -1e4
    inputs = model._inputs(batch.images, batch.state, batch.text) | {"action": batch.actions}
    seen = model.prepared(inputs)["observation.state"].reshape(3, 3).numpy()
    affine = lerobot_affine(model.statistics.widened().state, model.policy.config.normalization_mapping["STATE"])
    np.testing.assert_allclose(seen, Normalization(affine).network_input(batch.state.numpy()), atol=1e-5)


def test_what_has_no_loss_has_no_gradient(model: LeRobotModel) -> None:
    batch = make_batch(model)
    batch.valid[0, 2:] = False
    batch.valid[1] = False
    before = loss_of(model, batch)
    assert before[1] == 0
    batch.actions[1] += 5.0
    batch.actions[0, 2:] += 5.0 * (model.policy.name == "act")  # the others denoise the whole chunk at once
    after = loss_of(model, batch)
    torch.testing.assert_close(after[1:], before[1:])
    if model.policy.name == "act":
        torch.testing.assert_close(after[0], before[0])
    model.zero_grad()
    (loss_of(model, batch) * torch.tensor([0.0, 1.0, 0.0])).sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    (loss_of(model, batch) * torch.tensor([0.0, 0.0, 2.0])).sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    model.zero_grad()


def test_sentences_with_the_same_numbers_are_refused_where_they_are_read(
    model: LeRobotModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one spelling of the same words counts for all, and that is said."""
    warned: list[Any] = []
    monkeypatch.setattr("vla_rl.policies.sentences.logger.warning", lambda *message: warned.append(message[1:]))
    batch = make_batch(model)
    for _ in range(2):
        assert model.tokenize(["Push it!"]).equal(batch.text[:1])
    words = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    model.tokenize([words])
    if model.tokenizer is None:
        model.tokenize([f"{words} again"])
        return
    assert warned == [("Push it!", "push it")]
    with pytest.raises(UserError, match=r"z again' cannot be distinguished.* reword one of them"):
        model.tokenize([f"{words} again"])
    assert model._inputs(batch.images, batch.state, batch.text)["task"] == ["push it", "open it", "push it"]


def test_randomness_is_that_of_the_generator(model: LeRobotModel) -> None:
    batch = make_batch(model)
    torch.manual_seed(1)
    first, state = loss_of(model, batch), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state), "the global generator was touched"
    torch.manual_seed(2)
    assert torch.equal(loss_of(model, batch), first)


def test_what_is_drawn_of_an_observation_depends_on_no_other(model: LeRobotModel) -> None:
    batch, noise = make_batch(model), torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(7))
    model.eval()
    together = model.draw(batch.images, batch.state, batch.text, noise)
    images = {camera: image[1:2] for camera, image in batch.images.items()}
    alone = model.draw(images, batch.state[1:2], batch.text[1:2], noise[1:2])
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-5)


def test_it_is_a_policy_of_ours_and_its_folder_comes_back(model: LeRobotModel, tmp_path: Path) -> None:
    model.save(tmp_path / "policy", {"policy_version": 7})
    policy = load_policy(tmp_path / "policy")
    assert isinstance(policy, Policy)
    assert policy.version == 7
    guided = model.policy.name not in ("act", "diffusion")
    assert hasattr(policy, "infer_guided") == guided, "real-time chunking works with what lerobot's sampler can guide"
    provides = {"lerobot_graphs", *({"guidance", "gradient"} if guided else {"several_draws", "offsets"})}
    assert find_policy(tmp_path / "policy").provides == provides, "a strategy is chosen without loading it"
    random = np.random.default_rng(0)
    images = {camera: random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for camera in SPEC.cameras}
    observation = Observation(images, np.zeros(3, np.float32), "push it", tick=5)
    policy.reset(3)
    chunk = policy.infer(observation)
    assert (chunk.actions.shape, chunk.actions.dtype, chunk.start_tick) == ((4, 2), np.float32, 5)
    assert np.isfinite(chunk.actions).all()
    policy.reset(3)
    np.testing.assert_array_equal(policy.infer(observation).actions, chunk.actions)
    assert list(tmp_path.iterdir()) == [tmp_path / "policy"]
    if guided:
        return
    again = ActingPolicy(model)
    again.reset(3)
    np.testing.assert_allclose(again.infer(observation).actions, chunk.actions, atol=1e-5)
    committed = np.full((2, 2), 9.0, np.float32)
    np.testing.assert_array_equal(policy.infer(observation, committed).actions[:2], committed)
    with pytest.raises(UserError, match="the policy was made for"):
        policy.infer(make_observation())


def test_a_policy_learns_here_from_weighted_samples(model: LeRobotModel) -> None:
    from vla_rl.algorithms.actor import ActorConfig, ActorLearner

    learner = ActorLearner(model, ActorConfig(learning_rate=1e-2, warmup_steps=1), seed=0)  # type: ignore[arg-type]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    batch, weight = make_batch(model), torch.tensor([2.0, 0.0, 1.0])
    logs = [learner.update(batch, weight, step) for step in range(3)]
    assert all(np.isfinite(entry["actor_loss"]) for entry in logs)
    assert any(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    learner.load_state_dict(learner.state_dict())


def test_an_unknown_kind_is_named(model: LeRobotModel) -> None:
    class Other:
        name = "smolvl"

    with pytest.raises(UserError, match="Did you mean 'smolvla'"):
        per_sample_loss(Other(), {}, torch.ones(1, 1, 1, dtype=torch.bool))


class TestFolders:
    """What is wrong with a folder of lerobot's is one line; nothing in it runs and nothing is fetched."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        from lerobot.policies.act.modeling_act import ACTPolicy

        from vla_rl.policies.lerobot_adapter.folder import check_interface

        config = tiny_config("act", tmp_path)
        check_interface(config, SPEC)
        ACTPolicy(config).save_pretrained(tmp_path / "act")
        return tmp_path / "act"

    def test_what_lerobot_wrote_is_fine_tuned_with_the_datas_statistics(self, folder: Path) -> None:
        loaded = build(folder)
        assert loaded.statistics == statistics()
        with pytest.raises(CheckpointError, match=r"fine-tune it: vla-rl finetune --policy"):
            load_model(folder)

    def test_data_of_another_shape_is_refused(self, folder: Path) -> None:
        wide = PolicySpec("toy", ("front", "top"), (32, 32), 9, 2)
        with pytest.raises(CheckpointError, match=r"the act policy has the input_features .*map the data"):
            build(folder, wide)

    @pytest.mark.parametrize("damage", ["weights", "pickle", "type", "config", "ours", "cut"])
    def test_a_damaged_folder_is_one_line(self, folder: Path, damage: str) -> None:
        weights, config = folder / "model.safetensors", folder / "config.json"
        raw = json.loads(config.read_text())
        if damage == "weights":
            weights.write_bytes(b"x" * 100)
        elif damage == "pickle":
            weights.write_bytes(pickle.dumps(Bomb()))
        elif damage == "cut":
            weights.write_bytes(weights.read_bytes()[:-200])
        elif damage == "type":
            config.write_text(json.dumps(raw | {"type": "acts"}))
        elif damage == "config":
            config.write_text(json.dumps(raw | {"chunk_size": "many"}))
        else:
            (folder / "vla_rl.json").write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(CheckpointError) as caught:
            load_model(folder) if damage == "ours" else build(folder)
        assert "\n" not in str(caught.value)
        assert not EXECUTED

    def test_what_a_hub_would_have_to_give_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And not asked for, though the hub's package has been imported as if it might be."""
        asked: list[object] = []
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
        config = tiny_config("smolvla", tmp_path / "vlm")
        config.vlm_model_name = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
        config._save_pretrained(tmp_path)
        with pytest.raises(CheckpointError, match="nothing is fetched from a hub"):
            build(tmp_path)
        assert asked == []


def build(folder: Path, spec: PolicySpec = SPEC) -> LeRobotModel:
    return LeRobotModel.build(LeRobotPolicyConfig(folder=str(folder)), spec, statistics())


EXECUTED: list[str] = []


class Bomb:
    """Unpickling this leaves a mark."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return EXECUTED.append, ("executed",)


class TestPlugin:
    """Our policy under lerobot."""

    def test_lerobot_finds_the_policy_and_its_processors(self) -> None:
        from lerobot.configs.parser import load_plugin
        from lerobot.policies.factory import get_policy_class, make_policy_config

        load_plugin("lerobot_policy_vla_rl")
        assert get_policy_class("vla_rl").name == "vla_rl"
        assert make_policy_config("vla_rl", device="cpu").chunk_size == 16

    def test_the_distribution_is_found_by_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        from lerobot.utils.import_utils import register_third_party_plugins

        plugin = Path(__file__).resolve().parents[2] / "plugins" / "lerobot_policy_vla_rl"
        name = plugin.name
        assert f'name = "{name}"' in (plugin / "pyproject.toml").read_text()
        metadata = tmp_path / f"{name}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), str(plugin), *sys.path])
        register_third_party_plugins()
        assert name in sys.modules

    def test_a_trained_policy_acts_the_same_under_lerobot(self, tmp_path: Path) -> None:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
        from lerobot_policy_vla_rl.__main__ import convert

        ours = make_model(discrete_dims=(1,))
        ours.save(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "theirs")
        config = PreTrainedConfig.from_pretrained(tmp_path / "theirs")
        policy = get_policy_class("vla_rl").from_pretrained(tmp_path / "theirs", config=config)
        before, behind = make_pre_post_processors(config, pretrained_path=str(tmp_path / "theirs"))
        observation = make_observation()
        batch = {
            f"observation.images.{camera}": torch.from_numpy(image.transpose(2, 0, 1).copy()).float() / 255
            for camera, image in observation.images.items()
        }
        batch |= {"observation.state": torch.from_numpy(observation.state), "task": observation.task}
        assert all(parameter.is_contiguous() for parameter in policy.parameters()), "lerobot could not save its moments"
        noise = torch.randn(1, ours.config.horizon, ours.spec.action_dim)
        theirs = behind(policy.predict_action_chunk(before(batch), noise=noise))
        images = {camera: torch.from_numpy(image)[None] for camera, image in observation.images.items()}
        with torch.no_grad():
            prefix = ours.eval().encode(
                images, torch.from_numpy(observation.state)[None], ours.tokenize([observation.task])
            )
            expected = ours.sample(prefix, noise)
        torch.testing.assert_close(theirs, expected, atol=1e-4, rtol=1e-4)
        first = behind(policy.select_action(before(batch), noise=noise))
        torch.testing.assert_close(first, expected[:, 0], atol=1e-4, rtol=1e-4)
