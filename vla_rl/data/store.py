"""The episode store: a folder that collectors add episodes to while learners, world models and reports read it.

Dependency and threading law: numpy and zarr only. Any number of processes and threads may add and read at the same time, on one machine: an
episode appears by the creation of its final name, after its bytes are on the disk, and never changes afterwards. No index has to be kept in
step with the files: the folder listing is the index.

::

    STORE/store.json               schema version, and the pinned layout if there is one
    STORE/episodes/ID.zarr.zip     one immutable file per episode
    STORE/quarantine/              damaged files that `vla-rl doctor` set aside
    STORE/.lock                    shared lock of writers; the doctor takes it alone
"""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vla_rl.core.errors import StoreError
from vla_rl.core.files import fsync_directory, write_atomic
from vla_rl.core.types import Episode
from vla_rl.data.episode_file import (
    SCHEMA_VERSION,
    SUFFIX,
    EpisodeHeader,
    check_episode_id,
    is_episode_id,
    read_file,
    read_file_header,
    write_file,
)


class EpisodeStore:
    """A folder of episodes.

    By default episodes of any environment, camera set and size may stand side by side; whoever reads asks for the ones that fit.
    `pin` restricts a store to one layout.

    Args:
        path: the folder.
        create: make the folder if it does not exist; with False that is an error.

    Raises:
        StoreError: for a missing store, one of another schema version, or a folder that cannot be written.
    """

    def __init__(self, path: Path, create: bool = True) -> None:
        self.path = Path(path)
        self.episodes_dir = self.path / "episodes"
        if not (self.path / "store.json").exists():
            if not create:
                raise StoreError(f"there is no episode store at {self.path} (no store.json)")
            try:
                self.episodes_dir.mkdir(parents=True, exist_ok=True)
                self._write_settings(pinned=None)
            except OSError as error:
                raise StoreError(f"cannot make an episode store at {self.path}: {error.strerror}") from error
        self._read_settings()

    def add(self, episode: Episode) -> None:
        """Save an episode. When this returns, it survives a crash of the process or the machine; when it raises, nothing has changed.

        Raises:
            UserError: for an episode that is not valid.
            StoreError: for an id that is taken or cannot be a file name, a layout other than the pinned one, a full disk.
        """
        check_episode_id(episode.episode_id)
        episode.validate()
        file = self._file(episode.episode_id)
        if file.exists():
            raise StoreError(
                f"the store {self.path} already has an episode {episode.episode_id!r}; episodes are immutable, take another id"
            )
        self._check_pin(episode)
        temporary = self.episodes_dir / f".{episode.episode_id}.{uuid.uuid4().hex[:12]}.tmp"
        try:
            with self.lock(exclusive=False), _removed_afterwards(temporary):
                write_file(episode, temporary)
                _fsync_file(temporary)
                os.link(
                    temporary, file
                )  # unlike a rename, a link never replaces what another writer has just put there
                fsync_directory(self.episodes_dir)
        except FileExistsError:
            raise StoreError(
                f"another writer has just saved an episode {episode.episode_id!r} in {self.path}; take another id"
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot save episode {episode.episode_id!r} in {self.path}: {error.strerror or error}"
            ) from error

    def ids(self) -> list[str]:
        """The ids of all episodes, sorted."""
        try:
            names = os.listdir(self.episodes_dir)
        except OSError as error:
            raise StoreError(f"cannot list {self.episodes_dir}: {error.strerror}") from error
        return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith("."))

    def read(self, episode_id: str) -> Episode:
        """The whole episode. Raises StoreError if it is missing or damaged."""
        return read_file(self._file(episode_id))

    def read_header(self, episode_id: str) -> EpisodeHeader:
        """What is known of the episode without its columns. Raises StoreError if it is missing or damaged."""
        return read_file_header(self._file(episode_id))

    def file_stamp(self, episode_id: str) -> tuple[int, int]:
        """Modification time in ns and size in bytes of the episode's file: other values mean another episode under the same id."""
        try:
            stat = self._file(episode_id).stat()
        except OSError as error:
            raise StoreError(f"there is no episode {episode_id!r} in {self.path}") from error
        return stat.st_mtime_ns, stat.st_size

    def __contains__(self, episode_id: object) -> bool:
        return is_episode_id(episode_id) and self._file(str(episode_id)).exists()

    def __len__(self) -> int:
        return len(self.ids())

    def pin(self, header: EpisodeHeader) -> None:
        """From now on accept only episodes with this header's environment, cameras, image sizes, state and action size."""
        self._write_settings(pinned=_layout(header.env_id, header.state_dim, header.action_dim, dict(header.cameras)))

    @contextlib.contextmanager
    def lock(self, exclusive: bool) -> Iterator[None]:
        """Writers hold the lock shared; whoever holds it exclusively knows that no write is under way. A dead process holds nothing."""
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _file(self, episode_id: str) -> Path:
        check_episode_id(episode_id)
        return self.episodes_dir / (episode_id + SUFFIX)

    def _check_pin(self, episode: Episode) -> None:
        pinned = self._read_settings()["pinned"]
        if pinned is None:
            return
        cameras = {name: image.shape[1:3] for name, image in episode.images.items()}
        found = _layout(episode.env_id, episode.state.shape[1], episode.action_sent.shape[1], cameras)
        for key, expected in pinned.items():
            if found.get(key) != expected:
                raise StoreError(
                    f"the store {self.path} is pinned to {key} {expected!r}, episode {episode.episode_id!r} has {found.get(key)!r}; "
                    "add it to another store"
                )

    def _read_settings(self) -> dict[str, Any]:
        file = self.path / "store.json"
        try:
            settings = json.loads(file.read_bytes())
            version, pinned = settings["schema_version"], settings["pinned"]
            if pinned is not None and not isinstance(pinned, dict):
                raise TypeError("pinned is not a mapping")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file} is damaged or missing; `vla-rl doctor {self.path}` writes it anew") from error
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; read it with the version that wrote it"
            )
        return {"pinned": pinned}

    def _write_settings(self, pinned: dict[str, Any] | None) -> None:
        settings = {"schema_version": SCHEMA_VERSION, "pinned": pinned}
        write_atomic(self.path / "store.json", json.dumps(settings, indent=2).encode())


def _layout(env_id: str, state_dim: int, action_dim: int, cameras: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: list(size) for name, size in sorted(cameras.items())}
    return {"env_id": env_id, "state_dim": state_dim, "action_dim": action_dim, "cameras": sizes}


@contextlib.contextmanager
def _removed_afterwards(file: Path) -> Iterator[None]:
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _fsync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
