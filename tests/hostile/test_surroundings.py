"""Clocks that jump, files that run out, disks that are full: what was saved stays, and the rest is one line."""

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest

from benchmarks.hostile import kinds
from benchmarks.hostile.verbs import INPUTS, OUTPUTS
from vla_rl.cli.main import VERBS, main, say_errors
from vla_rl.core.errors import UserError
from vla_rl.data.store import EpisodeStore


def test_the_matrix_holds_every_verb_with_an_input() -> None:
    assert {*INPUTS, *OUTPUTS} == VERBS.keys() - {"task"}  # whose input is a name, not a file


def test_a_clock_that_jumps_back_loses_no_episode(tmp_path: Path) -> None:
    from vla_rl.data.cache import FrameCache

    kinds.make_store(tmp_path / "store")
    store, file = EpisodeStore(tmp_path / "store"), tmp_path / "store" / "episodes" / "e0.zarr.zip"
    FrameCache(store, tmp_path / "cache").refresh()
    os.utime(file, (0, 0))
    store.add(kinds.episode("e2", 2))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    assert [entry.episode_id for entry in cache.episodes] == ["e0", "e1", "e2"]


def test_when_files_run_out_nothing_is_half_written(tmp_path: Path) -> None:
    kinds.make_store(tmp_path / "store")
    store = EpisodeStore(tmp_path / "store")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for spare in range(1, 6):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + spare, hard))
            with contextlib.suppress(UserError):
                store.add(kinds.episode(f"more-{spare}", spare))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name in store.ids():
        store.read(name)
    assert not list(store.episodes_dir.glob(".*"))


def test_nothing_is_begun_where_hardly_a_file_can_be_opened(capsys: pytest.CaptureFixture[str]) -> None:
    begun = []

    def begin() -> int:
        begun.append(True)
        return 0

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
        code = say_errors("vla-rl", "record", begin)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (code, begun, capsys.readouterr().err) == (2, [], "vla-rl: error: Too many open files\n")


def test_a_full_disk_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds.make_checkpoint(tmp_path)
    before = kinds.read_checkpoint(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vla_rl.training.checkpoint.fsync_path", full)
    with pytest.raises(OSError, match="No space"):
        kinds.make_checkpoint(tmp_path)
    assert kinds.read_checkpoint(tmp_path) == before
    monkeypatch.setattr("vla_rl.core.signing.os.open", full)
    assert main(["sign", "--new-key", str(tmp_path / "key.pem")]) == 2
    assert "the disk is full" in capsys.readouterr().err
