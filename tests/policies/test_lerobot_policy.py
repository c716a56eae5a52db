"""A flow policy of lerobot in our loop: a random, tiny SmolVLA takes the place of a trained one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fakes import lerobot_tiny
from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import guidance_weights
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Observation
from vla_rl.policies.guidance import sample_guided
from vla_rl.policies.lerobot_policy import LeRobotFlowPolicy

STATE, ACTION, CHUNK = 5, 3, 8
MEAN, STD = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([2.0, 1.0, 0.5])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> LeRobotFlowPolicy:
    pytest.importorskip("transformers", reason="SmolVLA needs the extra 'vlm'")
    folder = tmp_path_factory.mktemp("smolvlm")
    lerobot_tiny.write_vlm(folder)
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    config = SmolVLAConfig(
        input_features={
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        vlm_model_name=str(folder),
        load_vlm_weights=False,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_action_dim=4,
        max_state_dim=8,
        num_steps=5,
        num_vlm_layers=2,
        resize_imgs_with_padding=(32, 32),
        tokenizer_max_length=8,
        device="cpu",
    )
    statistics = {
        "observation.state": {"mean": torch.zeros(STATE), "std": torch.ones(STATE)},
        "action": {"mean": MEAN, "std": STD},
    }
    torch.manual_seed(0)
    return LeRobotFlowPolicy(SmolVLAPolicy(config).float(), *make_smolvla_pre_post_processors(config, statistics), 4)


def observe(tick: int = 3) -> Observation:
    random = np.random.default_rng(tick)
    images = {"front": random.integers(0, 256, (32, 32, 3), dtype=np.uint8)}
    return Observation(images, random.normal(size=STATE).astype(np.float32), "push", tick)


def test_it_is_a_policy_that_replays_from_its_seed(policy: LeRobotFlowPolicy) -> None:
    assert isinstance(policy, Policy)
    policy.reset(5)
    chunk = policy.infer(observe())
    assert (chunk.actions.shape, chunk.start_tick, chunk.chunk_id, chunk.policy_version) == ((CHUNK, ACTION), 3, 0, 4)
    assert policy.infer(observe()).chunk_id == 1
    policy.reset(5)
    np.testing.assert_array_equal(policy.infer(observe()).actions, chunk.actions)
    policy.reset(6)
    assert not np.array_equal(policy.infer(observe()).actions, chunk.actions)


@pytest.mark.parametrize("exact", [True, False])
def test_guidance_is_ours_with_the_jacobian_of_the_network(
    policy: LeRobotFlowPolicy, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same chunk as `sample_guided` around the velocity that lerobot's sampler integrates."""
    previous, delay = np.full((5, ACTION), 1.5, np.float32), 2
    policy.reset(0)
    found = policy.infer_guided(observe(), previous, delay, exact).actions
    policy.reset(0)
    free = policy.infer(observe()).actions
    assert np.abs(found[:delay] - 1.5).mean() < 0.5 * np.abs(free[:delay] - 1.5).mean()

    def integrate(step: object, noise: Tensor, num_steps: int, **_: object) -> Tensor:
        def velocity(actions: Tensor, tau: float) -> Tensor:
            return -step(actions, torch.full((1,), 1.0 - tau))  # type: ignore[operator]

        target = torch.zeros_like(noise)
        target[:, :5, :ACTION] = (torch.from_numpy(previous) - MEAN) / STD
        weights = torch.from_numpy(guidance_weights(CHUNK, delay, 5))
        return sample_guided(velocity, noise, target, weights, num_steps, 5.0, exact)

    monkeypatch.setattr("lerobot.policies.smolvla.modeling_smolvla.euler_integrate", integrate)
    policy.reset(0)
    np.testing.assert_allclose(found, policy.infer(observe()).actions, atol=1e-4)


def test_guidance_ends_with_its_chunk(policy: LeRobotFlowPolicy) -> None:
    policy.reset(0)
    free = policy.infer(observe()).actions
    policy.infer_guided(observe(), np.ones((4, ACTION), np.float32), 1)
    policy.reset(0)
    np.testing.assert_array_equal(policy.infer(observe()).actions, free)


def test_what_it_cannot_do_is_refused(policy: LeRobotFlowPolicy) -> None:
    with pytest.raises(UserError, match="was not trained to go on from committed actions"):
        policy.infer(observe(), np.zeros((2, ACTION), np.float32))
    with pytest.raises(UserError, match="has no place for guidance"):
        LeRobotFlowPolicy(torch.nn.Linear(1, 1), dict, dict)
