"""What a policy server reads and plans, and under which keys of a message.

Our server declares its interface when a client connects. Other servers do not, so the caller names a file:
``openpi://gpu:8000?interface=libero`` is ``configs/remote/libero.yaml`` of this package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from vla_rl.core.config import config_from_dict
from vla_rl.core.config_files import CONFIGS, read_yaml
from vla_rl.core.errors import ConfigError, UserError, did_you_mean, one_line
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation, Uint8Array
from vla_rl.core.validation import check_ranges
from vla_rl.policies.remote.wire import WireError

PASSED_ON = frozenset({"guidance", "gradient", "prefix", "xiaomi_prefix", "future_state"})
"""Capabilities of a policy that it keeps behind our server."""
MOST_ACTIONS = 1024
"""Longest chunk that is taken from a server."""
_MOST_PIXELS = 256 * 2**20


@dataclass(frozen=True)
class Keys:
    """Where a message holds an observation. ``a > b`` is the key ``b`` of a mapping under ``a``.

    Attributes:
        cameras: Camera -> key of its image.
        state: Key -> number of its values; together, in this order, they are the state.
        prompt: Key of the task sentence.
        actions: Keys of the parts of an action, for GR00T; together, in this order, they are an action.
        channels_first: Whether images travel as [3, H, W] instead of [H, W, 3].
    """

    cameras: dict[str, str] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=lambda: {"observation/state": 0})
    prompt: str = "prompt"
    actions: tuple[str, ...] = ()
    channels_first: bool = False


@dataclass(frozen=True)
class RemoteInterface:
    """The interface of a policy on a server.

    Attributes:
        spec: Cameras and sizes of the robot that the policy was made for.
        keys: Where a message holds an observation. Cameras without a key are ``observation/CAMERA``.
        horizon: H, number of actions in a chunk; 0: the client asks the server for one chunk to find out.
        discrete_dims: Action dimensions that are discrete (grippers).
        provides: Capabilities, see `vla_rl.core.capabilities`.
        prefix_ticks: Longest committed prefix seen in training; 0: none.
        version: Version of the weights.
        n_obs_steps: Number of observations, of consecutive ticks, that the policy reads.
    """

    spec: PolicySpec
    keys: Keys = field(default_factory=Keys)
    horizon: int = 0
    discrete_dims: tuple[int, ...] = ()
    provides: tuple[str, ...] = ()
    prefix_ticks: int = 0
    version: int = 0
    n_obs_steps: int = 1

    def __post_init__(self) -> None:
        counts = {"horizon": f"[0, {MOST_ACTIONS}]", "prefix_ticks": f"[0, {MOST_ACTIONS}]"}
        check_ranges(self, "", n_obs_steps="[1, 64]", version="[-1, 1e9)", **counts)
        if self.image_bytes > _MOST_PIXELS:
            raise ConfigError(f"the images for one chunk have {self.image_bytes} bytes, at most {_MOST_PIXELS} fit")
        if not {*self.discrete_dims} <= {*range(self.spec.action_dim)}:
            raise ConfigError(
                f"discrete_dims are {self.discrete_dims}, and an action has {self.spec.action_dim} numbers"
            )
        if unknown := next(iter(self.keys.cameras.keys() - {*self.spec.cameras}), None):
            raise ConfigError(f"keys.cameras names {unknown!r}.{did_you_mean(unknown, self.spec.cameras)}")
        sizes = [*self.keys.state.values()]
        if sizes != [0] and sum(sizes) not in self.spec.action_sizes:
            raise ConfigError(f"keys.state has {sum(sizes)} numbers, the policy reads {self.spec.state_dim}")

    @property
    def image_bytes(self) -> int:
        """Size of the images that the policy reads for one chunk."""
        return 3 * self.n_obs_steps * len(self.spec.cameras) * self.spec.image_size[0] * self.spec.image_size[1]

    @classmethod
    def read(cls, name: str) -> Self:
        """Read an interface from a YAML file, or by name from the package's; UserError if it is none."""
        path = Path(name) if Path(name).suffix in (".yaml", ".yml") else CONFIGS / "remote" / f"{name}.yaml"
        if not path.is_file():
            known = [file.stem for file in (CONFIGS / "remote").glob("*.yaml")]
            raise UserError(f"there is no interface {name!r}.{did_you_mean(name, known)} Or name a YAML file")
        return config_from_dict(cls, read_yaml(path), where=str(path))

    @classmethod
    def declared(cls, raw: Any, where: str) -> Self:
        """Read the interface in the metadata of one of our servers; WireError if it is none."""
        try:
            return config_from_dict(cls, raw, where=where)
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"{where} describes no policy of this version: {one_line(error)}") from error

    def message(self, observation: Observation) -> dict[str, Any]:
        """Return an observation under the keys of the server; UserError if it does not fit the interface."""
        self.spec.check(observation)
        message: dict[str, Any] = {}
        for camera in self.spec.cameras:
            image = observation.images[camera]
            _put(message, self._key(camera), image.transpose(2, 0, 1) if self.keys.channels_first else image)
        ends = np.cumsum([*self.keys.state.values()])[:-1]
        for key, values in zip(self.keys.state, np.split(observation.state, ends), strict=True):
            _put(message, key, values)
        _put(message, self.keys.prompt, observation.task)
        return message

    def observation(self, message: Mapping[str, Any], tick: int) -> Observation:
        """Return the observation in a message; UserError if something is missing or does not fit."""
        images: dict[str, Uint8Array] = {}
        for camera in self.spec.cameras:
            image = _array(message, self._key(camera))
            if self.keys.channels_first and image.ndim == 3:
                image = image.transpose(1, 2, 0)
            images[camera] = np.array(image)  # a view of the message cannot be written to, which torch warns of
        parts = [_array(message, key) for key in self.keys.state]
        for (key, size), part in zip(self.keys.state.items(), parts, strict=True):
            if part.ndim != 1 or (size and len(part) != size):
                raise WireError(f"{key} is {part.dtype} {[*part.shape]}; expected is [{size or self.spec.state_dim}]")
        with np.errstate(over="ignore"):
            state = np.concatenate(parts).astype(np.float32)
        if not np.isfinite(state).all():
            raise WireError(f"the state in {[*self.keys.state]} has numbers that are not finite; send finite ones")
        prompt = _get(message, self.keys.prompt, "")
        if not isinstance(prompt, str):
            raise WireError(f"{self.keys.prompt} is a {type(prompt).__name__}; send a sentence")
        observation = Observation(images, state, prompt, tick)
        self.spec.check(observation)
        return observation

    def _key(self, camera: str) -> str:
        return self.keys.cameras.get(camera, f"observation/{camera}")


def _put(message: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(" > ")
    for step in path:
        message = message.setdefault(step, {})
    message[last] = value


def _get(message: Mapping[str, Any], key: str, default: Any = None) -> Any:
    found: Any = message
    for step in key.split(" > "):
        found = found.get(step, default) if isinstance(found, Mapping) else default
    return found


def _array(message: Mapping[str, Any], key: str) -> np.ndarray:
    found = _get(message, key)
    if not isinstance(found, np.ndarray):
        known = ", ".join(map(str, message)) or "nothing"
        raise WireError(f"the message has no array {key!r}; it has {known[:300]}")
    return found
