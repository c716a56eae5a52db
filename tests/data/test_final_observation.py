"""The observation after the last command: kept by every recorder, importer and edit, and never a commanded step."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from episode_maker import assert_same_episode, make_episode, with_final

from vla_rl.acting.retiming import retimed
from vla_rl.core.errors import UserError
from vla_rl.core.types import PICTURED
from vla_rl.data.cache import FrameCache
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.lerobot_features import FINAL_FOLDER
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore(tmp_path / "store")
    store.add(with_final(make_episode("ended", length=6)))
    store.add(make_episode("before", seed=3))
    return store


def test_a_recording_of_before_has_the_digest_that_it_had_and_says_that_it_has_none(store: EpisodeStore) -> None:
    header, episode = store.read_header("before"), store.read("before")
    assert header.digest == "1dfcd217d08d3059100a6747e8142ff0bde03f66ca8300dc14f89f771fddb455"
    assert not header.has_final
    assert "has_final" not in header.to_plain()
    assert (episode.final_state, episode.final_images) == (None, {})
    assert store.read_header("ended").has_final


def test_nothing_that_learns_commands_sees_it(store: EpisodeStore, tmp_path: Path) -> None:
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    assert cache.total_frames == 5 + 6
    episode = store.read("ended")
    lengths = {len(column) for column in (episode.state, episode.imitation_action(), episode.source)}
    assert lengths == {6}
    assert not any((row == episode.final_state).all() for row in cache.state)


def test_a_trim_ends_with_the_observation_after_its_own_last_command(store: EpisodeStore) -> None:
    whole = store.read("ended")
    store.edit("ended", trim=(2, 6))
    assert_same_episode(replace(store.read("ended"), **vars_of(whole)), whole)
    assert np.array_equal(store.read("ended").final_state, whole.final_state)
    store.edit("ended", trim=(1, 4))
    cut = store.read("ended").validate()
    assert np.array_equal(cut.final_state, whole.state[4])
    assert np.array_equal(cut.final_images["front"], whole.images["front"][4])
    store.edit("before", trim=(0, 2))
    assert store.read_header("before").has_final
    assert store.read("before").final_state is not None


def vars_of(episode):  # type: ignore[no-untyped-def]
    names = ("images", "state", "action_policy", "action_sent", "source", "extras")
    return {name: getattr(episode, name) for name in names}


def test_a_trim_before_a_repeated_picture_has_none(store: EpisodeStore) -> None:
    pictured = np.array([1, 1, 1, 0, 1, 1], np.uint8)
    store.add(with_final(make_episode("planned", length=6, extras={PICTURED: pictured})))
    store.edit("planned", trim=(0, 3))
    assert store.read("planned").validate().final_state is None


def test_a_retimed_demonstration_ends_where_it_ended() -> None:
    episode = with_final(make_episode("demo", length=40))
    faster = retimed(episode, 2.0, (), ())
    assert len(faster) < 40
    assert np.array_equal(faster.validate().final_state, episode.final_state)


@pytest.mark.parametrize(
    "change", [{"final_images": {}}, {"final_state": None}, {"final_state": np.array([0, np.nan, 0], np.float32)}]
)
def test_half_an_observation_is_refused(change: dict) -> None:
    with pytest.raises(UserError, match="final"):
        replace(with_final(make_episode("half")), **change).validate()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lerobot's imports
def test_a_lerobot_dataset_keeps_it_beside_its_rows(
    store: EpisodeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = export_lerobot(store, tmp_path / "dataset")
    small = EpisodeStore(tmp_path / "small")
    import_lerobot(folder, small, LeRobotMapping(image_size=(2, 3), cameras={"eye": "observation.images.top"}))
    found = small.read("ended")
    assert np.array_equal(found.final_state, store.read("ended").final_state)
    assert found.final_images["eye"].shape == (2, 3, 3)
    assert not small.read_header("before").has_final
    shutil.rmtree(folder / FINAL_FOLDER)
    bare = EpisodeStore(tmp_path / "bare")
    import_lerobot(folder, bare)
    assert "has no observation after its last command" in caplog.text
    assert not bare.read_header("ended").has_final
