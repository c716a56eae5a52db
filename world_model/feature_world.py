"""The world model: dynamics in the features of a frozen policy, and a decoder that draws them.

The same states serve practice (whole chunks, thousands of rollouts), films, and a person who drives it tick by tick.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import ConfigError
from vla_rl.core.json_files import reading
from vla_rl.core.metadata import read_weights, write_weights
from world_model.feature_decoder import FeatureDecoder
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig
from world_model.protocol import Observations, Prediction, WorldSpec

FORMAT, FORMAT_VERSION = "vla-rl-world-model", 8
_LEAST_CHANCE = 1e-6  # of a success: its logit stays finite


class FeatureState(NamedTuple):
    """Where B rows are.

    Attributes:
        features: [B, F], what the policy sees.
        member: int64 [B], their worlds; None: in the mean of all.
        begun: [B, F], features at the end of the last whole chunk; None: there now.
        sent: [B, n, A], actions since then, normalized; None: none.
        proprioception: [B, S], state of the robot in raw units; None: the features do not hold it.
    """

    features: Tensor
    member: Tensor | None
    begun: Tensor | None = None
    sent: Tensor | None = None
    proprioception: Tensor | None = None


@dataclass(frozen=True)
class Trust:
    """How far the answers of a model are believed, measured in whole chunks on episodes that it has not seen.

    Attributes:
        slope, offset: Chance of success = sigmoid(slope x + offset), where x is the logit of the highest chance that
            the dynamics give along a rollout (Platt scaling, 1999).
        familiar: Disagreement of the members that few successes ever reach.
    """

    slope: float
    offset: float
    familiar: float


def platt_scale(chance: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return `Trust.slope` and `Trust.offset`, by logistic regression with the targets of Platt (1999).

    Args:
        chance: [N], highest chance of success that the dynamics give along a rollout.
        truth: bool [N], whether it succeeded; both occur.

    Example:
        >>> slope, offset = platt_scale(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([False, False, True, True]))
        >>> bool(slope * torch.tensor(0.35).logit() + offset > 0 > slope * torch.tensor(0.15).logit() + offset)
        True
    """
    rows = chance.double().logit(_LEAST_CHANCE).cpu()
    wins, truth = int(truth.sum()), truth.cpu()
    least, most = 1 / (len(truth) - wins + 2), (wins + 1) / (wins + 2)
    target = torch.where(truth, most, least).double()
    found = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # logarithm of the slope, offset
    optimizer = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        error = F.binary_cross_entropy_with_logits(found[0].exp() * rows + found[1], target)
        error.backward()
        return error

    optimizer.step(loss)
    slope, offset = found.detach().tolist()
    return math.exp(slope), offset


