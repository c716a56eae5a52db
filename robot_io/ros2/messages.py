"""Between ROS messages and numpy. The functions touch only fields of messages, so they run without ROS."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Float32Array, Uint8Array

# encoding -> (channels, the channels that are red, green and blue)
_ENCODINGS: Mapping[str, tuple[int, tuple[int, int, int]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
    "8UC1": (1, (0, 0, 0)),
    "8UC3": (3, (2, 1, 0)),  # OpenCV's order
}


def stamp_ns(header: Any) -> int:
    """Return a header's stamp in ns of ROS time; 0 if the driver has not set it."""
    return int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)


def image_to_rgb(message: Any) -> Uint8Array:
    """Return a sensor_msgs/Image as uint8 [H, W, 3].

    Raises:
        UserError: for an encoding that is no 8-bit color or gray, or too few bytes.
    """
    if message.encoding not in _ENCODINGS:
        raise UserError(f"image encoding {message.encoding!r} is not read.{did_you_mean(message.encoding, _ENCODINGS)}")
    channels, order = _ENCODINGS[message.encoding]
    height, width, step = int(message.height), int(message.width), int(message.step)
    if step < width * channels or len(message.data) < height * step:
        raise UserError(
            f"an image of {height} x {width} {message.encoding} came with {len(message.data)} bytes in steps of {step}"
        )
    rows = np.frombuffer(message.data, np.uint8)[: height * step].reshape(height, step)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    return pixels if order == (0, 1, 2) and channels == 3 else pixels[..., order]


def compressed_to_rgb(message: Any) -> Uint8Array:
    """Return a sensor_msgs/CompressedImage (JPEG or PNG) as uint8 [H, W, 3].

    Raises:
        UserError: if the picture cannot be decoded, or the package pillow is missing.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UserError("compressed images need the package pillow: pip install 'vla-rl[ros]'") from error
    try:
        with Image.open(io.BytesIO(message.data)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise UserError(f"a compressed image of format {message.format!r} cannot be decoded: {error}") from error


def fill_image(message: Any, image: Uint8Array) -> None:
    """Put uint8 [H, W, 3] into a sensor_msgs/Image."""
    message.height, message.width = image.shape[:2]
    message.encoding, message.step, message.is_bigendian = "rgb8", image.shape[1] * 3, 0
    message.data.frombytes(np.ascontiguousarray(image).data)


def trajectory(
    joints: Sequence[str],
    positions: Float32Array,
    from_start_ns: Sequence[int],
    velocities: NDArray[np.float64] | None = None,
    start_ns: int = 0,
) -> Any:
    """Return a trajectory_msgs/JointTrajectory of A joints at N times, positions and velocities [N, A].

    A stamp ``start_ns`` of 0 begins it on arrival.
    """
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

    points = [JointTrajectoryPoint(positions=row) for row in positions.astype(np.float64).tolist()]
    for point, time_ns in zip(points, from_start_ns, strict=True):
        point.time_from_start.sec, point.time_from_start.nanosec = divmod(time_ns, 1_000_000_000)
    if velocities is not None:
        for point, row in zip(points, velocities.tolist(), strict=True):
            point.velocities = row
    return JointTrajectory(header=header("", start_ns), joint_names=list(joints), points=points)


def commanded(
    target: Float32Array, joints: Sequence[str], names: Sequence[str], positions: Sequence[float]
) -> Float32Array:
    """Return the target of the joints, float32 [A], with the positions of the named ones replaced.

    Raises:
        UserError: For a name that is unknown or repeated, or another number of positions.
    """
    if len(set(names)) != len(names) or not set(names) <= set(joints) or len(positions) != len(names):
        raise UserError(
            f"a command names the joints {list(names)} for {len(positions)} numbers; expected names of {list(joints)}, "
            "each once"
        )
    moved = target.copy()
    moved[[joints.index(name) for name in names]] = positions
    return moved


def header(frame: str, time_ns: int) -> Any:
    """Return a std_msgs/Header."""
    from std_msgs.msg import Header

    stamped = Header(frame_id=frame)
    stamped.stamp.sec, stamped.stamp.nanosec = divmod(time_ns, 1_000_000_000)
    return stamped


def array(values: Float32Array) -> Any:
    """Return a std_msgs/Float64MultiArray, as forward command controllers take it."""
    from std_msgs.msg import Float64MultiArray

    return Float64MultiArray(data=values.astype(np.float64).tolist())


def vector(message: Any) -> Float32Array:
    """Return the numbers of a std_msgs/Float64MultiArray, float32 [A]."""
    return np.asarray(message.data, np.float32)
