"""LeRobotDatasets whose names, clocks or pictures are not what they seem."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_traps.lerobot_files import (
    FPS,
    FRONT,
    JOINTS,
    STATE,
    Dataset,
    Video,
    arm,
    imported,
    level,
    values,
    write,
)
from benchmarks.data_traps.traps import SilentlyWrong, expect, trap
from vla_rl.cli.main import main
from vla_rl.core.dimensions import UNDECLARED
from vla_rl.core.errors import UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.health import check_episodes
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot, survey_lerobot
from vla_rl.data.sources import DataMapping
from vla_rl.data.store import EpisodeStore
from vla_rl.training.finetune import FinetuneConfig, check_data
from vla_rl.training.picture_cost import large_pictures

NAMES = "dimension names of a LeRobotDataset"
CLOCKS = "video and table of a LeRobotDataset"
CAMERAS = "cameras of a LeRobotDataset"
_REVERSED = JOINTS[::-1]


def _named(folder: Path, names: Any, expected: Sequence[str]) -> str:
    """Import a dataset whose features declare names in some form; the episode must carry them in the expected order."""
    episode = imported(folder, arm(names))[0]
    found = episode.state_dimensions.names, episode.action_dimensions.names
    expect(found == (tuple(expected),) * 2, f"the state and action are called {found}")
    return f"state and action are called {list(expected)}"


def _refused(data: Path) -> str:
    """What the survey of a dataset says that it must refuse."""
    try:
        survey_lerobot(data)
    except UserError as error:
        return str(error)
    return "accepted"


# Names of dimensions


@trap(NAMES, "names as a list, as lerobot-record writes them")
def names_as_list(folder: Path) -> str:
    return _named(folder, JOINTS, JOINTS)


@trap(NAMES, "names as a dictionary of one list, as converted datasets have them")
def names_in_dictionary(folder: Path) -> str:
    return _named(folder, {"motors": JOINTS}, JOINTS)


@trap(NAMES, "names as a dictionary of places out of order, as the RL recorder writes them")
def names_with_places(folder: Path) -> str:
    return _named(folder, {"gripper": 2, "delta_x": 0, "delta_y": 1}, ["delta_x", "delta_y", "gripper"])


@trap(NAMES, "two arms in nested lists whose joints have the same names")
def names_of_two_arms(folder: Path) -> str:
    names = {"left": ["elbow"], "right": [["elbow"], ["grip"]]}
    return _named(folder, names, ["left.elbow", "right.elbow", "grip"])


@trap(NAMES, "the only name names the axis, not its three numbers")
def names_of_axes(folder: Path) -> str:
    return _named(folder, ["state"], [])


@trap(NAMES, "names are null")
def names_are_null(folder: Path) -> str:
    dataset = arm()
    nameless = {key: (None, column) for key, (_, column) in dataset.columns.items()}
    episode = imported(folder, replace(dataset, columns=nameless))[0]
    expect(episode.dimensions == (UNDECLARED, UNDECLARED), f"the names are {episode.dimensions}")
    return "undeclared"


@trap(NAMES, "three numbers have two names", remedy="meta/info.json")
def too_few_names(folder: Path) -> str:
    return _named(folder, ["a", "b"], ["refused"])


@trap(NAMES, "two joints have one name", remedy="meta/info.json")
def doubled_names(folder: Path) -> str:
    return _named(folder, ["a", "a", "b"], ["refused"])


@trap(NAMES, "the state consists of two columns whose names collide")
def colliding_columns(folder: Path) -> str:
    speed = values(["a", "bb"], 11)
    columns = {**arm().columns, "observation.velocity": (["elbow.pos", "wrist"], speed)}
    mapping = LeRobotMapping(state=(STATE, "observation.velocity"))
    episode = imported(folder, Dataset(columns=columns), mapping)[0]
    expected = (JOINTS[0], "elbow.pos.state", JOINTS[2], "elbow.pos.velocity", "wrist")
    expect(episode.state_dimensions.names == expected, f"the state is called {episode.state_dimensions.names}")
    expect(np.array_equal(episode.state[:, 3:], speed[:6]), "the numbers are in another order than their names")
    return str(list(expected))


@trap(NAMES, "two datasets of one robot, the second with all names in reverse order")
def reversed_dataset(folder: Path) -> str:
    store = EpisodeStore(folder / "store")
    for name, names in (("a", JOINTS), ("b", _REVERSED)):
        import_lerobot(write(folder / name, arm(names)), store)
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    rows = cache.action[[episode.start for episode in cache.episodes]]
    expect(np.array_equal(rows, np.repeat(values(JOINTS, 12)[[0, 6]], 2, axis=0)[[0, 2, 0, 2]]), f"rows are {rows}")
    return f"every episode's action begins with {rows[0].tolist()} for {JOINTS}"


@trap(NAMES, "finetune --data A B, B has other joint names: refused before anything is copied", remedy="Map the names")
def other_robot(folder: Path) -> str:
    other = {key: (["a", "b", "c"], column) for key, (_, column) in arm().columns.items()}
    paths = (write(folder / "a", arm()), write(folder / "b", Dataset(columns=other)))
    check_data(FinetuneConfig(data=tuple(map(str, paths))))
    raise SilentlyWrong("accepted")


@trap(NAMES, "the mapping says that two joints are in degrees, a policy expects radians")
def units_of_the_mapping(folder: Path) -> str:
    units = dict.fromkeys(JOINTS[:2], "deg")
    episode = imported(folder, arm(), LeRobotMapping(units=units))[0]
    radians = replace(episode.state_dimensions, units=("rad", "rad", ""))
    state = episode.matched((radians, radians), "a policy").state
    expect(np.allclose(state, episode.state * [np.pi / 180, np.pi / 180, 1]), f"the state is {state[0]}")
    return f"{episode.state[0].tolist()} is read as {state[0].round(3).tolist()}"


# Video and table


def _film(folder: Path, video: Video, mapping: LeRobotMapping | None = None, **changes: Any) -> str:
    """Import a dataset with a video; every picture must belong to its row."""
    for episode in imported(folder, arm(cameras={FRONT: video}, **changes), mapping):
        number = int(episode.episode_id[-6:])
        found = episode.images["front"].mean(axis=(1, 2, 3))
        wanted = [level(number, row) for row in range(len(episode))]
        expect(bool((np.abs(found - wanted) < 3).all()), f"episode {number} shows {found.round()}, expected {wanted}")
    return "every picture belongs to its row"


def _gray(*lengths: int) -> list[int]:
    return [level(episode, row) for episode, length in enumerate(lengths) for row in range(length)]


def _seconds(*steps: float) -> list[float]:
    return [step / FPS for step in steps]


@trap(CLOCKS, "two episodes in one video file, all right")
def right_video(folder: Path) -> str:
    return _film(folder, Video())


@trap(CLOCKS, "the frames are a tenth of a step early")
def early_by_little(folder: Path) -> str:
    return _film(
        folder, Video(times_s=_seconds(*np.arange(11))), stamps_s=[_seconds(*np.arange(n) + 0.1) for n in (6, 5)]
    )


@trap(CLOCKS, "the first episode lost its last two frames, and to_timestamp says so", remedy="(to_timestamp)")
def lost_frames(folder: Path) -> str:
    ends = _seconds(0, 4, 9)
    video = Video(_seconds(*range(9)), [*_gray(4), *_gray(6, 5)[6:]], [(ends[0], ends[1]), (ends[1], ends[2])])
    return _film(folder, video)


@trap(CLOCKS, "the first episode lost its last two frames, and nothing says so", remedy="Encode the video anew")
def lost_frames_unsaid(folder: Path) -> str:
    return _film(folder, Video(_seconds(*range(9)), [*_gray(4), *_gray(6, 5)[6:]]))


@trap(CLOCKS, "the first episode has two frames more than rows, and nothing says so", remedy="Encode the video anew")
def more_frames(folder: Path) -> str:
    return _film(folder, Video(_seconds(*range(13)), [*_gray(6), 248, 248, *_gray(6, 5)[6:]]))


@trap(CLOCKS, "one frame in the middle was lost, time goes on", remedy="encode the video anew")
def gap_in_video(folder: Path) -> str:
    return _film(
        folder, Video(_seconds(0, 1, 3, 4, 5, *range(6, 11)), [*_gray(6)[:2], *_gray(6)[3:], *_gray(6, 5)[6:]])
    )


@trap(CLOCKS, "one frame came twice as late as it should", remedy="from_timestamp")
def late_frame(folder: Path) -> str:
    return _film(folder, Video(_seconds(0, 1, 2.6, *range(3, 11))))


@trap(CLOCKS, "from_timestamp of the second episode is .7 of a frame late", remedy="from_timestamp")
def late_start(folder: Path) -> str:
    return _film(folder, Video(spans_s=[(0, 6 / FPS), (6.7 / FPS, 11 / FPS)]))


@trap(CLOCKS, "both episodes begin half a frame early", remedy="from_timestamp")
def early_start(folder: Path) -> str:
    return _film(folder, Video(spans_s=[(-0.5 / FPS, 5.5 / FPS), (5.5 / FPS, 10.5 / FPS)]))


@trap(CLOCKS, "the second episode points to the frames of the first", remedy="meta/episodes")
def same_frames_twice(folder: Path) -> str:
    video = Video(_seconds(*range(6)), _gray(6), [(0, 6 / FPS), (0, 5 / FPS)])
    return _film(folder, video)


@trap(CLOCKS, "the rows are stamped at 20 Hz, fps is 30, the video is at 30", remedy="meta/info.json has fps 30")
def slow_stamps(folder: Path) -> str:
    return _film(folder, Video(), stamps_s=[np.arange(n) / 20 for n in (6, 5)])


@trap(CLOCKS, "rows and pictures at 20 Hz, fps 30, no video", remedy="meta/info.json has fps 30")
def slow_stamps_of_images(folder: Path) -> str:
    imported(folder, arm(stamps_s=[np.arange(n) / 20 for n in (6, 5)]))
    raise SilentlyWrong("accepted")


@trap(CLOCKS, "the rows are stamped at 29 Hz, fps is 30", remedy="meta/info.json has fps 30")
def almost_the_rate(folder: Path) -> str:
    imported(folder, arm(lengths=(60,), stamps_s=[np.arange(60) / 29]))
    raise SilentlyWrong("accepted")


@trap(CLOCKS, "a row in the middle is missing from the table", remedy="rows are missing")
def lost_row(folder: Path) -> str:
    imported(folder, arm(stamps_s=[_seconds(0, 1, 2, 4, 5, 6), _seconds(*range(5))]))
    raise SilentlyWrong("accepted")


@trap(CLOCKS, "the video has 20 frames per second, rows and fps have 30", remedy="Encode the video anew")
def slow_video(folder: Path) -> str:
    return _film(folder, Video((np.arange(11) / 20).tolist()))


@trap(CLOCKS, "one of two episodes is wrong: it is named, and the other one is taken in without it")
def leave_out_one(folder: Path) -> str:
    data = write(folder / "data", arm(stamps_s=[_seconds(0, 1, 2, 4, 5, 6), _seconds(*range(5))]))
    said = _refused(data)
    expect("episode 0" in said and "leave_out=[0]" in said, said)
    taken = import_lerobot(data, EpisodeStore(folder / "store"), LeRobotMapping(leave_out=(0,)))
    expect(taken == ["data-000001"], f"taken in are {taken}")
    return f"{said}; then: {taken}"


@trap(CLOCKS, "the camera stood still for the whole episode while the arm moved: the health check says so")
def frozen_video(folder: Path) -> str:
    lengths = (30, 30)
    still = [80] * 30 + [80 + row for row in range(30)]
    moving = replace(arm(lengths=lengths), cameras={FRONT: Video(levels=still)})
    health = check_episodes(imported(folder, moving))
    found = [finding for finding in health.findings if finding.check == "frozen video"]
    expect(len(found) == 1 and list(found[0].episodes) == ["data-000000"], f"the health check found {health.table()}")
    return found[0].detail


# Cameras and sizes

_TWO = {FRONT: (8, 8), "observation.images.wrist": (16, 24)}


@trap(CAMERAS, "two cameras of unequal sizes, and no size", remedy="mapping.lerobot.image_size")
def unequal_cameras(folder: Path) -> str:
    check_data(FinetuneConfig(data=(str(write(folder / "data", arm(cameras=_TWO))),)))
    raise SilentlyWrong("accepted")


@trap(CAMERAS, "two cameras of unequal sizes are scaled to image_size")
def scaled_cameras(folder: Path) -> str:
    mapping = LeRobotMapping(image_size=(8, 12))
    check_data(FinetuneConfig(data=(str(write(folder / "check", arm(cameras=_TWO))),), mapping=DataMapping(mapping)))
    episode = imported(folder, arm(cameras=_TWO), mapping)[0]
    shapes = {camera: image.shape for camera, image in episode.images.items()}
    expect({*shapes.values()} == {(6, 8, 12, 3)}, f"the pictures are {shapes}")
    return "both are 8 x 12"


@trap(CAMERAS, "the size of the video differs from the declared shape", remedy="meta/info.json")
def declared_size_differs(folder: Path) -> str:
    return _film(folder, Video(), features={FRONT: {"shape": [24, 32, 3]}})


@trap(CAMERAS, "the shape is declared channels first, as the RL recorder does")
def channels_first(folder: Path) -> str:
    shape = {"shape": [3, 8, 12], "names": ["channels", "height", "width"]}
    episode = imported(folder, arm(cameras={FRONT: (8, 12)}, features={FRONT: shape}))[0]
    expect(episode.images["front"].shape == (6, 8, 12, 3), f"the pictures are {episode.images['front'].shape}")
    return "8 x 12"


@trap(CAMERAS, "two cameras whose columns end alike")
def cameras_of_one_name(folder: Path) -> str:
    cameras = {"observation.images.top": (8, 8), "observation.right.top": (8, 8)}
    found = sorted(imported(folder, arm(cameras=cameras))[0].images)
    expect(len(found) == 2, f"of two cameras {found} are left")
    return str(found)


@trap(CAMERAS, "a refused run leaves no folder; a run with a size in the mapping or on the command line starts in it")
def refused_run(folder: Path) -> str:
    reward = np.eye(11, dtype=np.float32)[5]
    data = write(folder / "data", arm(cameras=_TWO).having(next_reward=reward, next_done=reward > 0))
    command = ["finetune", "--data", str(data), "--algorithm", "sft", "--out", str(folder / "run"), "--dry-run"]
    mapping = folder / "mapping.yaml"
    mapping.write_text("lerobot: {image_size: [4, 6]}")
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(command)
        expect(code == 2 and not (folder / "run").exists(), f"exit {code}, files: {[*folder.iterdir()]}")
        expect("mapping.lerobot.image_size" in said.getvalue(), said.getvalue())
        code = main([*command, "--mapping", str(mapping), "mapping.lerobot.image_size=[8,8]"])
    expect(code == 0 and "come from next.reward" in printed.getvalue(), said.getvalue() + printed.getvalue())
    store = EpisodeStore(folder / "run/episodes")
    sizes = {*store.read_header("data-000000").cameras.values()}
    expect(sizes == {(8, 8)}, f"the pictures are {sizes}")
    return "refused without a folder, then accepted with mapping.lerobot.image_size=[8,8]"


@trap(CAMERAS, "two cameras of 480 x 640: what they cost is said, and a size is asked for")
def large_cameras(folder: Path) -> str:
    headers = survey_lerobot(write(folder / "data", arm(lengths=(1,), cameras=dict.fromkeys(_TWO, (480, 640))))).headers
    said = large_pictures(headers, 100, 1.5)
    wanted = ("1.84 MB per frame", "1 frames", "1.5 s per gradient step", "mapping.lerobot.image_size=[96, 128]")
    expect(all(part in said for part in wanted), said)
    return said
