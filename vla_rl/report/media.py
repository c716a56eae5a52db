"""Images and films of episodes: still pictures, strips, videos, and players inside the one file of the report."""

import base64
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vla_rl.core.files import write_atomic
from vla_rl.core.types import Episode
from vla_rl.report.wording import count, outcome

type Redraw = Callable[[Episode, NDArray[np.intp], int], Mapping[str, NDArray[np.uint8]] | None]
"""Renders some steps of an episode again: (episode, steps [N], pixels) -> camera -> uint8 [N, H, W, 3]; None where that
is impossible.
"""

CAMERA_PX = 256
MAX_FRAMES = 48
_PALETTE_FRAMES = 8
_SIGNS = {True: "✓ ", False: "✗ ", None: ""}


def thinned(length: int, most: int) -> tuple[NDArray[np.intp], int]:
    """Return the indices [N] of at most `most` of `length` frames, and the steps between two of them."""
    stride = math.ceil(length / most)
    return np.arange(length)[::-1][::stride][::-1], stride  # from the end, so that the outcome is seen


def resize(image: NDArray[np.uint8], scale: float) -> NDArray[np.uint8]:
    """Scale an image, uint8 [H, W, 3]."""
    picture = Image.fromarray(image)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return np.asarray(picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS))


def tile_cameras(images: Mapping[str, NDArray[np.uint8]], height_px: int) -> NDArray[np.uint8]:
    """Put the images of all cameras, uint8 [T, H, W, 3] each, side by side: uint8 [T, height_px, W, 3].

    The height must be even; W is, as videos need.
    """
    tiles = []
    for pictures in images.values():
        width = round(pictures.shape[2] * height_px / pictures.shape[1] / 2) * 2
        sized = [Image.fromarray(frame).resize((width, height_px), Image.Resampling.LANCZOS) for frame in pictures]
        tiles.append(np.stack([np.asarray(frame) for frame in sized]))
    return np.concatenate(tiles, axis=2)


def film_strip(images: NDArray[np.uint8], frames: int = 10, scale: float = 2) -> NDArray[np.uint8]:
    """Put some frames of an episode, uint8 [T, H, W, 3], side by side and scaled, uint8 [h, frames * w, 3].

    Frame i shows the step at the middle of the i-th part of the time axis; a short episode repeats some.
    """
    steps = ((np.arange(frames) + 0.5) / frames * len(images)).astype(int)
    return np.concatenate([resize(images[step], scale) for step in steps], axis=1)


