"""Compares the clocks of a LeRobotDataset: its rate, the stamps of its rows, the times of its video frames.

A picture belongs to the row whose stamp is its time, as in lerobot. No record is trusted alone. Where two of them
differ by more than a quarter of a step, another picture or another speed could be meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError

Float64Array = NDArray[np.float64]
_WITHIN = 0.25  # of a step: how far a frame may be from its row, so that no other frame is meant
_OFF_RATE = 0.02  # share by which stamps may be faster or slower than the rate


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """Where an episode's pictures stand in a video: file, and from when to when, s."""

    file: str
    start_s: float
    end_s: float


def check_stamps(stamps: Float64Array, fps: float, where: str) -> None:
    """Refuse times of rows [T], s, that do not rise step by step at the rate of the dataset.

    Raises:
        StoreError: With both rates, or with the rows between which time jumps.
    """
    steps = np.diff(stamps) * fps  # in steps of the rate
    if not len(steps):
        return
    jumps = np.flatnonzero(~((steps > 0.5) & (steps < 1.5)))  # NaN is a jump too
    off_rate = abs(float(np.median(steps)) - 1) > _WITHIN
    if len(jumps) and not off_rate:
        row = int(jumps[0])
        raise StoreError(
            f"{where}: timestamp goes from {stamps[row]:.3f} s in row {row} to {stamps[row + 1]:.3f} s; "
            f"expected a step of {1 / fps:.3f} s. Some rows are missing or out of order: record or export them anew"
        )
    if off_rate or abs(steps.mean() - 1) > _OFF_RATE + _WITHIN / len(steps):
        step_s = float(np.median(steps)) / fps
        raise StoreError(
            f"{where}: timestamp rises by {step_s:.4g} s a row ({1 / step_s if step_s else np.inf:.4g} a second); "
            f"meta/info.json has fps {fps:g}. Actions would play at another speed: correct the wrong one of the two"
        )


def check_frames(found: Float64Array, expected: Float64Array, fps: float, where: str) -> None:
    """Refuse video frames [T] that are not at the times of their rows [T], s.

    Raises:
        StoreError: With the first row that differs, and both times.
    """
    off = np.abs(found - expected) > _WITHIN / fps
    if off.any():
        row = int(np.argmax(off))
        raise StoreError(
            f"{where}: row {row} belongs to {expected[row]:.4f} s of the video; the frame is at {found[row]:.4f} s. "
            "Correct from_timestamp in meta/episodes, or encode the video anew"
        )


def video_errors(
    frames: Mapping[str, Float64Array],
    spans: Mapping[int, VideoSpan],
    stamps: Mapping[int, Float64Array],
    fps: float,
    camera: str,
) -> dict[int, StoreError]:
    """Compare the videos of one camera with the rows of all episodes, without decoding a picture.

    Args:
        frames: Video file -> times of its frames in order, s.
        spans: Episode -> where its pictures stand.
        stamps: Episode -> times of its rows from its start, s.
        fps: Rate of the dataset.
        camera: Dataset and column, for the errors.

    Returns:
        Episode -> what differs. Frames may be lost or left over without a trace in their times. Then every episode of
        the file is named, since the pictures of any of them may belong to other rows.
    """
    errors: dict[int, StoreError] = {}
    for file, times in frames.items():
        inside = sorted((span.start_s, index) for index, span in spans.items() if span.file == file)
        begin, end = inside[0][0], max(spans[index].end_s for _, index in inside)
        held, claimed = (times[-1] - times[0]) * fps + 1 if len(times) else 0.0, (end - begin) * fps
        if abs(held - claimed) > 0.5:
            error = (
                f"{camera}: {file} holds {held:.4g} frames, meta/episodes has {claimed:.4g} for its episodes "
                f"{inside[0][1]} to {inside[-1][1]}; their pictures may belong to other rows. Encode the video anew"
            )
            errors |= {index: StoreError(error) for _, index in inside}
            continue
        free_from = begin
        for start, index in inside:
            span, where = spans[index], f"{camera}, episode {index}"
            try:
                if start < free_from - 0.5 / fps:
                    raise StoreError(
                        f"{where}: from_timestamp is {start:.3f} s, but the video of another episode ends at "
                        f"{free_from:.3f} s; correct meta/episodes"
                    )
                _check_episode(times, span, stamps[index], fps, where)
            except StoreError as found:
                errors[index] = found
            free_from = max(free_from, span.end_s)
    return errors


def _check_episode(times: Float64Array, span: VideoSpan, stamps: Float64Array, fps: float, where: str) -> None:
    declared = (span.end_s - span.start_s) * fps
    if abs(declared - len(stamps)) > 0.5:
        raise StoreError(
            f"{where}: {span.file} has {declared:.4g} frames from {span.start_s:.3f} s (from_timestamp) to "
            f"{span.end_s:.3f} s (to_timestamp); the table has {len(stamps)} rows. Encode the video anew"
        )
    first, last = np.searchsorted(times, np.array([span.start_s, span.end_s]) - 0.5 / fps)
    both = min(last - first, len(stamps))
    check_frames(times[first : first + both], span.start_s + stamps[:both], fps, where)
    if last - first != len(stamps):
        raise StoreError(
            f"{where}: {span.file} has {last - first} frames of it, the table has {len(stamps)} rows; encode the video "
            "anew"
        )
