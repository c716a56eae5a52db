"""What a policy sees of an environment, whatever its observations look like: cameras and one vector of state.

They are found in the observation space, or named by their paths in it. A path is the keys and indices on the way to a
part of the observation, joined by dots: ``robot.cameras.wrist``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.pictures import resized
from vla_rl.core.types import Float32Array, Uint8Array

_CHANNELS = (1, 3, 4)  # behind
_CHANNELS_FIRST = (1, 3)  # four in front are frames on top of each other
_SMALLEST_GRAY = 8  # pixels a side: a smaller uint8 matrix is numbers, not a picture
RENDERED = "render"
"""The camera of an environment that observes no picture: what its ``render()`` draws."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Camera:
    """A stream of pictures in an observation.

    Attributes:
        path: where it stands; empty: the observation itself.
        space: its part of the observation space.
        layout: of its arrays: ``HWC``, ``CHW`` or ``HW``.
    """

    path: Path
    space: spaces.Box
    layout: str

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, pixels."""
        shape = self.space.shape
        return (shape[1], shape[2]) if self.layout == "CHW" else (shape[0], shape[1])

    @property
    def channels(self) -> int:
        """1: gray, 3: RGB, 4: RGB and transparency."""
        return {"HWC": self.space.shape[-1], "CHW": self.space.shape[0], "HW": 1}[self.layout]


class ObservationReader:
    """Turns raw observations into pictures and state.

    Args:
        space: the observation space.
        cameras: camera name -> path; empty: every picture in the space, named by the end of its path.
        state: paths of the vectors that make up the state; empty: all of them, in the order of the space.
        image_size: pixels; pictures that are larger, or not all of one size, are brought to this square. None: nothing
            is resized.
        render: draws the environment; the only camera of a space without pictures.

    Attributes:
        cameras: name -> where it comes from, in the order in which a policy sees them; empty: ``render`` draws.
        state: path -> how many numbers it gives.
        size: height and width of every picture, pixels.
        left_out: what a policy does not see although the environment observes it, in sentences.
        notes: what was assumed, changed or left out, in sentences.

    Raises:
        ConfigError: for a path that there is not.
        UserError: if there is no picture at all, or the pictures differ in size and there is no ``image_size``.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        cameras: Mapping[str, str] | None = None,
        state: Sequence[str] = (),
        image_size: int | None = None,
        render: Callable[[], Any] | None = None,
    ) -> None:
        self.notes: list[str] = []
        self.left_out: list[str] = []
        parts = dict(_parts(space))
        by_name = {dotted(path): path for path in parts}
        if cameras:
            self.cameras = {name: _named_camera(parts, by_name, path) for name, path in cameras.items()}
        else:
            self.cameras = _found_cameras(parts)
        camera_paths = {camera.path for camera in self.cameras.values()}
        vectors = [_known(by_name, path) for path in state] or [path for path in parts if path not in camera_paths]
        if state and (wrong := [path for path in vectors if not _is_vector(parts[path])]):
            raise ConfigError(f"the state cannot hold {dotted(wrong[0])!r}: it is {parts[wrong[0]]}, expected numbers")
        self._state = [path for path in vectors if _is_vector(parts[path]) and (state or not _is_drawn(parts[path]))]
        self.state = {dotted(path): int(np.prod(parts[path].shape or ())) for path in self._state}
        self._expected: dict[Path, Any] = {path: parts[path] for path in [*camera_paths, *self._state]}
        self._note_left_out(parts, [] if cameras or state else vectors)
        self._render = None if self.cameras else render
        self.size = self._common_size(image_size)

    @property
    def renders(self) -> bool:
        """Whether the only camera is ``render()``."""
        return self._render is not None

    @property
    def camera_names(self) -> tuple[str, ...]:
        """In the order in which a policy sees them."""
        return tuple(self.cameras) or ((RENDERED,) if self.renders else ())

    @property
    def state_dim(self) -> int:
        """S, at least 1."""
        return sum(self.state.values()) or 1

    def state_of(self, raw: Any) -> Float32Array:
        """Return the state, float32 [S]: one 0 where the environment observes none. Always a new array."""
        if not self._state:
            return np.zeros(1, np.float32)
        return np.concatenate([np.asarray(_at(raw, path), np.float32).reshape(-1) for path in self._state])

    def images_of(self, raw: Any) -> dict[str, Uint8Array]:
        """Camera name -> uint8 [H, W, 3]; always new arrays, since environments write their own anew."""
        if self._render is not None:
            return {RENDERED: self._fitted(_rendered(self._render))}
        return {name: self._fitted(_rgb(_at(raw, camera.path), camera)) for name, camera in self.cameras.items()}

    def check(self, raw: Any) -> None:
        """Refuse an observation that is not what its space says: a float picture would be stored as black.

        Raises:
            UserError: for a part that is missing or has another shape or type.
        """
        for path, space in self._expected.items():
            try:
                found = np.asarray(_at(raw, path))
            except (KeyError, IndexError, TypeError) as error:
                raise UserError(f"the observation has no {dotted(path)!r}, its space has: {error!r}") from error
            if found.shape != space.shape or not np.can_cast(found.dtype, space.dtype, "same_kind"):
                raise UserError(
                    f"the observation's {dotted(path) or 'array'} is {found.dtype} {list(found.shape)}, its space says "
                    f"{space.dtype} {list(space.shape)}"
                )

    def outside_space(self, raw: Any) -> str:
        """Return which parts of an observation are not in their space, in a sentence; empty if all are."""
        strange = [dotted(path) for path, space in self._expected.items() if not space.contains(_at(raw, path))]
        return f"not within its own space: {', '.join(map(repr, strange))}" if strange else ""

    def _note_left_out(self, parts: Mapping[Path, spaces.Space[Any]], vectors: Sequence[Path]) -> None:
        for path in vectors:
            if path not in self._state:
                drawn = ", a picture or a grid; cameras are uint8" if _is_drawn(parts[path]) else ""
                self.left_out.append(f"left out of the observation: {dotted(path)!r}, which is {parts[path]}{drawn}")
        self.notes += self.left_out
        if not self._state:
            self.notes.append("no state was found: the policy gets one 0")
        for name, camera in self.cameras.items():
            if camera.channels != 3:
                kind = "gray, and repeated for red, green and blue" if camera.channels == 1 else "without transparency"
                self.notes.append(f"camera {name!r} is {kind}")

    def _common_size(self, image_size: int | None) -> tuple[int, int]:
        sizes = {name: camera.size for name, camera in self.cameras.items()}
        if not sizes:
            if self._render is None and not self._state:
                raise UserError(
                    "the observation holds neither numbers nor a picture (a Box of uint8 [H, W, 3] or [3, H, W]), and "
                    "render() draws none: add a state or a camera to the observation space"
                )
            if self._render is None:
                self.notes.append("there is no camera: the policy sees the state alone")
                return (image_size or 1,) * 2
            height, width = _rendered(self._render).shape[:2]
            sizes = {RENDERED: (height, width)}
            self.notes.append("no picture was found in the observation: the camera is what render() draws")
        first = next(iter(sizes.values()))
        alike = len(set(sizes.values())) == 1
        if alike and (image_size is None or max(first) <= image_size):
            return first
        found = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sizes.items())
        if image_size is None:
            raise UserError(f"the cameras differ in size ({found}); name one size for all of them")
        self.notes.append(f"pictures are resized by area to {image_size}x{image_size}: {found}")
        return (image_size, image_size)

    def _fitted(self, image: Uint8Array) -> Uint8Array:
        return np.array(resized(image, self.size))