@dataclass(frozen=True)
class FeatureWorld:
    """The `WorldModel` of a policy's features.

    Attributes:
        dynamics: Fitted.
        look: The policy's encoder: observations -> features [B, F].
        normalize: Actions in raw units -> normalized.
        decoder: Draws pictures of features.
        sense: Features -> state of the robot, [B, S] in raw units.
        trust: How far answers are believed; None: chance and disagreement are those of the dynamics.
    """

    dynamics: FeatureDynamics
    look: Callable[[Observations], Tensor]
    normalize: Callable[[Tensor], Tensor]
    decoder: FeatureDecoder | None = None
    sense: Callable[[Tensor], Tensor] | None = None
    trust: Trust | None = None

    @property
    def members(self) -> int:
        return self.dynamics.config.members

    def encode(self, observations: Observations, member: Tensor | None = None) -> FeatureState:
        features = self.look(observations)
        return FeatureState(features, member, proprioception=self._sensed(features))

    def predict(self, state: FeatureState, actions: Tensor) -> Prediction[FeatureState]:
        """Predict what follows actions in raw units, [B, n, A]: whole chunks, or any number if the dynamics know chunks
        that were cut short.

        Every prediction starts at the end of the last whole chunk, so its error does not grow with the ticks since
        then. The result holds the highest chance of success of all predictions, and the disagreement of the last chunk.

        Raises:
            UserError: For a number of actions that the dynamics do not know.
        """
        begun, sent = state.features if state.begun is None else state.begun, self.normalize(actions)
        if state.sent is not None:
            sent = torch.cat([state.sent, sent], 1)
        chances = []
        for chunk in sent.split(self.dynamics.shape[0], 1):
            start = begun
            features, chance = self.dynamics(start, chunk, state.member)
            chances.append(chance)
            if whole := chunk.shape[1] == self.dynamics.shape[0]:
                begun = features
        later = FeatureState(features, state.member, begun, None if whole else chunk, self._sensed(features))
        return Prediction(later, self._believed(torch.stack(chances).amax(0)), lambda: self._strange(start, chunk))

    def decode(self, state: FeatureState) -> Tensor:
        """Return pictures of a state. Raises ConfigError without a decoder."""
        if self.decoder is None:
            raise ConfigError("this world model has no decoder; fit one with `feature_decoder.fit_decoder`")
        return self.decoder.pictures(state.features)

    def _sensed(self, features: Tensor) -> Tensor | None:
        return None if self.sense is None else self.sense(features)

    def _believed(self, chance: Tensor) -> Tensor:
        if self.trust is None:
            return chance
        return (self.trust.slope * chance.logit(_LEAST_CHANCE) + self.trust.offset).sigmoid()

    def _strange(self, features: Tensor, chunk: Tensor) -> Tensor:
        disagreement = self.dynamics.disagreement(features, chunk)
        return disagreement if self.trust is None else disagreement / self.trust.familiar


def save_world_model(folder: Path, world: FeatureWorld, spec: WorldSpec) -> None:
    """Write dynamics, decoder, trust and spec of a world model. Its encoder is saved by the caller.

    Raises:
        ConfigError: For a model without a decoder or without `Trust`.
    """
    if world.decoder is None or world.trust is None:
        raise ConfigError("only a world model with a decoder and with `trust` can be saved; fit both first")
    dynamics, decoder = world.dynamics, world.decoder
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "spec": asdict(spec),
        "dynamics": config_to_dict(dynamics.config),
        "shape": dynamics.shape,
        "varying": len(dynamics.varying),
        "features": decoder.mean.numel(),
        "partial": dynamics.partial,
        "trust": asdict(world.trust),
    }
    parts = {"dynamics": dynamics.state_dict(), "decoder": decoder.state_dict()}
    tensors = {f"{part}.{name}": value.cpu().contiguous() for part in parts for name, value in parts[part].items()}
    write_weights(folder, "weights", safetensors.torch.save(tensors), about)


def load_world_model(
    folder: Path,
    look: Callable[[Observations], Tensor],
    normalize: Callable[[Tensor], Tensor],
    sense: Callable[[Tensor], Tensor],
) -> tuple[FeatureWorld, WorldSpec]:
    """Read a world model. The other arguments are as of `FeatureWorld`.

    Raises:
        CheckpointError: If it is missing, damaged, or of another schema version.
    """
    with reading(folder / "config.json", "it is no world model; train one: vla-rl imagine train"):
        about, content = read_weights(folder, FORMAT, FORMAT_VERSION)
        tensors = safetensors.torch.load(content)
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError("its weights are not all numbers")
        spec = config_from_dict(WorldSpec, about["spec"], where=str(folder))
        config = config_from_dict(FeatureDynamicsConfig, about["dynamics"], where=str(folder))
        blank = torch.zeros(int(about["varying"]), dtype=torch.int64)
        dynamics = FeatureDynamics(config, tuple(about["shape"]), blank, bool(about["partial"]))
        decoder = FeatureDecoder(int(about["features"]), len(spec.cameras), spec.image_size)
        for part, module in (("dynamics.", dynamics), ("decoder.", decoder)):
            own = {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            module.load_state_dict(own)
            module.eval()
        trust = config_from_dict(Trust, about["trust"], where=str(folder))
        return FeatureWorld(dynamics, look, normalize, decoder, sense, trust), spec
