"""Windows a second: the frame cache, a bare memory map of the same rows, and LeRobotDataset with images and with video.

A window is the data of a training sample. It has the pictures of all cameras and the state at a step, and the actions
of the next 32. In every block all readers get the same new windows, one after the other, so that a busy machine slows
all. Their order changes from block to block.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.store import EpisodeStore

WINDOW, CONTROL_HZ, STEPS, PIXELS = 32, 20, 100, 96
_BATCH = 256
_FAST_BLOCKS, _SLOW_BLOCKS = 200, 5

Reader = Callable[[np.ndarray], object]


def measure(episodes: int, samples: int) -> dict[str, Any]:
    """Median windows a second of each reader, median ratios within blocks, and the growth of memory over so many
    samples from the cache.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder) / "store")
        for number in range(episodes):
            store.add(_episode(number))
        cache = FrameCache(store, Path(folder) / "cache")
        cache.refresh()
        readers: dict[str, Reader] = {"cache": lambda frames: _from_cache(cache, frames), "memmap": _memmap(cache)}
        for name in ("lerobot_images", "lerobot_video"):
            readers[name] = _lerobot(export_lerobot(store, Path(folder) / name, video=name == "lerobot_video"))
        fast = _time({name: readers[name] for name in ("cache", "memmap")}, cache.total_frames, _FAST_BLOCKS)
        slow = _time(
            {name: read for name, read in readers.items() if name != "memmap"}, cache.total_frames, _SLOW_BLOCKS
        )
        growth_mb = _memory_growth_mb(cache, samples)
    images, video = _ratio(slow, "lerobot_images"), _ratio(slow, "lerobot_video")
    return {
        "windows_per_s": {name: _BATCH / statistics.median(values) for name, values in (slow | fast).items()},
        "windows_vs_memmap": _ratio(fast, "memmap"),
        "windows_vs_lerobot_images": images,
        "windows_vs_lerobot_video": video,
        "windows_vs_lerobot": min(images, video),
        "windows": {"steps": WINDOW, "cameras": 2, "pixels": PIXELS, "frames": episodes * STEPS, "batch": _BATCH},
        "memory_samples": samples,
        "memory_growth_mb": growth_mb,
    }


def _time(readers: dict[str, Reader], frames_in_all: int, blocks: int) -> dict[str, list[float]]:
    """Seconds for a batch of windows, for each reader and block."""
    random = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in readers}
    for block in track(range(blocks + 1), "windows", "block"):
        frames = random.integers(0, frames_in_all, _BATCH)
        for name in list(readers)[:: 1 if block % 2 else -1]:
            start_s = time.perf_counter()
            readers[name](frames)
            if block:  # the first one warms up
                times[name].append(time.perf_counter() - start_s)
    return times


def _ratio(times: dict[str, list[float]], rival: str) -> float:
    """How many times as fast as a rival the cache is: the median over blocks."""
    return statistics.median(theirs / ours for theirs, ours in zip(times[rival], times["cache"], strict=True))


def _from_cache(cache: FrameCache, frames: np.ndarray) -> object:
    return cache.observations(frames), cache.chunks(frames, WINDOW)


def _memmap(cache: FrameCache) -> Reader:
    """Plain indexing of the same rows, with the ends of the episodes clipped, as one would write it by hand."""
    lengths = [episode.length for episode in cache.episodes]
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    ahead = np.arange(WINDOW)

    def read(frames: np.ndarray) -> object:
        images = [column[frames] for column in cache.images.values()]
        steps = np.minimum(frames[:, None] + ahead, last[frames][:, None])
        return images, cache.state[frames], cache.action[steps]

    return read


def _lerobot(folder: Path) -> Reader:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    ahead = {"action": [step / CONTROL_HZ for step in range(WINDOW)]}
    dataset = LeRobotDataset(f"local/{folder.name}", root=folder, video_backend="pyav", delta_timestamps=ahead)
    return lambda frames: [dataset[int(frame)] for frame in frames]


def _memory_growth_mb(cache: FrameCache, samples: int) -> float:
    """Growth of this process's own memory from the first tenth of the samples to the last one."""
    random = np.random.default_rng(1)
    before = 0.0
    for drawn in range(0, samples, _BATCH):
        _from_cache(cache, random.integers(0, cache.total_frames, _BATCH))
        if drawn <= samples // 10 < drawn + _BATCH:
            before = _own_memory_mb()
    return _own_memory_mb() - before


def _own_memory_mb() -> float:
    """Without the pages of mapped files, which the system takes back when it likes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no RssAnon")


def _episode(number: int) -> Episode:
    """Pictures that compress as pictures do: a moving square over a gradient, and some noise."""
    random = np.random.default_rng(number)
    ramp = np.linspace(0, 160, PIXELS).astype(np.uint8)
    images = {}
    for camera in ("front", "wrist"):
        frames = np.broadcast_to((ramp[:, None] // 2 + ramp // 2)[..., None], (STEPS, PIXELS, PIXELS, 3)).copy()
        for step in range(STEPS):
            top, left = (step + 13 * number) % (PIXELS - 16), (2 * step) % (PIXELS - 16)
            frames[step, top : top + 16, left : left + 16] = (200, 40, 40)
        images[camera] = frames + random.integers(0, 4, frames.shape, dtype=np.uint8)
    action = random.normal(size=(STEPS, 14)).astype(np.float32)
    return Episode(
        episode_id=f"e{number:05d}",
        images=images,
        state=random.normal(size=(STEPS, 14)).astype(np.float32),
        action_policy=action,
        action_sent=action,
        source=np.full(STEPS, Source.DEMO, np.uint8),
        task="put the peg into the socket",
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
        seed=number,
        control_hz=float(CONTROL_HZ),
        env_id="bench",
    )
