"""A policy of lerobot's as a trainable policy."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.metadata import not_adopted
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy
from vla_rl.policies.base import PolicyBatch, PolicyConfig
from vla_rl.policies.lerobot_adapter.folder import (
    IMAGE_PREFIX,
    STATE,
    explained,
    hub_sentence,
    make_policy,
    n_obs_steps,
    read_config,
    read_ours,
    write_folder,
)
from vla_rl.policies.lerobot_adapter.lora import Adapters, Added, LoraConfig, is_adapter, merged
from vla_rl.policies.lerobot_adapter.losses import per_sample_loss
from vla_rl.policies.sentences import Sentences
from vla_rl.policies.trainable import TrainablePolicy

# What lerobot takes for pictures if a dataset does not say otherwise.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "min": (0.0,) * 3, "max": (1.0,) * 3}

STATISTICS = {"mean": "mean", "std": "std", "low": "min", "high": "max", "q01": "q01", "q99": "q99"}
"""Our name of a statistic -> lerobot's."""
_DRAWN_AT_ONCE = 64  # observations, which bounds the memory
_DRAW_NOTHING = ("act",)  # their chunks follow from the observation


@dataclass(frozen=True)
class LeRobotPolicyConfig(PolicyConfig):
    """A new policy of lerobot's.

    Attributes:
        folder: a local folder with lerobot's config.json, and with ``model.safetensors`` for one that is trained
            already. Its features may be empty: then they are the robot's.
        lora: Adapters that are trained in place of the weights.

    Example:
        >>> LeRobotPolicyConfig(folder="/models/act").kind
        'lerobot'
    """

    kind: str = "lerobot"
    folder: str = ""
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("policy.folder is empty; name a local folder with the config.json of a lerobot policy")
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))  # a run is resumed from anywhere