def encode_webp(image: NDArray[np.uint8], quality: int = 85) -> bytes:
    """Encode an image, uint8 [H, W, 3], as WebP."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", quality=quality)
    return buffer.getvalue()


def image_uri(image: NDArray[np.uint8]) -> str:
    """Return an image, uint8 [H, W, 3], as a data URI."""
    return "data:image/webp;base64," + base64.b64encode(encode_webp(image)).decode()


def encode_gif(frames: NDArray[np.uint8], pause_ms: int) -> bytes:
    """Encode frames, uint8 [T, H, W, 3], as an endless GIF with one palette: one each takes eight times as long."""
    some = frames[:: math.ceil(len(frames) / _PALETTE_FRAMES)]
    palette = Image.fromarray(some.reshape(-1, *some.shape[2:])).quantize(256)
    first, *others = (Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=pause_ms, loop=0)
    return buffer.getvalue()


def render_video(frames: NDArray[np.uint8], hz: float) -> bytes:
    """Encode frames uint8 [N, H, W, 3], of even height and width, as an MP4 with H.264, which every browser plays.

    A jump to any frame is quick.
    """
    import av

    buffer = io.BytesIO()
    # The same frames give the same bytes. One thread, no date in the file, and no frames predicted from later ones. No
    # look-ahead: x264 would read memory that it has not written.
    with av.open(buffer, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = {"crf": "27", "preset": "veryfast", "g": "8", "bf": "0", "threads": "1"}
        options["x264-params"] = "weightp=0:rc-lookahead=0:mbtree=0:scenecut=0"
        stream: Any = container.add_stream("libx264", rate=Fraction(hz).limit_denominator(1000), options=options)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def save_clips(clips: Sequence[NDArray[np.uint8]], file: Path, hz: float) -> None:
    """Write clips of one shape, uint8 [T, H, W, 3], side by side at twice their size (.mp4, .webp).

    A .png shows a strip of each, one below the other.
    """
    content = io.BytesIO()
    if file.suffix == ".png":
        sheet = np.concatenate([film_strip(clip, frames=8, scale=2) for clip in clips], axis=0)
        Image.fromarray(sheet).save(content, "png")
        write_atomic(file, content.getvalue())
        return
    frames = np.stack([resize(frame, 2) for frame in np.concatenate(clips, axis=2)])
    if file.suffix == ".mp4":
        write_atomic(file, render_video(frames, hz))
        return
    first, *others = map(Image.fromarray, frames)
    pause_ms = round(1000 / hz)
    durations = [*[pause_ms] * len(others), pause_ms + 1000]  # the last frame stays for a second
    first.save(content, "WEBP", save_all=True, append_images=others, duration=durations, loop=0, quality=75, method=2)
    write_atomic(file, content.getvalue())


def video_tag(video: bytes, label: str) -> str:
    """Return the HTML of an MP4 with the browser's own controls; the label is for screen readers."""
    return (
        f'<video src="data:video/mp4;base64,{base64.b64encode(video).decode()}" controls loop muted playsinline '
        f'aria-label="{html.escape(label)}"></video>'
    )


def player(episode: Episode, redraw: Redraw | None, caption: str = "", lasts_s: float = 0.0) -> str:
    """Return a figure with a video of an episode's cameras side by side. It has at least one step.

    Args:
        redraw: Renders the images again; None: the recorded ones are enlarged.
        caption: HTML behind the outcome.
        lasts_s: Duration of the video, for players that run in parallel; the last frame fills the rest.
    """
    if not episode.images:
        return ""
    steps, stride = thinned(len(episode), MAX_FRAMES)
    drawn = redraw(episode, steps, CAMERA_PX) if redraw is not None else None
    images = {name: recorded[steps] for name, recorded in episode.images.items()} if drawn is None else drawn
    hz = episode.control_hz / stride
    still = max(0, round(lasts_s * hz) - len(steps))
    frames = tile_cameras(images, CAMERA_PX)
    video = render_video(np.concatenate([frames, np.repeat(frames[-1:], still, axis=0)]), hz)
    kind = outcome(episode.success)
    height, width = next(iter(episode.images.values())).shape[1:3]
    source = "drawn again from its commands" if drawn is not None else f"recorded with {width} x {height} pixels"
    labels = " ".join(f"<span>{html.escape(name)}</span>" for name in images)
    words = f"<b>{_SIGNS[episode.success]}{kind}</b>, {count(len(episode), 'step')}{caption}; {source}"
    return (
        f'<figure class="player {kind}"><div class="cameras">{labels}</div>'
        f"{video_tag(video, f'{episode.episode_id}: {kind}')}<figcaption>{words}</figcaption></figure>"
    )


def camera_figures(images: Mapping[str, NDArray[np.uint8]]) -> str:
    """Return figures of one moment side by side, with the names of the cameras: camera -> uint8 [H, W, 3]."""
    figures = []
    for camera, image in images.items():
        name, uri = html.escape(camera), image_uri(resize(image, max(1.0, CAMERA_PX / image.shape[1])))
        words = f"<figcaption>camera {name}</figcaption>"
        figures.append(f'<figure><img src="{uri}" alt="the task, seen by the camera {name}">{words}</figure>')
    return f'<div class="pictures">{"".join(figures)}</div>'
