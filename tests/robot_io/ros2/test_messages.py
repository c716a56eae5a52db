"""Messages and numpy, without ROS: stand-ins have the fields of the messages."""

import io
from types import SimpleNamespace as Message

import numpy as np
import pytest
from PIL import Image

from robot_io.ros2 import messages
from vla_rl.core.errors import UserError
from vla_rl.core.pictures import resized

PICTURE = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def image(encoding: str, pixels: np.ndarray, padding: int = 0) -> Message:
    rows = pixels.reshape(len(pixels), -1)
    padded = np.concatenate([rows, np.full((len(rows), padding), 255, np.uint8)], axis=1)
    return Message(encoding=encoding, height=2, width=3, step=padded.shape[1], data=padded.tobytes())


@pytest.mark.parametrize("padding", [0, 5])
def test_colors_come_out_as_red_green_blue(padding: int) -> None:
    alpha = np.full((2, 3, 1), 200, np.uint8)
    swapped = PICTURE[..., ::-1]
    for encoding, pixels in {
        "rgb8": PICTURE,
        "bgr8": swapped,
        "rgba8": np.concatenate([PICTURE, alpha], axis=2),
        "bgra8": np.concatenate([swapped, alpha], axis=2),
    }.items():
        np.testing.assert_array_equal(messages.image_to_rgb(image(encoding, pixels, padding)), PICTURE)
    gray = messages.image_to_rgb(image("mono8", PICTURE[..., :1], padding))
    np.testing.assert_array_equal(gray, PICTURE[..., :1].repeat(3, axis=2))


def test_pictures_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(UserError, match=r"'rgb16' is not read.*Did you mean"):
        messages.image_to_rgb(image("rgb16", PICTURE))
    short = image("rgb8", PICTURE)
    short.data = short.data[:-1]
    with pytest.raises(UserError, match="came with 17 bytes"):
        messages.image_to_rgb(short)
    with pytest.raises(UserError, match="cannot be decoded"):
        messages.compressed_to_rgb(Message(format="jpeg", data=b"no picture"))


def test_compressed_pictures_and_sizes() -> None:
    stream = io.BytesIO()
    Image.fromarray(PICTURE).save(stream, "PNG")
    np.testing.assert_array_equal(messages.compressed_to_rgb(Message(format="png", data=stream.getvalue())), PICTURE)
    assert resized(PICTURE, (2, 3)) is PICTURE
    large = np.repeat(np.repeat(PICTURE, 4, axis=0), 4, axis=1)
    np.testing.assert_array_equal(resized(large, (2, 3)), PICTURE, "shrinking averages")


def test_stamps_count_in_nanoseconds() -> None:
    assert messages.stamp_ns(Message(stamp=Message(sec=2, nanosec=5))) == 2_000_000_005
