"""Pictures from episodes: animated clips, film strips, and data URIs that put them into one HTML file."""

import base64
import io
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vla_rl.core.errors import UserError

# Beyond this, frames are skipped: a clip of a long episode would be megabytes and tell no more.
_MAX_CLIP_FRAMES = 160
_PALETTE_FRAMES = 8  # of which a palette is made


def render_clip(
    images: NDArray[np.uint8], control_hz: float, scale: float = 3, hold_s: float = 1.0, quality: int = 75
) -> bytes:
    """An episode as an animated WebP in real time, endlessly repeated.

    Args:
        images: uint8 [T, H, W, 3].
        control_hz: frames per second of the episode.
        scale: size of the clip over the size of the images; smooth (Lanczos).
        hold_s: how long the last frame stands before the clip starts again.
        quality: of WebP, 0 to 100.

    Raises:
        UserError: for images of another shape or dtype, no frames, or a rate or scale that is not positive.
    """
    _check_images(images)
    if not (control_hz > 0 and scale > 0):
        raise UserError(f"a clip needs a positive rate and scale, found control_hz={control_hz} and scale={scale}")
    shown, stride = thinned(len(images), _MAX_CLIP_FRAMES)
    frames = [resize(frame, scale) for frame in images[shown]]
    duration_ms = max(1, round(1000 * stride / control_hz))
    durations = [duration_ms] * (len(frames) - 1) + [duration_ms + round(1000 * hold_s)]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "WEBP", save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=quality, method=2
    )
    return buffer.getvalue()


def thinned(length: int, most: int) -> tuple[NDArray[np.intp], int]:
    """Which of `length` frames stand for all if at most `most` are shown, [N], and how many steps they are apart."""
    stride = math.ceil(length / most)
    return np.arange(length)[::-1][::stride][::-1], stride  # from the end, so that the outcome is seen


def tile_cameras(images: Mapping[str, NDArray[np.uint8]], height_px: int) -> NDArray[np.uint8]:
    """The pictures of all cameras side by side and equally high, uint8 [T, height_px, w, 3]; w is even, as videos want.

    Args:
        images: camera -> uint8 [T, H, W, 3].
        height_px: even.
    """
    tiles = []
    for pictures in images.values():
        width = round(pictures.shape[2] * height_px / pictures.shape[1] / 2) * 2
        sized = [Image.fromarray(frame).resize((width, height_px), Image.Resampling.LANCZOS) for frame in pictures]
        tiles.append(np.stack([np.asarray(frame) for frame in sized]))
    return np.concatenate(tiles, axis=2)


def encode_gif(frames: NDArray[np.uint8], pause_ms: int) -> bytes:
    """Moving pictures, uint8 [T, H, W, 3], as an endless GIF. All share one palette: one for each takes eight times as
    long and twice the space.
    """
    some = frames[:: math.ceil(len(frames) / _PALETTE_FRAMES)]
    palette = Image.fromarray(some.reshape(-1, *some.shape[2:])).quantize(256)
    first, *others = (Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=pause_ms, loop=0)
    return buffer.getvalue()


def film_strip(images: NDArray[np.uint8], frames: int = 10, scale: float = 2) -> NDArray[np.uint8]:
    """Frames of an episode side by side, uint8 [h, frames * w, 3].

    Frame i shows the step at the middle of the i-th part of the time axis.

    Args:
        images: uint8 [T, H, W, 3].
        frames: how many; a short episode repeats some.
        scale: size of a frame over the size of the images.

    Raises:
        UserError: for images of another shape or dtype, no frames, or a scale that is not positive.
    """
    _check_images(images)
    if frames < 1 or not scale > 0:
        raise UserError(f"a film strip needs frames and a positive scale, found frames={frames} and scale={scale}")
    steps = ((np.arange(frames) + 0.5) / frames * len(images)).astype(int)
    return np.concatenate([np.asarray(resize(images[step], scale)) for step in steps], axis=1)


def resize(image: NDArray[np.uint8], scale: float) -> Image.Image:
    """A picture, uint8 [H, W, 3], at another size."""
    picture = Image.fromarray(image)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


def encode_webp(image: NDArray[np.uint8], quality: int = 85) -> bytes:
    """A still picture, uint8 [H, W, 3], as WebP."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", quality=quality)
    return buffer.getvalue()


def webp_uri(content: bytes) -> str:
    """A data URI of a WebP file."""
    return "data:image/webp;base64," + base64.b64encode(content).decode()


def _check_images(images: NDArray[np.uint8]) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) == 0:
        raise UserError(
            f"images are {images.dtype} {list(images.shape)}; expected uint8 [T, H, W, 3] with at least one frame"
        )
