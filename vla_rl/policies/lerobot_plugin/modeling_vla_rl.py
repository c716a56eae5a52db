"""Our policy as lerobot's trainer, evaluation and rollout know policies."""

from collections import deque
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.lerobot_plugin.configuration_vla_rl import VlaRlConfig
from vla_rl.policies.normalization import Statistics, VectorStatistics
from vla_rl.policies.trainable import Indicator, PolicyBatch

_IMAGES, _STATE, _ACTION = "observation.images.", "observation.state", "action"


class VlaRlPolicy(PreTrainedPolicy):
    """A `FlowVLA` behind lerobot's interface. Images are float [B, 3, H, W] in [0, 1], as lerobot's loaders give them.

    Args:
        config: its features and statistics say what the policy is connected to.
        dataset_stats: of a new policy, lerobot's statistics of the dataset.

    Raises:
        ValueError: if neither the config nor ``dataset_stats`` says how to normalise.
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
        # lerobot saves the optimiser's moments, which have the layout of their weights, only if they are contiguous.
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()
        self.reset()

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        """Forget the actions that are left of the last chunk."""
        self._queue: deque[Tensor] = deque(maxlen=self.config.n_action_steps)

    def forward(self, batch: dict[str, Any], reduction: str = "mean") -> tuple[Tensor, dict[str, Any]]:
        """The flow-matching loss: its mean, or with ``reduction="none"`` that of each sample, [B]."""
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

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], noise: Tensor | None = None, **_: Any) -> Tensor:
        """A chunk for each observation, [B, H, A], raw units."""
        self.eval()
        images, state, text = self._inputs(batch)
        shape = (len(state), self.config.flow.horizon, self.model.spec.action_dim)
        noise = torch.randn(shape, device=state.device) if noise is None else noise
        return self.model.draw(images, state, text, noise)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], noise: Tensor | None = None, **_: Any) -> Tensor:
        """The next action of the present chunk, [B, A]; plans a new chunk when it is used up."""
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


def _our_statistics(stats: dict[str, Any], discrete_dims: tuple[int, ...]) -> Statistics:
    def vector(key: str) -> VectorStatistics:
        rows = {ours: torch.as_tensor(stats[key][theirs]).flatten().tolist() for ours, theirs in _NAMES.items()}
        return VectorStatistics(**{name: tuple(row) for name, row in rows.items()})

    return Statistics(vector(_STATE), vector(_ACTION), tuple(discrete_dims))


_NAMES = {"mean": "mean", "std": "std", "low": "min", "high": "max", "q01": "q01", "q99": "q99"}
