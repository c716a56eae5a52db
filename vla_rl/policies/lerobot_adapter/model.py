"""A lerobot policy as a trainable model, with the face that the algorithms know from `FlowVLA`."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vla_rl.core.errors import UserError
from vla_rl.core.flow import hash_words
from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_vla.config import ExpertConfig, FlowVLAConfig
from vla_rl.policies.flow_vla.model import PolicyBatch
from vla_rl.policies.lerobot_adapter.losses import per_sample_loss
from vla_rl.policies.normalization import Statistics, VectorStatistics

IMAGE_PREFIX = "observation.images."
STATE = "observation.state"
# What lerobot takes for pictures if a dataset does not say otherwise.
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "min": (0.0,) * 3, "max": (1.0,) * 3}


class LeRobotModel(nn.Module):
    """A lerobot policy and the processors in front of and behind it. Inputs and outputs are in raw units.

    Its sentences are numbered by their hashed words, as our critics read them, and given to lerobot's own tokenizer as
    what they are.

    Args:
        policy: any of those that `per_sample_loss` knows.
        spec: the robot's interface.
        statistics: of the data; lerobot's processors normalise by them.

    Raises:
        UserError: for a policy that reads more than the present observation, or another interface than ``spec``.
    """

    policy: Any
    preprocess: Any
    postprocess: Any

    def __init__(self, policy: Any, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__()
        from lerobot.policies.factory import make_pre_post_processors

        self.policy, self.spec, self.statistics = policy, spec, statistics
        own = policy.config
        horizon = len(own.action_delta_indices)
        if own.observation_delta_indices not in (None, [0]) or own.action_delta_indices != list(range(horizon)):
            raise UserError(f"the {own.type} policy reads {own.n_obs_steps} observations; set n_obs_steps to 1")
        check_features(own, spec)
        self._has_time_axis = own.observation_delta_indices is not None
        # The algorithms and our critics ask for these; the rest of a FlowVLA's config has no meaning here.
        self.config = replace(FlowVLAConfig(), expert=ExpertConfig(actions_per_token=1), horizon=horizon)
        stats = lerobot_statistics(statistics, spec)
        try:
            self.preprocess, self.postprocess = make_pre_post_processors(own, dataset_stats=stats)
        except (OSError, ValueError, ImportError) as error:
            raise UserError(hub_sentence(own.type, error)) from error
        self._sentences: dict[bytes, str] = {}

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L], their hashed words."""
        tokens = torch.as_tensor(hash_words(sentences, self.config.text.max_words, self.config.text.vocabulary))
        for row, sentence in zip(tokens, sentences, strict=True):
            self._sentences[row.numpy().tobytes()] = sentence
        return tokens

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The policy's own loss of each sample, unweighted, [B], and logs.

        Args:
            batch: see `PolicyBatch`; the indicator is not used.
            generator: source of everything random, dropout included.
        """
        counted = batch.valid if batch.valid.ndim == 3 else batch.valid[..., None]
        inputs = self._inputs(batch.images, batch.state, batch.text) | {"action": batch.actions}
        with self._seeded(int(torch.randint(2**62, (1,), generator=generator))):
            return per_sample_loss(self.policy, self.prepared(inputs), counted.expand_as(batch.actions))

    @torch.no_grad()
    def act(self, images: dict[str, Tensor], state: Tensor, text: Tensor, seed: int) -> Tensor:
        """A chunk for each observation, [B, H, A]; H may be shorter than the horizon of training."""
        self.policy.eval()
        self.policy.reset()
        with self._seeded(seed):
            return self.postprocess(self.policy.predict_action_chunk(self.prepared(self._inputs(images, state, text))))

    def _inputs(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> dict[str, Any]:
        """Observations as lerobot's preprocessors take them.

        Args:
            images: camera -> uint8 [B, H, W, 3], or float in [0, 255].
            state: float32 [B, S].
            text: int64 [B, L], from `tokenize`.
        """
        batch: dict[str, Any] = {
            IMAGE_PREFIX + camera: images[camera].permute(0, 3, 1, 2).float() / 255.0 for camera in self.spec.cameras
        }
        batch[STATE] = state
        if self._has_time_axis:
            batch = {key: value[:, None] for key, value in batch.items()}
        return batch | {"task": [self._sentences[row.cpu().numpy().tobytes()] for row in text]}

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Draws of torch's global generators follow from the seed inside; outside they are as if nothing had been."""
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Through lerobot's preprocessor, then to where the weights are."""
        batch = self.preprocess(inputs)
        return {key: value.to(self._device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def check_features(config: Any, spec: PolicySpec) -> None:
    """Fill a new config's features in from the interface; refuse a config that was made for another one.

    Raises:
        UserError: with what differs.
    """
    from lerobot.configs import FeatureType, PolicyFeature

    wanted = {
        IMAGE_PREFIX + camera: PolicyFeature(FeatureType.VISUAL, (3, *spec.image_size)) for camera in spec.cameras
    }
    wanted[STATE] = PolicyFeature(FeatureType.STATE, (spec.state_dim,))
    action = {"action": PolicyFeature(FeatureType.ACTION, (spec.action_dim,))}
    for name, features in (("input_features", wanted), ("output_features", action)):
        found = getattr(config, name)
        if not found:
            setattr(config, name, features)
        elif {key: tuple(feature.shape) for key, feature in found.items()} != {
            key: feature.shape for key, feature in features.items()
        }:
            shapes = {key: list(feature.shape) for key, feature in found.items()}
            asked = {key: list(feature.shape) for key, feature in features.items()}
            raise UserError(f"the {config.type} policy has the {name} {shapes}, the data has {asked}; map the data")


def lerobot_statistics(statistics: Statistics, spec: PolicySpec) -> dict[str, dict[str, Tensor]]:
    """Our statistics under lerobot's names; pictures have those of ImageNet, as in lerobot's trainer."""

    def vector(part: VectorStatistics) -> dict[str, Tensor]:
        names = {
            "mean": part.mean,
            "std": part.std,
            "min": part.low,
            "max": part.high,
            "q01": part.q01,
            "q99": part.q99,
        }
        return {name: torch.tensor(values, dtype=torch.float32) for name, values in names.items()}

    pictures = {name: torch.tensor(values)[:, None, None] for name, values in _IMAGENET.items()}
    cameras = {IMAGE_PREFIX + camera: dict(pictures) for camera in spec.cameras}
    return {STATE: vector(statistics.state), "action": vector(statistics.action), **cameras}


def hub_sentence(kind: str, error: Exception) -> str:
    """What to do when a part of a policy would have to be fetched."""
    reason = " ".join(str(error).split())[:200]
    return (
        f"the {kind} policy needs a part that is not on this machine, and nothing is fetched from a hub ({reason}); "
        "name a local folder in its config.json, or put the part into the Hugging Face cache of this machine"
    )
