"""ROS 2 bags that rosbags itself has written, in both of its formats."""

import io
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from vla_rl_bags import BagMapping, import_bag

from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError, StoreError, UserError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.sources import DataMapping, import_source
from vla_rl.data.store import EpisodeStore

TYPES = get_typestore(Stores.ROS2_JAZZY)
START_NS = 1_700_000_000_000_000_000
MAPPING = BagMapping(cameras={"front": "/camera"}, control_hz=10.0, task="push")


def header(moment_ns: int) -> Any:
    stamp = TYPES.types["builtin_interfaces/msg/Time"](moment_ns // 10**9, moment_ns % 10**9)
    return TYPES.types["std_msgs/msg/Header"](stamp, "")


def joints(moment_ns: int, position: list[float], names: tuple[str, ...] = ("a", "b")) -> Any:
    empty = np.zeros(0)
    return TYPES.types["sensor_msgs/msg/JointState"](
        header(moment_ns), list(names), np.array(position, np.float64), empty, empty
    )


def numbers(values: list[float]) -> Any:
    layout = TYPES.types["std_msgs/msg/MultiArrayLayout"]([], 0)
    return TYPES.types["std_msgs/msg/Float64MultiArray"](layout, np.array(values, np.float64))


def picture(moment_ns: int, value: int, encoding: str = "rgb8", padding: int = 3) -> Any:
    rows = np.zeros((4, 6 * 3 + padding), np.uint8)
    rows[:, : 6 * 3] = np.arange(value, value + 18) % 256
    return TYPES.types["sensor_msgs/msg/Image"](header(moment_ns), 4, 6, encoding, 0, rows.shape[1], rows.ravel())


def boolean(value: bool) -> Any:
    return TYPES.types["std_msgs/msg/Bool"](value)


def write_bag(folder: Path, messages: list[tuple[str, int, Any]], plugin: StoragePlugin = StoragePlugin.MCAP) -> Path:
    """Messages are (topic, recorded at in ms since the start, message)."""
    with Writer(folder, version=9, storage_plugin=plugin) as writer:
        connections = {}
        for topic, recorded_ms, message in sorted(messages, key=lambda entry: entry[1]):
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=TYPES)
            raw = TYPES.serialize_cdr(message, kind)
            writer.write(connections[topic], START_NS + recorded_ms * 10**6, raw)
    return folder


