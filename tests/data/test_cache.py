import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from episode_maker import make_episode
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vla_rl.core.errors import StoreError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache, RetentionConfig
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "store")


def assert_holds(cache: FrameCache, episodes: list[Episode]) -> None:
    """The cache's columns are these episodes back to back."""
    assert [entry.episode_id for entry in cache.episodes] == [episode.episode_id for episode in episodes]
    assert cache.total_frames == sum(len(episode) for episode in episodes)
    start = 0
    for index, (entry, episode) in enumerate(zip(cache.episodes, episodes, strict=True)):
        frames = slice(start, start + len(episode))
        assert (entry.start, entry.length) == (start, len(episode))
        assert (entry.task, entry.success, entry.policy_version) == (
            episode.task,
            episode.success,
            episode.policy_version,
        )
        for camera, image in episode.images.items():
            np.testing.assert_array_equal(cache.images[camera][frames], image)
        np.testing.assert_array_equal(cache.state[frames], episode.state)
        np.testing.assert_array_equal(cache.action[frames], episode.imitation_action())
        np.testing.assert_array_equal(cache.action_sent[frames], episode.action_sent)
        np.testing.assert_array_equal(cache.source[frames], episode.source)
        assert (cache.episode_index[frames] == index).all()
        np.testing.assert_array_equal(cache.position[frames], np.arange(len(episode)))
        start += len(episode)


def test_a_cache_holds_the_episodes_back_to_back_and_survives_reopening(store: EpisodeStore, tmp_path: Path) -> None:
    episodes = [make_episode(f"e{index}", length=3 + index, seed=index) for index in range(4)]
    cache = FrameCache(store, tmp_path / "cache")
    assert (cache.total_frames, cache.episodes, cache.refresh()) == (0, [], [])
    for episode in episodes[:3]:
        store.add(episode)
    assert [header.episode_id for header in cache.refresh()] == ["e0", "e1", "e2"]
    assert_holds(cache, episodes[:3])
    images_before = cache.images["front"]
    store.add(episodes[3])
    assert [header.episode_id for header in cache.refresh()] == ["e3"]
    assert_holds(cache, episodes)
    np.testing.assert_array_equal(images_before, cache.images["front"][: len(images_before)])
    assert_holds(FrameCache(store, tmp_path / "cache"), episodes)
    assert cache.refresh() == []


