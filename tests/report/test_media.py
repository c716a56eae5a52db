from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from vla_rl.report.media import film_strip, save_clips, tile_cameras


def brightening(length: int, height: int = 12, width: int = 16) -> np.ndarray:
    level = np.linspace(0, 255, length).astype(np.uint8)[:, None, None, None]
    return np.ascontiguousarray(np.broadcast_to(level, (length, height, width, 3)))


def test_a_webp_clip_shows_every_frame_in_real_time_and_holds_the_last(tmp_path: Path) -> None:
    save_clips([brightening(10), brightening(10)], tmp_path / "clip.webp", 20.0)
    durations = []
    with Image.open(tmp_path / "clip.webp") as clip:
        assert clip.info["loop"] == 0
        for frame, level in zip(ImageSequence.Iterator(clip), np.linspace(0, 255, 10), strict=True):
            frame.load()
            durations.append(frame.info["duration"])
            pixels = np.asarray(frame.convert("RGB"))
            assert pixels.shape == (24, 64, 3)
            assert abs(pixels.mean() - level) < 8
    assert durations == [50] * 9 + [1050]


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