def one_second(first_ms: int = 0, last_ms: int = 1000) -> list[tuple[str, int, Any]]:
    """Pictures every 50 ms, joints every 20 ms, commands every 40 ms; recorded 7 ms after they were captured."""
    pictures = [
        ("/camera", moment + 7, picture(START_NS + moment * 10**6, moment // 10))
        for moment in range(first_ms, last_ms + 1, 50)
    ]
    states = [
        ("/joint_states", moment + 7, joints(START_NS + moment * 10**6, [moment, -moment]))
        for moment in range(first_ms, last_ms + 1, 20)
    ]
    commands = [("/commands", moment, numbers([moment, 0.5])) for moment in range(first_ms, last_ms + 1, 40)]
    return pictures + states + commands


def imported(bag: Path, folder: Path, mapping: BagMapping) -> list[Episode]:
    store = EpisodeStore(folder)
    return [store.read(name) for name in import_bag(bag, store, mapping)]


@pytest.mark.parametrize("plugin", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
def test_topics_are_synchronised_by_capture_time(tmp_path: Path, plugin: StoragePlugin) -> None:
    bag = write_bag(tmp_path / "my bag", one_second(), plugin)
    (episode,) = imported(bag, tmp_path / "store", MAPPING)
    assert (episode.episode_id, len(episode), episode.control_hz) == ("my_bag-000000", 11, 10.0)
    assert (episode.task, episode.success, episode.origin) == ("push", None, Origin.DEMO)
    assert (episode.source == Source.DEMO).all()
    ticks = np.arange(0, 1001, 100)
    np.testing.assert_array_equal(episode.state, np.stack([ticks, -ticks], axis=1))
    # 100 ms lies between the commands of 80 and 120 ms, equally near: the earlier one.
    assert episode.action_sent[:4, 0].tolist() == [0, 80, 200, 280]
    for step, tick in enumerate(ticks):
        expected = np.arange(tick // 10, tick // 10 + 18, dtype=np.uint8).reshape(6, 3)
        np.testing.assert_array_equal(episode.images["front"][step], np.broadcast_to(expected, (4, 6, 3)))
    np.testing.assert_array_equal(episode.extras["captured_ns.front"], START_NS + ticks * 10**6)
    assert episode.extras["captured_ns.action"][1] == START_NS + 80 * 10**6
    assert episode.final_state is None, "the bag ends with the last command"
    assert import_bag(bag, EpisodeStore(tmp_path / "store"), MAPPING) == [], "importing again adds nothing"


def test_a_bag_of_several_attempts_with_takeovers_and_outcomes(tmp_path: Path) -> None:
    messages = one_second(0, 3000)
    for moment, value in ((200, True), (1000, False), (1500, True), (2500, False)):
        messages.append(("/recording", moment, boolean(value)))
    messages += [("/takeover", 500, boolean(True)), ("/takeover", 800, boolean(False))]
    messages += [("/outcome", 1100, boolean(True)), ("/outcome", 2500, boolean(False))]
    bag = write_bag(tmp_path / "bag", messages)
    (tmp_path / "mapping.yaml").write_text(
        "cameras: {front: /camera}\nstate: ['/joint_states#position', /commands]\njoints: [b, a]\n"
        "intervention: /takeover\nsuccess: /outcome\nepisode: /recording\ncontrol_hz: 10\nimage_size: [2, 3]\n"
    )
    mapping = load_config(BagMapping, tmp_path / "mapping.yaml")
    first, second = imported(bag, tmp_path / "store", mapping)
    assert [len(first), len(second)] == [9, 11]
    assert [first.success, second.success] == [True, False]
    assert (first.origin, first.policy_version) == (Origin.REAL, 0)
    assert first.source.tolist() == [Source.POLICY] * 3 + [Source.HUMAN] * 3 + [Source.POLICY] * 3
    assert not second.source.any()
    assert first.state[0].tolist() == [-200, 200, 200, 0.5]
    assert first.images["front"].shape == (9, 2, 3, 3)
    assert first.final_state is not None
    assert first.final_state.tolist() == [-1100, 1100, 1080, 0.5], "one tick after the last command"
    assert first.final_images["front"].shape == (2, 3, 3)


BEGINS, ENDS = True, False


@pytest.mark.parametrize(
    ("marks", "outcomes", "expected"),
    [
        ([], [(3500, True)], [True]),
        ([(0, BEGINS), (4000, ENDS)], [(3500, True)], [True]),
        ([(0, BEGINS)], [(3500, True)], [True]),
        ([(0, BEGINS), (800, ENDS)], [(1700, True)], [True]),
        ([(0, BEGINS), (800, ENDS)], [(1900, True)], [None]),
        ([(0, BEGINS), (800, ENDS), (1000, BEGINS), (1800, ENDS)], [(700, True), (1200, False)], [True, False]),
        ([(0, BEGINS), (800, ENDS), (1000, BEGINS), (1800, ENDS)], [(1000, False)], [None, False]),
    ],
    ids=[
        "the bag is one",
        "before the mark of the end",
        "switched off first",
        "soon after the end",
        "too late",
        "the next one's",
        "as the next one begins",
    ],
)
def test_an_outcome_may_come_long_after_the_last_command(
    tmp_path: Path, marks: list[tuple[int, bool]], outcomes: list[tuple[int, bool]], expected: list[bool | None]
) -> None:
    messages = one_second(0, 2000)
    messages += [("/recording", moment, boolean(value)) for moment, value in marks]
    messages += [("/outcome", moment, boolean(value)) for moment, value in outcomes]
    mapping = replace(MAPPING, success="/outcome", episode="/recording" if marks else "")
    episodes = imported(write_bag(tmp_path / "bag", messages), tmp_path / "store", mapping)
    assert [episode.success for episode in episodes] == expected


def test_compressed_pictures_and_swapped_channels(tmp_path: Path) -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    buffer = io.BytesIO()
    Image.fromarray(red).save(buffer, "PNG")
    content = np.frombuffer(buffer.getvalue(), np.uint8)
    messages = [message for message in one_second(0, 320) if message[0] != "/camera"]
    for moment in range(0, 301, 100):
        compressed = TYPES.types["sensor_msgs/msg/CompressedImage"](header(START_NS + moment * 10**6), "png", content)
        messages += [("/png", moment, compressed), ("/bgr", moment, picture(START_NS + moment * 10**6, 1, "bgr8"))]
    mapping = BagMapping(cameras={"front": "/png", "wrist": "/bgr"}, control_hz=10.0)
    (episode,) = imported(write_bag(tmp_path / "bag", messages), tmp_path / "store", mapping)
    np.testing.assert_array_equal(episode.images["front"], np.broadcast_to(red, (4, 8, 8, 3)))
    assert episode.images["wrist"][0, 0, 0].tolist() == [3, 2, 1]


def test_a_single_file_is_a_bag_too(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", one_second())
    file = next(bag.glob("*.mcap"))
    store = EpisodeStore(tmp_path / "store")
    (name,) = import_source(file, store, DataMapping(bag={"cameras": {"front": "/camera"}, "control_hz": 10}))
    assert len(store.read(name)) == 11
    with pytest.raises(ConfigError, match=r"bag mapping: unknown key 'camera'.*Did you mean 'cameras'"):
        import_source(file, store, DataMapping(bag={"camera": "/camera"}))


def test_any_source_is_taken_in_once(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write_bag(tmp_path / "logs" / "monday", one_second())
    write_bag(tmp_path / "logs" / "tuesday", one_second(0, 400), StoragePlugin.SQLITE3)
    store, mapping = EpisodeStore(tmp_path / "store"), DataMapping(bag=asdict(MAPPING))
    assert import_source(tmp_path / "logs", store, mapping) == ["monday-000000", "tuesday-000000"]
    store.label("monday-000000", True)
    run = EpisodeStore(tmp_path / "run" / "episodes")
    assert import_source(tmp_path / "store", run, mapping) == store.ids()
    assert [run.read(name).success for name in run.ids()] == [True, None], "labels come along"
    assert import_source(tmp_path / "run", EpisodeStore(tmp_path / "again"), mapping) == store.ids()
    assert import_source(tmp_path / "store", run, mapping) == []
    for source, message in ((tmp_path / "nothing", "there is no"), (tmp_path, "is no episode store")):
        with pytest.raises(UserError, match=message):
            import_source(source, store, mapping)
    with pytest.raises(StoreError, match="into itself"):
        import_source(store.path, store, mapping)


def test_bags_of_one_name_get_ids_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name, last_ms in (("a", 1000), ("b", 400)):
        write_bag(tmp_path / "logs" / name, one_second(0, last_ms))
    store, mapping = EpisodeStore(tmp_path / "store"), DataMapping(bag={**asdict(MAPPING), "episode_prefix": "monday"})
    assert import_source(tmp_path / "logs", store, mapping) == ["monday-000000", "monday-000000.2"]
    assert [len(store.read(name)) for name in store.ids()] == [11, 5]
    assert import_source(tmp_path / "logs", store, mapping) == [], "importing again adds nothing"


def test_a_gap_is_named_and_not_filled(tmp_path: Path) -> None:
    messages = [entry for entry in one_second(0, 2000) if not (entry[0] == "/joint_states" and 500 < entry[1] < 1200)]
    bag = write_bag(tmp_path / "bag", messages)
    store = EpisodeStore(tmp_path / "store")
    with pytest.raises(StoreError, match=r"/joint_states has no message within 0.1 s.*Raise max_gap_s"):
        import_bag(bag, store, MAPPING)
    assert len(store) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cameras": {"front": "/camra"}}, r"no topic '/camra'.*Did you mean '/camera'"),
        ({"state": ("/joint_states#positions",)}, r"no field 'positions'.*Did you mean 'position'"),
        ({"state": ("/joint_states#effort",)}, "holds no numbers in effort"),
        ({"joints": ("a", "c")}, r"has the joints \['a', 'b'\], asked for are \['a', 'c'\]"),
        ({"cameras": {"front": "/joint_states"}}, "a camera is a sensor_msgs Image"),
        ({"cameras": {"state": "/camera"}}, "cannot be called 'state'"),
    ],
)
def test_a_mapping_that_does_not_fit_is_one_clear_error(tmp_path: Path, changes: dict, message: str) -> None:
    bag = write_bag(tmp_path / "bag", one_second(0, 200))
    mapping = BagMapping(**({"cameras": {"front": "/camera"}, "control_hz": 10.0} | changes))
    with pytest.raises(UserError, match=message) as caught:
        import_bag(bag, EpisodeStore(tmp_path / "store"), mapping)
    assert "\n" not in str(caught.value)


def test_bad_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        BagMapping(control_hz=0)
    with pytest.raises(ConfigError, match="at least one topic"):
        BagMapping(state=())


@pytest.mark.parametrize("damage", ["cut", "garbage", "metadata", "missing", "elsewhere", "nan", "short picture"])
def test_a_hostile_bag_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    messages = one_second(0, 500)
    if damage == "nan":
        messages.append(("/commands", 500, numbers([np.nan, 0.0])))
    if damage == "short picture":
        bad = picture(START_NS + 400 * 10**6, 0)
        bad.height = 400
        messages = [entry for entry in messages if entry[:2] != ("/camera", 407)] + [("/camera", 407, bad)]
    bag = write_bag(tmp_path / "bag", messages)
    file = next(bag.glob("*.mcap"))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "garbage":
        file.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR." * 100)
    elif damage == "metadata":
        (bag / "metadata.yaml").write_text("!!python/object/apply:os.system ['touch pwned']")
    elif damage == "missing":
        file.unlink()
    elif damage == "elsewhere":
        outside = tmp_path / "outside.mcap"
        shutil.move(file, outside)
        text = (bag / "metadata.yaml").read_text()
        (bag / "metadata.yaml").write_text(text.replace(file.name, "../outside.mcap"))
    store = EpisodeStore(tmp_path / "store")
    with pytest.raises(UserError) as caught:
        import_bag(bag, store, MAPPING)
    assert "\n" not in str(caught.value)
    assert len(store) == 0
    assert not Path("pwned").exists()
