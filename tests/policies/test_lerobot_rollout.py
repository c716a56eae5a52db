"""``lerobot-rollout --inference.type=rtc`` with our policy, by the command line of the docs, on an arm in memory."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lerobot.robots.config import RobotConfig
from lerobot_programs import DIMS, SIZE, documented
from tiny_policy import make_model

from tests.fakes.lerobot_arm import MemoryArm
from vla_rl.core.flow_sampling import guidance_weights
from vla_rl.policies.guidance import sample_guided

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
JOINTS = tuple(f"joint_{number}.pos" for number in range(DIMS))


@RobotConfig.register_subclass("arm_in_memory")
@dataclass(kw_only=True)
class ArmInMemoryConfig(RobotConfig):
    pass


class ArmInMemory(MemoryArm):
    """Joints that follow at once, and two cameras."""

    config_class = ArmInMemoryConfig
    name = "arm_in_memory"
    sent: ClassVar[list[dict[str, float]]] = []
    cameras: ClassVar = {"front": (SIZE, SIZE, 3), "top": (SIZE, SIZE, 3)}
    observation_features: ClassVar = {**dict.fromkeys(JOINTS, float), **cameras}
    action_features: ClassVar = dict.fromkeys(JOINTS, float)

    def __init__(self, config: ArmInMemoryConfig) -> None:
        super().__init__(config)
        self._position = dict.fromkeys(JOINTS, 0.0)

    def get_observation(self) -> dict[str, Any]:
        return {**self._position, **{camera: np.zeros(shape, np.uint8) for camera, shape in self.cameras.items()}}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self._position = dict(action)
        self.sent.append(action)
        return action


def test_the_documented_line(
    lerobot: Callable[..., None],
    ours: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """lerobot's engine asks our policy for chunks that go on from what is left, and the arm moves all the while."""
    from lerobot_policy_vla_rl.modeling_vla_rl import VlaRlPolicy

    calls: list[tuple[int, torch.Tensor | None]] = []
    predict = VlaRlPolicy.predict_action_chunk

    def watched(policy: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
        assert policy.config.rtc_config is not None
        calls.append((options["inference_delay"], options["prev_chunk_left_over"]))
        return predict(policy, batch, **options)

    def keep_handlers(*_: Any, **__: Any) -> None: ...

    monkeypatch.setattr("lerobot.scripts.lerobot_rollout.init_logging", keep_handlers)
    monkeypatch.setattr(VlaRlPolicy, "predict_action_chunk", watched)
    arguments = documented("lerobot-rollout", "inference.type=rtc")
    on_the_arm = [argument for argument in arguments if not argument.startswith("--robot.")]
    with caplog.at_level(logging.ERROR):
        lerobot(
            "lerobot-rollout", *on_the_arm, "--robot.type=arm_in_memory", "--duration=1.5",
            "--return_to_initial_position=false",
        )  # fmt: skip
    assert not [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    guided = [left for _, left in calls if left is not None]
    assert len(guided) >= 3
    assert all(left.shape == (10, DIMS) for left in guided), "lerobot fills up what is left"
    assert len(ArmInMemory.sent) >= 15, "20 a second"
    assert len({action[JOINTS[0]] for action in ArmInMemory.sent}) > 10


class TestGuidance:
    @pytest.fixture(scope="class")
    def policy(self, tmp_path_factory: pytest.TempPathFactory) -> Any:
        from lerobot_policy_vla_rl.__main__ import convert  # at the top it would cost every collection 6 s
        from lerobot_policy_vla_rl.modeling_vla_rl import VlaRlPolicy

        folder = tmp_path_factory.mktemp("policy")
        make_model().save(folder / "ours")
        convert(folder / "ours", folder / "theirs")
        return VlaRlPolicy.from_pretrained(folder / "theirs")

    @staticmethod
    def batch() -> dict[str, Any]:
        random = torch.Generator().manual_seed(0)
        pictures = {
            f"observation.images.{camera}": torch.rand(1, 3, 16, 16, generator=random) for camera in ("front", "top")
        }
        return {**pictures, "observation.state": torch.randn(1, 3, generator=random), "task": ["push the block"]}

    def test_it_is_ours_with_lerobots_settings(self, policy: Any) -> None:
        from lerobot.policies.rtc.configuration_rtc import RTCConfig

        model, batch, noise = policy.model, self.batch(), torch.randn(1, 8, 2)
        policy.config.rtc_config = RTCConfig(
            prefix_attention_schedule="EXP", max_guidance_weight=3.0, execution_horizon=6
        )
        left = torch.randn(6, 2)
        found = policy.predict_action_chunk(batch, noise=noise, inference_delay=2, prev_chunk_left_over=left)

        images, state, text = policy._inputs(batch)
        with torch.no_grad():
            prefix = model.encode(images, state, text)
        target = torch.zeros(1, 8, 2)
        target[:, :6] = model.action_normalizer.normalize(left)

        def velocity(actions: torch.Tensor, tau: float) -> torch.Tensor:
            return model.velocity(actions, actions.new_full(actions.shape[:2], tau), prefix)

        weights = torch.from_numpy(guidance_weights(8, 2, 6))
        steps = model.config.sampling_steps
        expected = model.to_raw_actions(sample_guided(velocity, noise, target, weights, steps, 3.0))
        torch.testing.assert_close(found, expected.detach())

    def test_it_goes_on_from_what_is_left_and_not_from_what_fills_it_up(self, policy: Any) -> None:
        from lerobot.policies.rtc.configuration_rtc import RTCConfig

        batch, noise = self.batch(), torch.randn(1, 8, 2)
        policy.config.rtc_config = RTCConfig(execution_horizon=6)
        free = policy.predict_action_chunk(batch, noise=noise)
        left = free[0, :3] + 2.0

        def after(rows: torch.Tensor) -> torch.Tensor:
            return policy.predict_action_chunk(batch, noise=noise, inference_delay=2, prev_chunk_left_over=rows)

        guided = after(left)
        assert (guided[0, :2] - left[:2]).abs().mean() < 0.5 * (free[0, :2] - left[:2]).abs().mean()
        torch.testing.assert_close(after(torch.cat([left, torch.zeros(3, 2)])), guided)
        torch.testing.assert_close(after(torch.zeros(6, 2)), free)
        policy.config.rtc_config = RTCConfig(enabled=False)
        torch.testing.assert_close(after(left), free)
