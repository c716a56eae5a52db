"""Players: an episode as a video that can be paused and scrubbed, inside the one file of the report."""

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vla_rl.core.files import write_atomic
from vla_rl.core.types import Episode
from vla_rl.report.images import encode_webp, film_strip, render_clip, resize, thinned, tile_cameras, webp_uri
from vla_rl.report.wording import count, outcome

type Redraw = Callable[[Episode, NDArray[np.intp], int], Mapping[str, NDArray[np.uint8]] | None]
"""Draws some steps of an episode again, this large: (episode, steps [N], pixels) -> camera -> uint8 [N, H, W, 3]; None
where that cannot be done.
"""

CAMERA_PX = 256
MAX_FRAMES = 48
_SIGNS = {True: "✓ ", False: "✗ ", None: ""}


def player(episode: Episode, redraw: Redraw | None, caption: str = "", lasts_s: float = 0.0) -> str:
    """A figure with the cameras of an episode side by side, as a video with the browser's own controls.

    Args:
        episode: at least one step.
        redraw: draws its pictures again; None: the recorded ones are enlarged.
        caption: HTML behind the outcome.
        lasts_s: the last picture stands until this long after the start, so that videos can run beside each other.
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
    labels = "".join(f"<span>{html.escape(name)}</span>" for name in images)
    words = f"<b>{_SIGNS[episode.success]}{kind}</b>, {count(len(episode), 'step')}{caption}; {source}"
    return (
        f'<figure class="player {kind}"><div class="cameras">{labels}</div>'
        f"{video_tag(video, f'{episode.episode_id}: {kind}')}<figcaption>{words}</figcaption></figure>"
    )


def video_tag(video: bytes, label: str) -> str:
    """An MP4 inside the page, with the browser's own controls; the label is for who cannot see it."""
    return (
        f'<video src="data:video/mp4;base64,{base64.b64encode(video).decode()}" controls loop muted playsinline '
        f'aria-label="{html.escape(label)}"></video>'
    )


def video_of(episode: Episode) -> bytes:
    """The recorded cameras of an episode side by side, as an MP4."""
    return render_video(tile_cameras(episode.images, CAMERA_PX), episode.control_hz)


def render_video(frames: NDArray[np.uint8], hz: float) -> bytes:
    """An MP4 with H.264, which every browser plays; a jump to any frame is quick.

    Args:
        frames: uint8 [N, H, W, 3], of even height and width.
        hz: frames per second.
    """
    buffer = io.BytesIO()
    # The same frames give the same bytes: one thread, no date in the file, no frames predicted from later ones, and
    # no look ahead, for which x264 reads memory that it has not written.
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
    """Write clips beside each other, twice as large, or (.png) strips of their frames below each other.

    Args:
        clips: uint8 [T, H, W, 3] each, equally long and high.
        file: .mp4, .webp or .png.
        hz: frames per second.
    """
    if file.suffix == ".png":
        content = io.BytesIO()
        sheet = np.concatenate([film_strip(clip, frames=8, scale=2) for clip in clips], axis=0)
        Image.fromarray(sheet).save(content, "png")
        write_atomic(file, content.getvalue())
        return
    together = np.concatenate(clips, axis=2)
    if file.suffix == ".mp4":
        large = np.stack([np.asarray(resize(frame, 2)) for frame in together])
        write_atomic(file, render_video(large, hz))
    else:
        write_atomic(file, render_clip(together, hz, scale=2))


def camera_figures(images: Mapping[str, NDArray[np.uint8]]) -> str:
    """Pictures of one moment side by side, each with its camera's name: camera -> uint8 [H, W, 3]."""
    figures = []
    for camera, image in images.items():
        name, scale = html.escape(camera), max(1.0, CAMERA_PX / image.shape[1])
        uri = webp_uri(encode_webp(np.asarray(resize(image, scale))))
        words = f"<figcaption>camera {name}</figcaption>"
        figures.append(f'<figure><img src="{uri}" alt="the task, seen by the camera {name}">{words}</figure>')
    return f'<div class="pictures">{"".join(figures)}</div>'
