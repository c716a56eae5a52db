"""An edit at every tick: the residual head of A2C2 (see `corrector`), where outcomes train it and not a demonstrator.

What is tried is one offset of a chunk (see `editing`). What learns is a correction of each action from what is observed
when it is due; a chunk's mean is that of the corrections which its executed actions got.
"""

import copy
import math
from typing import TYPE_CHECKING, override

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.policies.corrector import ResidualCorrector, age_features
from vla_rl.policies.corrector_training import exported, keypoints_of, need_keypoints
from vla_rl.policies.editing import Edit, EditConfig

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

_AGES = 8


class TickEdit(Edit):
    """See the module.

    Args:
        model: the policy through whose eyes it sees; its weights are no part of the edit.
        config: see `EditConfig`.

    Raises:
        UserError: for a policy whose image encoder has no keypoints.
    """

    def __init__(self, model: "TrainablePolicy", config: EditConfig) -> None:
        super().__init__(model, config)
        self.input_limit = math.inf  # `corrector` folds the scale into weights; all its inputs are bounded already
        ages = len(self.mean) - _AGES
        self.planned = slice(ages - model.spec.action_dim, ages)

    @override
    def _inputs(self, model: "TrainablePolicy") -> int:
        flow = need_keypoints(model)
        eyes = 2 * flow.config.vision.keypoints * len(flow.spec.cameras)
        return eyes + flow.spec.state_dim + flow.spec.action_dim + _AGES

    @override
    def fit_inputs(self, rows: Tensor) -> None:
        """Of rows as `forward` takes them."""
        super().fit_inputs(rows[..., :-1][rows[..., -1] > 0])

    def looks(
        self, model: "TrainablePolicy", images: dict[str, Tensor], state: Tensor, action: Tensor, age: np.ndarray
    ) -> Tensor:
        """What it sees of N actions, [N, I].

        Args:
            model: the policy.
            images: CAMERA: uint8 [N, H, W, 3], when each was due.
            state: [N, S], raw units.
            action: [N, A], as planned, raw units.
            age: int [N], their index in the chunk.
        """
        flow = need_keypoints(model)
        ages = torch.from_numpy(age_features(age, flow.horizon)).to(state)
        planned = self.action_normalizer.network_input(action)
        return torch.cat([keypoints_of(flow, images), flow.state_normalizer.network_input(state), planned, ages], 1)

    def each(self, looks: Tensor) -> Tensor:
        """Corrections [..., A] of what is seen of each action, [..., I]."""
        return super().forward(looks)

    @override
    def forward(self, rows: Tensor) -> Tensor:
        """Mean corrections [..., A] of rows [..., H, I + 1]: of each action what is seen, and its share in the mean."""
        return (self.each(rows[..., :-1]) * rows[..., -1:]).sum(-2)

    def corrector(self, model: "TrainablePolicy") -> ResidualCorrector:
        """The same for the control process, in numpy."""
        net = copy.deepcopy(self.net)
        first, last = net[0], net[-1]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        first.weight.data /= self.scale
        first.bias.data -= first.weight.data @ self.mean
        last.weight.data *= self.moved[:, None]
        last.bias.data *= self.moved
        return exported(need_keypoints(model), net, self.config.bound)

    def take(self, corrector: ResidualCorrector) -> None:
        """Go on from the weights of such a one, whose inputs need no scale."""
        linear = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        for number, layer in enumerate(linear):
            for part in ("weight", "bias"):
                getattr(layer, part).data.copy_(torch.from_numpy(corrector.weights[f"head{number}.{part}"]))