def dotted(path: Path) -> str:
    """Return a path as people write it."""
    return ".".join(map(str, path))


def _parts(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """Return all spaces that hold no others, in order."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _parts(inner, (*path, index))
    else:
        yield path, space


def _camera(path: Path, space: spaces.Space[Any]) -> Camera | None:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    shape = space.shape
    if len(shape) == 3 and (shape[-1] in _CHANNELS or shape[0] in _CHANNELS_FIRST):
        return Camera(path, space, "HWC" if shape[-1] in _CHANNELS else "CHW")
    if len(shape) == 2 and min(shape) >= _SMALLEST_GRAY:
        return Camera(path, space, "HW")
    return None


def _is_vector(space: spaces.Space[Any]) -> bool:
    """Numbers that can stand in the state."""
    if not isinstance(space, spaces.Box) or _camera((), space) is not None:
        return False
    return space.dtype.kind == "f" or (space.dtype.kind in "iub" and len(space.shape) <= 1)


def _is_drawn(space: spaces.Space[Any]) -> bool:
    """Return whether numbers are a picture, a depth map or a grid rather than a state."""
    shape = space.shape or ()
    return len(shape) >= 2 and sum(side >= _SMALLEST_GRAY for side in shape) >= 2


def _found_cameras(parts: Mapping[Path, spaces.Space[Any]]) -> dict[str, Camera]:
    """Every picture under the last word of its path, or all words of it where that one is taken."""
    found = [camera for path, space in parts.items() if (camera := _camera(path, space)) is not None]
    words = [[word for word in re.split(r"\W+", dotted(camera.path)) if word] or ["camera"] for camera in found]
    last = [path_words[-1] for path_words in words]
    short = len(set(last)) == len(last) and not any(word.isdigit() for word in last)
    names = last if short else ["_".join(path_words) for path_words in words]
    if any(name[0].isdigit() for name in names):
        names = [f"camera_{name}" for name in names]
    return dict(zip(names, found, strict=True))


def _named_camera(parts: Mapping[Path, spaces.Space[Any]], by_name: Mapping[str, Path], name: str) -> Camera:
    path = _known(by_name, name)
    camera = _camera(path, parts[path])
    if camera is None:
        raise ConfigError(f"{name!r} is {parts[path]}; a camera is a Box of uint8 [H, W, 3], [3, H, W] or [H, W]")
    return camera


def _known(by_name: Mapping[str, Path], name: str) -> Path:
    if name not in by_name:
        raise ConfigError(f"there is no {name!r} in the observation space.{did_you_mean(name, by_name)}")
    return by_name[name]


def _at(raw: Any, path: Path) -> Any:
    for step in path:
        raw = raw[step]
    return raw


def _rgb(image: Any, camera: Camera) -> Uint8Array:
    """uint8 [H, W, 3] of a picture in any layout."""
    pixels: Uint8Array = np.asarray(image)
    if camera.layout == "CHW":
        pixels = pixels.transpose(1, 2, 0)
    elif camera.layout == "HW":
        pixels = pixels[..., None]
    return np.repeat(pixels, 3, axis=2) if camera.channels == 1 else pixels[..., :3]


def _rendered(render: Callable[[], Any]) -> NDArray[np.uint8]:
    frame = np.asarray(render())
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        raise UserError(f"render() draws {frame.dtype} {list(frame.shape)}; expected uint8 [H, W, 3]")
    return frame
