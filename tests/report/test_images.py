import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from vla_rl.core.errors import UserError
from vla_rl.report.images import film_strip, render_clip, tile_cameras


def brightening(length: int, height: int = 12, width: int = 16) -> np.ndarray:
    level = np.linspace(0, 255, length).astype(np.uint8)[:, None, None, None]
    return np.ascontiguousarray(np.broadcast_to(level, (length, height, width, 3)))


def decoded(clip: bytes) -> list[tuple[np.ndarray, int]]:
    """(frame, duration in ms) of every frame."""
    picture, frames = Image.open(io.BytesIO(clip)), []
    for frame in ImageSequence.Iterator(picture):
        frame.load()
        frames.append((np.asarray(frame.convert("RGB")), frame.info["duration"]))
    return frames


def test_a_clip_shows_every_frame_in_real_time_and_holds_the_last():
    frames = decoded(render_clip(brightening(10), control_hz=20, scale=3, hold_s=1.5))
    assert [duration for _, duration in frames] == [50] * 9 + [1550]
    assert all(frame.shape == (36, 48, 3) for frame, _ in frames)
    assert (
        np.abs([frame.mean() - level for (frame, _), level in zip(frames, np.linspace(0, 255, 10), strict=True)]).max()
        < 8
    )


def test_a_clip_repeats_for_ever():
    assert Image.open(io.BytesIO(render_clip(brightening(3), control_hz=20))).info["loop"] == 0


def test_a_long_episode_keeps_its_duration_and_its_end():
    frames = decoded(render_clip(brightening(1000), control_hz=50, scale=1, hold_s=0))
    assert len(frames) <= 160
    assert sum(duration for _, duration in frames) == pytest.approx(1000 / 50 * 1000, rel=0.01)
    assert frames[-1][0].mean() > 250


def test_a_film_strip_frame_shows_the_middle_of_its_part_of_the_time_axis():
    images = np.arange(100, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 6, 3), np.uint8)
    strip = film_strip(images, frames=10, scale=1)
    assert strip.shape == (4, 60, 3)
    assert strip[0, ::6, 0].tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]


def test_a_film_strip_of_a_short_episode_repeats_frames():
    assert film_strip(brightening(1), frames=10, scale=2).shape == (24, 320, 3)


def test_cameras_stand_side_by_side_and_are_equally_high():
    images = {"front": brightening(3), "top": brightening(3, height=20), "wrist": brightening(3, width=99)}
    assert tile_cameras(images, 24).shape == (3, 24, 32 + 20 + 198, 3)


@pytest.mark.parametrize(
    "images", [brightening(2)[:0], brightening(2)[0], brightening(2).astype(np.float32), brightening(2)[..., :2]]
)
def test_other_arrays_than_images_are_refused(images):
    with pytest.raises(UserError, match="expected uint8"):
        render_clip(images, control_hz=20)
    with pytest.raises(UserError, match="expected uint8"):
        film_strip(images)


@pytest.mark.parametrize(
    "arguments", [{"control_hz": 0}, {"control_hz": 20, "scale": -1}, {"control_hz": float("nan")}]
)
def test_a_clip_needs_a_rate_and_a_scale(arguments):
    with pytest.raises(UserError, match="positive rate and scale"):
        render_clip(brightening(2), **arguments)