class LeRobotModel(TrainablePolicy):
    """A lerobot policy and the processors in front of and behind it. Inputs and outputs are in raw units.

    Its sentences are numbered by their hashed words, as our critics read them, and given to lerobot's own tokenizer as
    what they are.

    Args:
        policy: any of those that `per_sample_loss` knows, made for ``spec``.
        spec: the robot's interface.
        statistics: of the data; lerobot's processors normalize by them.
        adapters: Adapters of the policy. Then they are all that is trained, and all that `state_dict` holds.

    Raises:
        UserError: if its processors need a part that is not on this machine.

    Example:
        >>> config = LeRobotPolicyConfig(folder="models/act")  # lerobot's own config.json
        >>> LeRobotModel.build(config, *demos.summary(), pretrained=False).policy.name
        'act'
    """

    config_class = LeRobotPolicyConfig
    policy: Any
    state_limit: Tensor
    preprocess: Any
    postprocess: Any

    def __init__(self, policy: Any, spec: PolicySpec, statistics: Statistics, adapters: Adapters | None = None) -> None:
        super().__init__(PolicyConfig("lerobot"), spec, statistics)
        self.adapters = adapters
        from lerobot.policies.factory import make_pre_post_processors

        self.policy = policy
        self._has_time_axis = policy.config.observation_delta_indices is not None
        stats = lerobot_statistics(statistics, spec)
        limit = torch.from_numpy(statistics.state.limits())
        if policy.config.normalization_mapping.get("STATE", "IDENTITY") == "IDENTITY":
            limit.fill_(torch.inf)
        self.register_buffer("state_limit", limit, persistent=False)
        try:
            self.preprocess, self.postprocess = make_pre_post_processors(policy.config, dataset_stats=stats)
        except (OSError, ValueError, ImportError) as error:
            raise UserError(hub_sentence(error)) from error
        self._sentences = Sentences()

    @classmethod
    def build(
        cls, config: LeRobotPolicyConfig, spec: PolicySpec, statistics: Statistics, pretrained: bool = True
    ) -> Self:
        """Build a policy for a robot (`TrainablePolicy.build`). Under adapters, a policy keeps its own statistics."""
        folder = Path(config.folder)
        if not (pretrained and config.lora.rank):
            return cls._read(folder, spec, statistics, pretrained)
        if ours := read_ours(folder):
            statistics = ours.statistics
        return cls._read(folder, spec, statistics, pretrained, Added.to(folder, config.lora))

    @classmethod
    def check(cls, config: LeRobotPolicyConfig, spec: PolicySpec) -> None:
        """Refuse a config that does not fit; only the description is read."""
        read_config(Path(config.folder), spec)

    @classmethod
    def provides(cls, config: LeRobotPolicyConfig, spec: PolicySpec) -> frozenset[str]:
        """Return the capabilities of a config; only the description is read."""
        return _provided(read_config(Path(config.folder), spec))

    @property
    def capabilities(self) -> frozenset[str]:
        """Return the capabilities of this policy."""
        return _provided(self.policy.config)

    @classmethod
    def planned(cls, config: LeRobotPolicyConfig, spec: PolicySpec) -> int:
        """Return the length of a planned chunk; only the description is read."""
        described = read_config(Path(config.folder), spec)
        return len(described.action_delta_indices) + 1 - n_obs_steps(described)

    @property
    def horizon(self) -> int:
        """The longest chunk: of training. One that acts may be shorter."""
        return len(self.policy.config.action_delta_indices) + 1 - self.n_obs_steps

    @property
    def n_obs_steps(self) -> int:
        """Number of observations that the policy reads."""
        return n_obs_steps(self.policy.config)

    @property
    def tokenizer(self) -> Any:
        """lerobot's, of the transformers package; None if the policy reads no sentences."""
        steps = self.preprocess.steps
        return next((step.input_tokenizer for step in steps if hasattr(step, "input_tokenizer")), None)

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Task sentences -> int64 [B, L], their hashed words; UserError for two that only lerobot distinguishes."""
        tokens = super().tokenize(sentences)
        reads_none = self.tokenizer is None
        self._sentences.keep(tokens, sentences, lambda *_: reads_none, "reword one of them")
        return tokens

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Return the policy's own loss of each sample, see `TrainablePolicy.loss`; the indicator is not used.

        lerobot's chunk begins at the oldest observation. Actions before the newest one are given, and have no loss.
        """
        counted = batch.valid if batch.valid.ndim == 3 else batch.valid[..., None]
        counted, actions = counted.expand_as(batch.actions), batch.actions
        if batch.earlier is not None:
            actions = torch.cat([batch.earlier, actions], 1)
            counted = torch.cat([torch.zeros_like(batch.earlier, dtype=torch.bool), counted], 1)
        inputs = self._inputs(batch.images, batch.state, batch.text) | {"action": actions}
        with self._seeded(int(torch.randint(2**62, (1,), generator=generator))):
            return per_sample_loss(self.policy, self.prepared(inputs), counted)

    @torch.no_grad()
    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """Sample chunks (`TrainablePolicy.draw`). lerobot samples its noise itself. We seed it for one observation
        after the other, so that samples do not depend on each other. Diffusion by DDIM draws at its beginning only: it
        is given the same noise, and plans for many observations at once, alike up to rounding.
        """
        del committed  # lerobot trains without
        given: dict[str, Tensor] = {}
        draws_once = self.policy.name == "diffusion" and self.policy.config.noise_scheduler_type == "DDIM"
        size = _DRAWN_AT_ONCE if draws_once else 1
        if len(noise) > size and self.policy.name not in _DRAW_NOTHING:
            firsts = range(0, len(noise), size)
            each = [{name: image[first : first + size] for name, image in images.items()} for first in firsts]
            parts = zip(each, state.split(size), text.split(size), noise.split(size), strict=True)
            return torch.cat([self.draw(*part) for part in parts])
        if draws_once:
            given["noise"] = torch.cat([self._first_noise(row) for row in noise.split(1)])
        self.policy.reset()
        with self._seeded(_seed_of(noise)):
            inputs = self.prepared(self._inputs(images, state, text))
            return self.postprocess(self.policy.predict_action_chunk(inputs, **given))

    def _first_noise(self, noise: Tensor) -> Tensor:
        """Return what lerobot's diffusion draws first for one observation, [1, H, A]."""
        config = self.policy.config
        with self._seeded(_seed_of(noise)):
            weights = next(self.policy.parameters())
            size = 1, config.horizon, config.action_feature.shape[0]
            return torch.randn(size, device=weights.device, dtype=weights.dtype)

    def acting(self, device: str = "cpu", version: int = 0) -> Policy:
        """Return the acting policy; those that sample with lerobot's flow can be guided."""
        from vla_rl.policies.lerobot_policy import LeRobotFlowPolicy, can_be_guided

        if self.n_obs_steps > 1 or not can_be_guided(self.policy):
            return super().acting(device, version)
        return LeRobotFlowPolicy(self.to(device).policy, self.prepared, self.postprocess, version)

    def save(self, folder: Path | str, meta: dict[str, Any] | None = None) -> None:
        """Write a folder that lerobot reads too, see `TrainablePolicy.save`; CheckpointError if that fails."""
        ours = {"spec": config_to_dict(self.spec), "statistics": self.statistics.to_dict(), "horizon": self.horizon}
        ours |= {"provides": sorted(self.capabilities), "n_obs_steps": self.n_obs_steps, "meta": meta or {}}
        if self.adapters is not None:
            ours["lora"] = self.adapters.added.to_dict()
        write_folder(Path(folder), [self.adapters or self.policy, self.preprocess, self.postprocess], ours)

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Load a saved policy."""
        ours = read_ours(folder)
        if ours is None:
            raise not_adopted(folder)
        if ours.added is not None:
            ours.added.check(folder)
        model = cls._read(folder, ours.spec, ours.statistics, pretrained=True, added=ours.added).eval()
        if model.adapters is not None:
            with explained(folder):
                model.adapters.load(folder)
        return model, ours.meta

    @classmethod
    def _read(
        cls, folder: Path, spec: PolicySpec, statistics: Statistics, pretrained: bool, added: Added | None = None
    ) -> Self:
        config = read_config(folder, spec)
        with explained(folder):
            policy = make_policy(folder if added is None else added.base, config, pretrained)
            return cls(policy, spec, statistics, None if added is None else Adapters(policy, added))

    def merged(self) -> Self:
        """Return the policy without adapters, whose layers compute the same; itself if it has none."""
        return self if self.adapters is None else type(self)(merged(self.policy), self.spec, self.statistics)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return all weights, or those of the adapters alone."""
        state = super().state_dict(*args, **kwargs)
        return state if self.adapters is None else {name: state[name] for name in state if is_adapter(name)}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load what `state_dict` gave."""
        if self.adapters is not None:
            state_dict = {**super().state_dict(), **state_dict}
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _inputs(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> dict[str, Any]:
        """Observations as lerobot's preprocessors take them; arguments as of `draw`.

        Of several observations images are [B, n_obs_steps, H, W, 3] and the state is [B, n_obs_steps, S].
        """
        batch: dict[str, Any] = {
            IMAGE_PREFIX + camera: images[camera].movedim(-1, -3).float() / 255.0 for camera in self.spec.cameras
        }
        batch[STATE] = state
        if self._has_time_axis and self.n_obs_steps == 1:
            batch = {key: value[:, None] for key, value in batch.items()}
        return batch | {"task": self._sentences.of(text)}

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
        """Through lerobot's preprocessor, then to where the weights are; the state within its limit."""
        batch = self.preprocess(inputs)
        limit = self.state_limit.to(batch[STATE])
        batch[STATE] = batch[STATE].clamp(-limit, limit)
        return {key: value.to(self._device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def _seed_of(noise: Tensor) -> int:
    digest = hashlib.blake2b(noise.cpu().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def lerobot_statistics(statistics: Statistics, spec: PolicySpec) -> dict[str, dict[str, Tensor]]:
    """Our statistics under lerobot's names, with the floors of their scales; pictures have those of ImageNet, as in
    lerobot's trainer.
    """
    statistics = statistics.widened()

    def vector(part: VectorStatistics) -> dict[str, Tensor]:
        names = STATISTICS.items()
        return {theirs: torch.tensor(getattr(part, ours), dtype=torch.float32) for ours, theirs in names}

    pictures = {name: torch.tensor(values)[:, None, None] for name, values in IMAGENET.items()}
    cameras = {IMAGE_PREFIX + camera: dict(pictures) for camera in spec.cameras}
    return {STATE: vector(statistics.state), "action": vector(statistics.action), **cameras}


def _provided(config: Any) -> frozenset[str]:
    """Return the capabilities of a policy of lerobot: its flows can be guided, and draw once from the start alone."""
    own = {"guidance", "gradient"} if hasattr(config, "rtc_config") else {"several_draws", "offsets"}
    return frozenset({"lerobot_graphs", *own})
