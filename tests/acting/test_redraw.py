"""Episodes of a simulation are drawn again larger, and only where the simulation answers as it did."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from robot_io.env_interface import EnvDeclaration
from vla_rl.acting.record import RecordConfig, RecordOrder, record_task
from vla_rl.acting.redraw import Redrawer
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import TaskConfig

TASK = TaskConfig(env="vla_rl/PickPlace-v0", image_size=32)


def one_size_only(image_size: int = 32) -> None:
    raise ValueError(f"image_size {image_size} is not supported")


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Episode:
    store = EpisodeStore(tmp_path_factory.mktemp("store"))
    (name,) = record_task("expert", RecordOrder(store, 1), replace(RecordConfig(), task=TASK))
    return store.read(name)


def test_at_the_recorded_size_the_recorded_pictures_come_out(episode: Episode) -> None:
    steps = np.array([0, len(episode) // 2, len(episode) - 1])
    with closing(Redrawer(TASK)) as redraw:
        same, large = redraw(episode, steps, 32), redraw(episode, steps, 96)
    assert same is not None
    assert large is not None
    for camera, pictures in episode.images.items():
        assert np.array_equal(same[camera], pictures[steps])
        assert large[camera].shape == (3, 96, 96, 3)


def test_what_went_otherwise_is_not_drawn(episode: Episode) -> None:
    steps = np.array([0])
    state = episode.state.copy()
    state[-1] += 0.01
    with closing(Redrawer(TASK)) as redraw:
        assert redraw(replace(episode, state=state), steps, 32) is None
        assert redraw(replace(episode, seed=None), steps, 32) is None
        assert redraw(replace(episode, origin=Origin.REAL), steps, 32) is None
        assert redraw(replace(episode, env_id="no/Such-v0"), steps, 32) is None


def test_what_cannot_be_drawn_is_said_once(episode: Episode, caplog: pytest.LogCaptureFixture) -> None:
    steps = np.array([0])
    refusing = replace(episode, env_id=f"{__name__}:one_size_only")
    shorter = replace(TASK, declare=EnvDeclaration(max_episode_steps=len(episode) // 2))
    for task, unlike, why in (
        (TASK, refusing, "ValueError: image_size 96 is not supported"),
        (shorter, episode, "UserError: the episode has ended"),
    ):
        caplog.clear()
        with closing(Redrawer(task)) as redraw:
            assert [redraw(unlike, steps, 96) for _ in range(2)] == [None, None]
        (said,) = caplog.messages
        assert unlike.env_id in said
        assert why in said