def test_growth_does_not_copy(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a"))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    file = next((tmp_path / "cache").glob("g*/images.front.bin"))
    inode = file.stat().st_ino
    store.add(make_episode("b"))
    cache.refresh()
    assert file.stat().st_ino == inode


def test_frame_numbers_do_not_depend_on_the_order_of_arrival(store: EpisodeStore, tmp_path: Path) -> None:
    cache = FrameCache(store, tmp_path / "cache")
    for seed, episode_id in enumerate(["m", "z", "a", "k"]):
        store.add(make_episode(episode_id, length=2 + seed, seed=seed))
        assert [header.episode_id for header in cache.refresh()] == [episode_id]
    assert [episode.episode_id for episode in cache.episodes] == ["a", "k", "m", "z"]
    assert_holds(cache, [store.read(episode_id) for episode_id in store.ids()])


def test_a_damaged_row_is_decoded_again_in_its_place(store: EpisodeStore, tmp_path: Path) -> None:
    for seed, episode_id in enumerate("abc"):
        store.add(make_episode(episode_id, seed=seed))
    FrameCache(store, tmp_path / "cache").refresh()
    file = next((tmp_path / "cache").glob("g*/state.bin"))
    content = bytearray(file.read_bytes())
    content[3 * 4 * 6] ^= 1  # in the second episode
    file.write_bytes(content)
    cache = FrameCache(store, tmp_path / "cache")
    assert [header.episode_id for header in cache.refresh()] == ["b"]
    assert_holds(cache, [store.read(episode_id) for episode_id in "abc"])


def test_a_label_given_later_reaches_training(store: EpisodeStore, tmp_path: Path) -> None:
    for episode_id in "abc":
        store.add(make_episode(episode_id, success=None))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    store.label("b", False)
    assert [header.episode_id for header in cache.refresh()] == ["b"]
    assert [(episode.episode_id, episode.success) for episode in cache.episodes] == [
        ("a", None),
        ("b", False),
        ("c", None),
    ]


def test_rows_that_other_code_has_filled_are_decoded_again(
    store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(make_episode("a"))
    FrameCache(store, tmp_path / "cache").refresh()
    assert FrameCache(store, tmp_path / "cache").refresh() == []
    monkeypatch.setattr("vla_rl.data.cache_files.code_digest", lambda *_: "another version")
    assert [header.episode_id for header in FrameCache(store, tmp_path / "cache").refresh()] == ["a"]


def test_columns_cannot_be_written_to(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a"))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    with pytest.raises(ValueError, match="read-only"):
        cache.images["front"][0] = 0


def test_windows_agree_with_a_slow_reference(store: EpisodeStore, tmp_path: Path) -> None:
    episodes = [
        make_episode(f"e{index}", length=length, seed=index, task=f"task {index % 2}")
        for index, length in enumerate([1, 7, 4])
    ]
    for episode in episodes:
        store.add(episode)
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    steps = [(episode, step) for episode in episodes for step in range(len(episode))]
    frames = np.random.default_rng(0).integers(0, cache.total_frames, 50)
    batch = cache.observations(frames)
    assert cache.tasks == ["task 0", "task 1"]
    for row, frame in enumerate(frames):
        episode, step = steps[frame]
        np.testing.assert_array_equal(batch.images["top"][row], episode.images["top"][step])
        np.testing.assert_array_equal(batch.state[row], episode.state[step])
        assert batch.tasks[row] == cache.tasks[batch.task_index[row]] == episode.task
    for horizon in (1, 3, 16):
        actions, valid = cache.chunks(frames, horizon)
        later, inside = cache.later(frames, horizon - 1)
        assert actions.shape == (50, horizon, 2)
        assert actions.dtype == np.float32
        for row, frame in enumerate(frames):
            episode, step = steps[frame]
            for ahead in range(horizon):
                expected = episode.imitation_action()[min(step + ahead, len(episode) - 1)]
                np.testing.assert_array_equal(actions[row, ahead], expected)
                assert valid[row, ahead] == (step + ahead < len(episode))
            assert steps[later[row]] == (episode, min(step + horizon - 1, len(episode) - 1))
            assert inside[row] == valid[row, -1]


def test_demonstrations_give_the_clean_action(store: EpisodeStore, tmp_path: Path) -> None:
    source = np.array([Source.DEMO, Source.HUMAN, Source.POLICY, Source.HOLD], np.uint8)
    episode = make_episode("a", length=4, source=source)
    store.add(episode)
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    np.testing.assert_array_equal(cache.action[0], episode.action_policy[0])
    np.testing.assert_array_equal(cache.action[1:], episode.action_sent[1:])


def test_episodes_of_unequal_shapes_are_a_clear_error(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a"))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    store.add(make_episode("b", size=(8, 8)))
    with pytest.raises(StoreError, match=r"'a' has .*'b' has .*separate stores"):
        cache.refresh()
    assert cache.total_frames == 5


def test_episodes_of_smaller_robots_end_with_zeros(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a", state=np.ones((5, 2), np.float32)))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    large = make_episode("b")  # one more state dimension: what is cached is laid out anew
    store.add(large)
    assert [header.episode_id for header in cache.refresh()] == ["a", "b"]
    np.testing.assert_array_equal(cache.state[:5], [[1, 1, 0]] * 5)
    np.testing.assert_array_equal(cache.state[5:], large.state)
    assert [episode.state_dim for episode in cache.episodes] == [2, 3]


def test_an_index_with_another_digit_is_not_believed(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a", success=True))
    FrameCache(store, tmp_path / "cache").refresh()
    file = tmp_path / "cache" / "index.json"
    file.write_bytes(file.read_bytes().replace(b'"success": true', b'"success": false'))
    cache = FrameCache(store, tmp_path / "cache")
    assert [header.success for header in cache.refresh()] == [True]
    assert_holds(cache, [make_episode("a", success=True)])


def test_an_empty_state_is_possible(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("a", state=np.zeros((5, 0), np.float32)))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    assert FrameCache(store, tmp_path / "cache").observations(np.array([4])).state.shape == (1, 0)


def test_a_damaged_episode_leads_to_the_doctor_and_costs_nothing_else(store: EpisodeStore, tmp_path: Path) -> None:
    for episode_id in ("a", "b", "c"):
        store.add(make_episode(episode_id))
    file = store.path / "episodes" / "b.zarr.zip"
    content = bytearray(file.read_bytes())
    content[content.index(b"state/c/0/0") + 30] ^= 1  # the header stays readable
    file.write_bytes(content)
    cache = FrameCache(store, tmp_path / "cache")
    with pytest.raises(StoreError, match=r"b\.zarr\.zip is damaged.*vla-rl doctor"):
        cache.refresh()
    assert_holds(cache, [make_episode("a")])
    file.unlink()
    assert [header.episode_id for header in cache.refresh()] == ["c"]


def test_the_bound_drops_the_oldest_rollouts_for_good(store: EpisodeStore, tmp_path: Path) -> None:
    config = RetentionConfig(max_frames=20)
    cache = FrameCache(store, tmp_path / "cache", config)
    store.add(make_episode("demo", origin=Origin.DEMO, policy_version=-1))
    for version in range(6):
        store.add(make_episode(f"rollout{version}", policy_version=version, seed=version))
        cache.refresh()
        assert cache.total_frames <= 20
    kept = ["demo", "rollout4", "rollout5"]  # a portion of two frames is two episodes
    assert [episode.episode_id for episode in cache.episodes] == kept
    assert cache.refresh() == []
    assert [episode.episode_id for episode in FrameCache(store, tmp_path / "cache", config).episodes] == kept
    assert len(store) == 7, "the store keeps everything"
    assert len(list((tmp_path / "cache").glob("g*"))) == 1, "an old generation was left behind"
    wider = FrameCache(store, tmp_path / "cache", RetentionConfig(max_frames=100))
    assert [header.episode_id for header in wider.refresh()] == [f"rollout{version}" for version in range(4)]


def test_arrays_in_use_stay_readable_when_episodes_are_dropped(store: EpisodeStore, tmp_path: Path) -> None:
    for version in range(3):
        store.add(make_episode(f"e{version}", policy_version=version, seed=version))
    cache = FrameCache(store, tmp_path / "cache", RetentionConfig(max_frames=15))
    cache.refresh()
    before = cache.images["front"]
    content = before.copy()
    store.add(make_episode("e3", policy_version=3))
    cache.refresh()
    assert [episode.episode_id for episode in cache.episodes] == ["e1", "e2", "e3"]
    np.testing.assert_array_equal(before, content)


def test_two_caches_on_one_directory_see_each_others_work(store: EpisodeStore, tmp_path: Path) -> None:
    episodes = [make_episode(f"e{index}", seed=index) for index in range(3)]
    one, other = FrameCache(store, tmp_path / "cache"), FrameCache(store, tmp_path / "cache")
    for index, episode in enumerate(episodes):
        store.add(episode)
        (one, other)[index % 2].refresh()
    assert one.refresh() == other.refresh() == []
    assert_holds(one, episodes)
    assert_holds(other, episodes)


def test_a_full_disk_is_one_clear_error(store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [make_episode("a"), make_episode("b", seed=1)]
    store.add(episodes[0])
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    store.add(episodes[1])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"cannot extend the frame cache .*No space left"):
            cache.refresh()
    assert_holds(FrameCache(store, tmp_path / "cache"), episodes[:1])
    cache.refresh()
    assert_holds(cache, episodes)


REFRESHER = """
import sys
from pathlib import Path
from vla_rl.data.cache import FrameCache
from vla_rl.data.cache import RetentionConfig
from vla_rl.data.store import EpisodeStore
store = EpisodeStore(Path(sys.argv[1]))
while True:
    for bound in (None, 60):
        print("refreshing", flush=True)
        FrameCache(store, Path(sys.argv[2]), RetentionConfig(max_frames=bound)).refresh()
"""


@pytest.mark.slow
def test_a_refresh_killed_at_any_moment_leaves_a_cache_that_can_be_used(store: EpisodeStore, tmp_path: Path) -> None:
    episodes = [make_episode(f"e{index}", length=20, seed=index, size=(32, 32)) for index in range(8)]
    for episode in episodes:
        store.add(episode)
    for trial in range(4):
        command = [sys.executable, "-c", REFRESHER, str(store.path), str(tmp_path / "cache")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(1 + trial):
                process.stdout.readline()
            time.sleep(0.013 * (trial + 1))
            process.send_signal(signal.SIGKILL)
        cache = FrameCache(store, tmp_path / "cache")
        cache.refresh()
        assert sorted(entry.episode_id for entry in cache.episodes) == [episode.episode_id for episode in episodes]
        assert_holds(cache, [store.read(entry.episode_id) for entry in cache.episodes])


class CacheMachine(RuleBasedStateMachine):
    """Episodes come, go and change, the cache is damaged, deleted, reopened: once refreshed it equals the store."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(os.environ["VLA_RL_TEST_FOLDER"]) / os.urandom(6).hex()
        self.store = EpisodeStore(self.folder / "store")
        self.cache = FrameCache(self.store, self.folder / "cache")
        self.added = 0

    @rule(length=st.integers(1, 4), number=st.integers(0, 3))
    def add(self, length: int, number: int) -> None:
        episode_id = f"e{number}"
        self.added += 1
        if episode_id not in self.store:
            self.store.add(make_episode(episode_id, length=length, seed=self.added, size=(2, 2), task=f"task {number}"))

    @precondition(lambda self: len(self.store) > 0)
    @rule(data=st.data())
    def remove_from_the_store(self, data: st.DataObject) -> None:
        episode_id = data.draw(st.sampled_from(self.store.ids()))
        (self.store.path / "episodes" / f"{episode_id}.zarr.zip").unlink()

    @precondition(lambda self: len(self.store) > 0)
    @rule(data=st.data())
    def replace_in_the_store(self, data: st.DataObject) -> None:
        episode_id = data.draw(st.sampled_from(self.store.ids()))
        length = self.store.read_header(episode_id).length
        (self.store.path / "episodes" / f"{episode_id}.zarr.zip").unlink()
        self.added += 1
        self.store.add(make_episode(episode_id, length=length, seed=self.added, size=(2, 2)))

    @rule()
    def reopen(self) -> None:
        self.cache = FrameCache(self.store, self.folder / "cache")

    @rule(whole=st.booleans())
    def delete(self, whole: bool) -> None:
        target = self.folder / "cache"
        for folder in [target] if whole else target.glob("g*"):
            shutil.rmtree(folder)

    @rule(size=st.integers(1, 100))
    def die_while_appending(self, size: int) -> None:
        for file in (self.folder / "cache").glob("g*/*.bin"):
            with file.open("ab") as stream:
                stream.write(b"x" * size)

    @precondition(lambda self: self.cache.total_frames > 0 and (self.folder / "cache" / "index.json").exists())
    @rule(data=st.data())
    def damage_and_reopen(self, data: st.DataObject) -> None:
        files = [self.folder / "cache" / "index.json", *sorted((self.folder / "cache").glob("g*/*.bin"))]
        file = data.draw(st.sampled_from([file for file in files if file.stat().st_size > 0]))
        content = bytearray(file.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1
        if data.draw(st.booleans()):
            del content[position:]
        file.unlink()  # a mapping of this process must not be cut short under it
        file.write_bytes(content)
        self.cache = FrameCache(self.store, self.folder / "cache")

    @invariant()
    def a_refresh_makes_the_cache_equal_to_the_store(self) -> None:
        if not hasattr(self, "cache"):
            return
        before = {entry.episode_id for entry in self.cache.episodes}
        taken_in = [header.episode_id for header in self.cache.refresh()]
        assert taken_in == sorted(taken_in)
        assert set(taken_in) >= set(self.store.ids()) - before
        assert [entry.episode_id for entry in self.cache.episodes] == self.store.ids()
        assert_holds(self.cache, [self.store.read(entry.episode_id) for entry in self.cache.episodes])


@pytest.fixture(autouse=True)
def machine_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLA_RL_TEST_FOLDER", str(tmp_path))


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
