"""Writers that are killed, disks that are full, readers and writers at the same time. Real processes, real signals."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from episode_maker import assert_same_episode, make_episode

from benchmarks.data_kills import run_trials
from vla_rl.core.errors import StoreError
from vla_rl.data.doctor import Defect, diagnose, repair
from vla_rl.data.store import EpisodeStore

# Imports once, then forks a writer for every line it reads. A writer adds episodes and reports each once it is saved.
WRITERS = """
import os, sys
from pathlib import Path
from episode_maker import make_episode
from vla_rl.data.store import EpisodeStore
import zarr.codecs, zarr.storage

store = EpisodeStore(Path(sys.argv[1]))
for line in sys.stdin:
    prefix, count = line.split()
    process = os.fork()
    if process == 0:
        os.write(1, f"started {os.getpid()}\\n".encode())
        try:
            for number in range(int(count)):
                episode_id = f"{prefix}-{number:05d}"
                store.add(make_episode(episode_id, length=20, seed=number, size=(32, 32)))
                os.write(1, f"saved {episode_id}\\n".encode())
        finally:
            os.write(1, b"finished\\n")
            os._exit(0)
    os.waitpid(process, 0)
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.slow
def test_every_episode_reported_as_saved_survives_kill_9(tmp_path: Path) -> None:
    found = run_trials(tmp_path / "store", trials=50)
    assert found["killed_writing"], "no recorder was killed while it wrote: the test proves nothing"
    assert found["episodes_saved"] >= 50
    assert (found["episodes_lost"], found["episodes_damaged"]) == (0, 0)
    assert {finding.defect for finding in repair(tmp_path / "store")} == {Defect.LEFTOVER}
    assert diagnose(tmp_path / "store") == []


@pytest.mark.slow
def test_readers_never_see_a_part_of_an_episode(tmp_path: Path, writers: subprocess.Popen[str]) -> None:
    writers.stdin.write("run 20\n")
    assert writers.stdout.readline().startswith("started ")
    store = EpisodeStore(tmp_path / "store")
    seen: set[str] = set()
    for line in iter(writers.stdout.readline, "finished\n"):  # while one episode is read, the next ones are written
        assert line.startswith("saved ")
        for episode_id in sorted(set(store.ids()) - seen):
            number = int(episode_id.split("-")[1])
            assert_same_episode(store.read(episode_id), make_episode(episode_id, length=20, seed=number, size=(32, 32)))
            seen.add(episode_id)
        if len(seen) % 5 == 0:
            assert diagnose(store.path) == []  # a live writer's temporary file is not a leftover
    assert sorted(seen) == store.ids()
    assert len(seen) == 20


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_is_one_clear_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = EpisodeStore(tmp_path / "store")
    store.add(make_episode("before"))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StoreError, match=r"cannot save episode 'next' .*No space left on device"):
            store.add(make_episode("next"))
    assert [file.name for file in (store.path / "episodes").iterdir()] == ["before.zarr.zip"]
    store.add(make_episode("next"))
    assert store.ids() == ["before", "next"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from episode_maker import make_episode
from benchmarks.data_kills import run_trials
from vla_rl.core.errors import StoreError
from vla_rl.data.store import EpisodeStore

store = EpisodeStore(Path(sys.argv[1]))
store.add(make_episode("small"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    store.add(make_episode("large", length=100, size=(32, 32)))
except StoreError as error:
    print(error)
store.add(make_episode("small2"))
"""


@pytest.mark.slow
def test_a_write_that_the_system_cuts_short_loses_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path / "store")]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert finished.stderr == ""
    assert finished.stdout.count("\n") == 1
    assert "cannot save episode 'large'" in finished.stdout
    store = EpisodeStore(tmp_path / "store", create=False)
    assert [file.name for file in sorted((store.path / "episodes").iterdir())] == [
        "small.zarr.zip",
        "small2.zarr.zip",
    ]
    assert diagnose(store.path) == []
