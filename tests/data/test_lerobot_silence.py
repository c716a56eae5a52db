"""Facts of a LeRobotDataset that an import could lose without a word. The files are written here, without lerobot."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from benchmarks.data_traps.lerobot_files import FRONT, Video, arm, imported, write
from vla_rl.core.errors import StoreError, UserError
from vla_rl.data.lerobot_import import LeRobotMapping, survey_lerobot

DEPTH = "observation.images.depth"
JUDGED = "is_episode_successful"  # as DROID has it


def test_a_column_that_looks_like_an_outcome_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = arm()
    data = replace(data, columns={**data.columns, JUDGED: (None, np.repeat([True, False], data.lengths))})
    episodes = imported(tmp_path, data)
    assert [episode.success for episode in episodes] == [None, None]
    (warning,) = (record.message for record in caplog.records if JUDGED in record.message)
    assert f"{JUDGED} may hold them: mapping.lerobot.success={JUDGED}" in warning
    assert survey_lerobot(tmp_path / "data").outcomes.startswith(f"no column: {warning.partition('no column: ')[2]}")
    caplog.clear()
    episodes = imported(tmp_path, data, LeRobotMapping(success=JUDGED), name="named")
    assert [episode.success for episode in episodes] == [True, False]
    assert not caplog.text
    imported(tmp_path, arm(), name="unjudged")
    assert not caplog.text


@pytest.mark.parametrize("part", ["action", "observation.state"])
def test_a_column_that_holds_more_of_the_action_or_state_is_named(
    part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = arm()
    names, joints = data.columns[part]
    base = {f"{part}.base": (["x", "y"], np.arange(22, dtype=np.float32).reshape(11, 2))}
    parts = {f"{part}.gripper": (None, joints[:, 2]), f"{part}.turned": (names, joints[:, ::-1].copy())}  # it repeats
    imported(tmp_path, replace(data, columns={**data.columns, **parts}), name="repeated")
    assert not caplog.text
    data = replace(data, columns={**data.columns, **parts, **base})
    imported(tmp_path, data)
    (warning,) = caplog.messages
    assert f"{part}.base" in warning
    assert f"{part}.gripper" not in warning
    setting = {"action": "action=action.base. ", "observation.state": f"state=[{part}, {part}.base]"}[part]
    assert f"mapping.lerobot.{setting}" in warning
    caplog.clear()
    chosen = LeRobotMapping(action="action.base") if part == "action" else LeRobotMapping(state=(part, f"{part}.base"))
    (first, *_) = imported(tmp_path, data, chosen, name="chosen")
    assert (first.action_sent.shape[1], first.state.shape[1]) == ((2, 3) if part == "action" else (3, 5))
    assert not caplog.text


@pytest.mark.parametrize("place", ["info", "video_info"])
@pytest.mark.parametrize("flag", ["is_depth_map", "video.is_depth_map"])
def test_a_depth_map_in_three_channels_is_no_camera(place: str, flag: str, tmp_path: Path) -> None:
    data = arm(cameras={FRONT: Video(), DEPTH: Video()}, features={DEPTH: {place: {flag: True}}})
    with pytest.raises(UserError, match=f"{DEPTH} .* is not an RGB camera; name the cameras"):
        imported(tmp_path, data)
    (first, *_) = imported(tmp_path, data, LeRobotMapping(cameras={"front": FRONT}), name="named")
    assert list(first.images) == ["front"]


def test_sentences_of_rows_and_episodes_that_differ_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", arm())
    tasks = pyarrow.table({"task_index": [0], "task": ["take it out"]})
    parquet.write_table(tasks, folder / "meta/tasks.parquet")
    with pytest.raises(StoreError, match=r"episode 0 has the tasks \['put it in'\].* its rows 'take it out'"):
        survey_lerobot(folder)


def test_an_empty_episode_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"has 0 of 0 steps of episode 1\. .*leave_out=\[1\]"):
        survey_lerobot(write(tmp_path / "data", arm(lengths=(6, 0, 5))))
