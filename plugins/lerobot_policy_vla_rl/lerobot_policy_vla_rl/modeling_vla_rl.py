"""Our policy as lerobot's trainer, evaluation and rollout know policies."""

from collections import deque
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.policies.rtc.modeling_rtc import RTCProcessor
from torch import Tensor

from lerobot_policy_vla_rl.configuration_vla_rl import VlaRlConfig
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.base import Indicator, PolicyBatch
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.guidance import sample_guided

_IMAGES, _STATE, _ACTION = "observation.images.", "observation.state", "action"


class VlaRlPolicy(PreTrainedPolicy):
    """A `FlowVLA` behind lerobot's interface. Images are float [B, 3, H, W] in [0, 1], as lerobot's loaders give them.

    Args:
        config: its features and statistics say what the policy is connected to.
        dataset_stats: of a new policy, lerobot's statistics of the dataset.

    Raises:
        ValueError: if neither the config nor ``dataset_stats`` says how to normalize.
    """

    config_class = VlaRlConfig
    name = "vla_rl"

    def __init__(self, config: VlaRlConfig, dataset_stats: dict[str, Any] | None = None, **_: Any) -> None:
        super().__init__(config)
        config.validate_features()
        if config.statistics is None:
            if dataset_stats is None:
                raise ValueError("a new vla_rl policy needs a dataset's statistics; train it with lerobot-train first")
            config.statistics = _our_statistics(dataset_stats, config.discrete_dims).to_dict()
        self.config = config
        self._cameras = {key.removeprefix(_IMAGES): key for key in config.image_features}
        spec = PolicySpec(
            env_id=config.env_id,
            cameras=tuple(self._cameras),
            image_size=tuple(next(iter(config.image_features.values())).shape[1:]),
            state_dim=config.robot_state_feature.shape[0],
            action_dim=config.action_feature.shape[0],
            control_hz=config.control_hz,
            delta_dims=tuple(config.delta_dims),
        )
        self.model = FlowVLA(config.flow, spec, Statistics.from_dict(config.statistics))
        # lerobot saves the optimizer's moments, which have the layout of their weights, only if they are contiguous.
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()
        self.reset()

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        """Forget the actions that are left of the last chunk."""
        self._queue: deque[Tensor] = deque(maxlen=self.config.n_action_steps)

    def forward(self, batch: dict[str, Any], reduction: str = "mean") -> tuple[Tensor, dict[str, Any]]:
        """Return the flow-matching loss: its mean, or with ``reduction="none"`` that of each sample, [B]."""
        images, state, text = self._inputs(batch)
        actions = batch[_ACTION]
        is_pad = batch.get("action_is_pad")
        valid = torch.ones_like(actions[..., 0], dtype=torch.bool) if is_pad is None else ~is_pad
        indicator = None
        if self.config.flow.indicator:
            indicator = torch.full((len(state),), int(Indicator.POSITIVE), device=state.device)
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # lerobot seeds torch as a whole
        per_sample, logs = self.model.loss(
            PolicyBatch(images, state, text, actions, valid[..., None], indicator), generator
        )
        return (per_sample if reduction == "none" else per_sample.mean()), dict(logs)

    def supports_rtc(self) -> bool:
        """lerobot-rollout asks before it lets a policy run under its engine for real-time chunking."""
        return True

    @torch.no_grad()
    def predict_action_chunk(
        self,
        batch: dict[str, Any],
        noise: Tensor | None = None,
        inference_delay: int = 0,
        prev_chunk_left_over: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Return a chunk for each observation.

        Args:
            batch: observations, from the preprocessor.
            noise: [B, H, A], standard normal; None: drawn.
            inference_delay: d, how many of the actions below will be executed before this chunk is used.
            prev_chunk_left_over: [K, A] or [B, K, A], raw units: what is still to be executed of the chunk before. With
                a ``config.rtc_config`` that is enabled, sampling is guided to go on from there.

        Returns:
            [B, H, A], raw units.
        """
        self.eval()
        model, flow = self.model, self.config.flow
        images, state, text = self._inputs(batch)
        if noise is None:
            noise = torch.randn(len(state), flow.horizon, model.spec.action_dim, device=state.device)
        rtc, scheduled = self.config.rtc_config, _without_padding(prev_chunk_left_over)
        if rtc is None or not rtc.enabled or scheduled is None:
            return model.draw(images, state, text, noise)
        prefix, unconditional = model.acting_prefixes(*model.features(images, state, text))

        def velocity(actions: Tensor, tau: float) -> Tensor:
            return model.guided_velocity(actions, actions.new_full(actions.shape[:2], tau), prefix, unconditional)

        length = min(scheduled.shape[-2], rtc.execution_horizon, flow.horizon)
        target = torch.zeros_like(noise)
        target[:, :length] = model.action_normalizer.normalize(scheduled[..., :length, :])
        weights = RTCProcessor(rtc).get_prefix_weights(inference_delay, length, flow.horizon).to(noise.device)
        actions = sample_guided(velocity, noise, target, weights, flow.sampling_steps, rtc.max_guidance_weight)
        return model.to_raw_actions(actions)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], noise: Tensor | None = None, **_: Any) -> Tensor:
        """Return the next action of the present chunk, [B, A]; plans a new chunk when it is used up."""
        if not self._queue:
            chunk = self.predict_action_chunk(batch, noise)[:, : self.config.n_action_steps]
            self._queue.extend(chunk.transpose(0, 1))
        return self._queue.popleft()

    def _inputs(self, batch: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        images = {camera: batch[key].permute(0, 2, 3, 1) * 255.0 for camera, key in self._cameras.items()}
        state = batch[_STATE]
        task = batch.get("task") or [""] * len(state)
        sentences = [task] * len(state) if isinstance(task, str) else list(task)
        return images, state, self.model.tokenize(sentences).to(state.device)


def _without_padding(actions: Tensor | None) -> Tensor | None:
    """[..., K, A] without the zeros that lerobot's engine appends to bring what is left to a fixed length; None if
    nothing is left. Guided to them, the robot would be drawn to its action 0, wherever that is.
    """
    if actions is None:
        return None
    filled = (actions != 0).any(-1).reshape(-1, actions.shape[-2]).any(0).nonzero()
    return actions[..., : int(filled[-1]) + 1, :] if len(filled) else None


def _our_statistics(stats: dict[str, Any], discrete_dims: tuple[int, ...]) -> Statistics:
    def vector(key: str) -> VectorStatistics:
        rows = {ours: torch.as_tensor(stats[key][theirs]).flatten().tolist() for ours, theirs in _NAMES.items()}
        return VectorStatistics(**{name: tuple(row) for name, row in rows.items()}).with_floor()

    return Statistics(vector(_STATE), vector(_ACTION), tuple(discrete_dims))


_NAMES = {"mean": "mean", "std": "std", "low": "min", "high": "max", "q01": "q01", "q99": "q99"}
