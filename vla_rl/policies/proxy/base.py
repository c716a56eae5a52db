"""The base policy behind a proxy: how it is opened and asked, and where its chunks are kept. It is never trained."""

import functools
import hashlib
import logging
import os
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.cache_keys import cache_key, claim
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import Stamp, stamp_of
from vla_rl.core.metadata import critic_of
from vla_rl.core.types import Float32Array, Observation
from vla_rl.data.run_folder import RunFolder
from vla_rl.policies.base import Inputs
from vla_rl.policies.named import SeededPolicy, is_name

logger = logging.getLogger(__name__)


def open_base(source: str) -> "FrozenBase":
    """Return the base policy of a name or folder, the newest one of a run. A process opens it once for all
    proxies.

    Raises:
        UserError: If there is no such policy.
    """
    if is_name(source):
        return _opened(source, ())
    if versions := RunFolder(Path(source)).policy_versions():
        source = str(RunFolder(Path(source)).policy(versions[-1]))
    return _opened(source, stamp_of(Path(source)))


@functools.lru_cache(maxsize=2)
def _opened(source: str, stamp: Stamp) -> "FrozenBase":
    del stamp
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return FrozenBase(source)


class FrozenBase:
    """A policy that is asked for chunks and never trained.

    Args:
        source: Its folder, ``openpi://HOST:PORT`` or ``module:Name``. What it plans must depend on the observation
            alone: stored observations are shown to it in any order.

    Attributes:
        key: Identifies its weights: the digest of its folder, else its name and version.
        horizon: H, number of actions in a chunk.
        n_obs_steps: Number of observations that it reads.
        model: The policy of a folder; None for a named one.
        asked, seconds: Number of chunks so far, and the time that they have taken.
    """

    def __init__(self, source: str) -> None:
        from vla_rl.policies.folders import load_model

        self.source = source
        self.asked, self.seconds = 0, 0.0
        if is_name(source):
            self._named = SeededPolicy(source)
            self.model = None
            self.key = f"{source} version {self._named.version}"
        else:
            if critic_of(Path(source)) is not None:
                raise ConfigError(f"policy.base={source} acts with a critic; name a policy without one")
            model, _ = load_model(Path(source))
            # No learner has its weights. On some processors, weights without `requires_grad` take other kernels, whose
            # chunks differ in the last bits from those of the policy itself.
            self.model = model.eval()
            self.key = cache_key(Path(source))
        policy: Any = self.model or self._named.policy
        self.spec, self.horizon = policy.spec, int(policy.horizon)
        self.n_obs_steps = int(getattr(policy, "n_obs_steps", 1))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Copies of a proxy share the base."""
        return self

    def reads_alike(self, one: str, other: str) -> bool:
        """Return whether two sentences are one to the policy. A named policy may distinguish all."""
        return self.model is not None and bool(torch.equal(*self.model.tokenize([one, other])))

    def check(self, observation: Observation) -> None:
        """Ask for the chunk of an observation. Warn if a named policy plans another one when asked again, at another
        tick.

        Raises:
            UserError: For a chunk of another shape, or actions that are not finite numbers.
        """
        several = (1,) if self.n_obs_steps == 1 else (1, self.n_obs_steps)
        arrays: dict[str, np.ndarray] = {"": observation.state, **observation.images}
        rows = {name: torch.from_numpy(np.tile(each, (*several, *[1] * each.ndim))) for name, each in arrays.items()}
        inputs = rows, rows.pop(""), torch.empty(1, 0)
        noise = torch.ones(1, 1, self.horizon, self.spec.action_dim)  # practice begins with a seed of its own
        first = self.chunks(inputs, [observation.task], noise)
        if self.model is None and not first.allclose(self.chunks(inputs, [observation.task], noise, self.horizon)):
            logger.warning(
                "policy.base=%s plans another chunk when asked again for one observation, at another tick. Practice "
                "shows stored observations in any order, all as of tick 0. Unless it draws at random, let it plan from "
                "images, state and sentence alone",
                self.source,
            )

    @torch.no_grad()
    def chunks(self, inputs: Inputs, sentences: Sequence[str], noise: Tensor, tick: int = 0) -> Tensor:
        """Ask for N chunks for each of B observations, [B, N, H, A].

        Args:
            inputs: Images and states. With ``n_obs_steps`` above 1 they have a second dimension, the oldest first.
            sentences: The task of each observation.
            noise: [B, N, H, A]. A policy without weights here gets a seed from it.
            tick: Tick of the observations, for a policy without weights here.

        Raises:
            UserError: For actions that are not finite numbers, or a named policy that is of another version now.
        """
        images, state, _ = inputs
        started_s = time.perf_counter()
        if self.model is not None:
            text = self.model.to(noise.device).tokenize(sentences).to(noise.device)
            found = self.model.draw_several(images, state, text, noise)
        else:
            pictures = {camera: image.to(torch.uint8).cpu().numpy() for camera, image in images.items()}
            states, noises = state.cpu().numpy(), noise.cpu().numpy()
            rows = []
            for row, sentence in enumerate(sentences):
                own = {camera: image[row] for camera, image in pictures.items()}
                observation = self._observation(own, states[row], sentence, tick)
                rows.append([self._named.chunk(observation, one) for one in noises[row]])
            found = torch.from_numpy(np.array(rows, np.float32)).to(noise.device)
        if not bool(found.isfinite().all()):
            raise UserError(f"policy.base={self.source} planned actions that are not finite numbers; correct it")
        self.asked += noise.shape[0] * noise.shape[1]
        self.seconds += time.perf_counter() - started_s
        return found

    def _observation(self, images: Mapping[str, np.ndarray], state: Float32Array, task: str, tick: int) -> Observation:
        if self.n_obs_steps == 1:
            return Observation(images, state, task, tick)
        every = [
            Observation({camera: image[step] for camera, image in images.items()}, state[step], task, tick)
            for step in range(self.n_obs_steps)
        ]
        return Observation(every[-1].images, every[-1].state, task, tick, past=tuple(every[:-1]))


class BaseChunks:
    """Chunks that a base policy has planned, by what it was shown. With a folder, processes share them.

    Each process appends to a file of its own. A record that a killed process has not finished is ignored.

    Args:
        shape: (H, A) of a chunk.
        folder: Of the files; None: only this process remembers.
        key: Of the base policy, see `FrozenBase.key`.

    Raises:
        UserError: If the folder holds chunks of another base policy.
    """

    def __init__(self, shape: tuple[int, int], folder: Path | None = None, key: str = "") -> None:
        self._record = np.dtype([("key", "V16"), ("crc", "<u4"), ("chunk", "<f4", shape)])
        self._found: dict[bytes, Float32Array] = {}
        self._folder, self._read = folder, dict[Path, int]()
        self._own = None if folder is None else folder / f"{os.getpid()}-{secrets.token_hex(4)}.chunks"
        if folder is not None:
            claim(
                folder / "base.txt",
                key.replace("\n", " "),
                f"{folder.parent} practices with another base policy than this one; bring the earlier one back, or "
                "begin another run",
            )
        self._writes = True
        self.refresh()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Copies of a proxy share the chunks of its base."""
        return self

    def get(self, key: bytes) -> Float32Array | None:
        """Return the chunk of a key, float32 [H, A]; None if there is none."""
        return self._found.get(key)

    def add(self, keys: Sequence[bytes], chunks: Float32Array) -> None:
        """Keep chunks, float32 [K, H, A]. Those in a folder are found after `refresh`: acting takes no memory."""
        if self._own is None:
            self._found |= dict(zip(keys, chunks, strict=True))
            return
        records = np.zeros(len(keys), self._record)
        for record, key, chunk in zip(records, keys, chunks, strict=True):
            record["key"], record["chunk"] = np.void(key), chunk
            record["crc"] = zlib.crc32(key + record["chunk"].tobytes())
        try:
            with self._own.open("ab") as file:
                file.write(records.tobytes())
        except OSError as error:
            if self._writes:
                logger.warning("chunks of the base policy are not kept: %s: %s", self._own, error.strerror)
            self._writes = False

    def refresh(self) -> None:
        """Read what other processes have added."""
        for file in sorted(self._folder.glob("*.chunks")) if self._folder else ():
            start = self._read.get(file, 0)
            count = (file.stat().st_size - start) // self._record.itemsize
            records = np.fromfile(file, self._record, count, offset=start)
            self._read[file] = start + records.nbytes
            for record in records:
                key = record["key"].tobytes()
                if zlib.crc32(key + record["chunk"].tobytes()) == record["crc"]:
                    self._found[key] = record["chunk"]


def keys_of(inputs: Inputs, sentences: Sequence[str], noise: Tensor) -> list[list[bytes]]:
    """Return the keys of chunks in `BaseChunks`: digests of all that a base policy is shown. Arguments as of
    `FrozenBase.chunks`.
    """
    images, state, _ = inputs
    columns = [np.ascontiguousarray(images[camera].to(torch.uint8).cpu().numpy()) for camera in sorted(images)]
    columns.append(np.ascontiguousarray(state.cpu().numpy()))
    noises = np.ascontiguousarray(noise.cpu().numpy())
    keys: list[list[bytes]] = []
    for row, sentence in enumerate(sentences):
        shown = hashlib.blake2b(sentence.encode(), digest_size=16)
        for column in columns:
            shown.update(column[row])
        keys.append([])
        for one in noises[row]:
            digest = shown.copy()
            digest.update(one)
            keys[-1].append(digest.digest())
    return keys
