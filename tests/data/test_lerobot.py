"""Exchange with the real lerobot: its writer, its reader, its policy features, its dataset tools."""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from episode_maker import EXTRA_DTYPES, assert_same_episode, make_episode, random_column, with_final

from vla_rl.core.config import load_config
from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot
from vla_rl.data.lerobot_outcomes import labels_of
from vla_rl.data.store import EpisodeStore

pytestmark = pytest.mark.slow  # importing lerobot alone takes 7 s


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """lerobot must not reach for a hub, and the warnings of its own imports are not ours."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")
        import lerobot.datasets.lerobot_dataset  # noqa: F401

        yield


def every_kind_of_episode() -> list[Episode]:
    random = np.random.default_rng(0)
    extras = {f"scalar_{dtype.strip('?')}": random_column(random, dtype, (5,)) for dtype in EXTRA_DTYPES}
    extras |= {f"matrix_{dtype.strip('?')}": random_column(random, dtype, (5, 2, 3)) for dtype in EXTRA_DTYPES}
    extras |= {"captured_ns.wrist_image": np.arange(5) * 50_000_000, "nothing": np.zeros((5, 0))}
    return [
        make_episode("all-extras", extras=extras, source=np.array([2, 2, 2, 2, 2], np.uint8)),
        make_episode("plain", length=1, seed=3, success=False, terminated=False, task="another task", policy_version=7),
        with_final(make_episode("failed", length=8, success=False, origin=Origin.REAL, env_id="other")),
        make_episode("unseeded", length=2, seed=5, extras={"chunk_id": np.array([4, 5])}),
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[EpisodeStore, Path]:
    folder = tmp_path_factory.mktemp("exchange")
    store = EpisodeStore(folder / "store")
    for episode in every_kind_of_episode():
        store.add(episode)
    return store, export_lerobot(store, folder / "dataset")


def test_episodes_come_back_bit_by_bit(exported: tuple[EpisodeStore, Path], tmp_path: Path) -> None:
    store, dataset = exported
    other = EpisodeStore(tmp_path / "other")
    assert sorted(import_lerobot(dataset, other)) == store.ids()
    for episode in every_kind_of_episode():
        assert_same_episode(other.read(episode.episode_id), episode)
    assert import_lerobot(dataset, other) == [], "importing again adds nothing"


def test_labels_keep_their_authors_through_a_dataset(tmp_path: Path) -> None:
    store, back = EpisodeStore(tmp_path / "store"), EpisodeStore(tmp_path / "back")
    for name in ("asked", "judged", "recorded"):
        store.add(make_episode(name, success=None if name == "asked" else True))
    store.label("asked", False, "detector ensemble-8")
    store.label("asked", None, "audit")
    store.edit("asked", "ana", success=True, task="push", trim=(1, 5))
    store.label("judged", False, "detector ensemble-8")
    dataset = export_lerobot(store, tmp_path / "dataset")
    assert import_lerobot(dataset, back) == store.ids()
    assert import_lerobot(dataset, back) == []
    for name in store.ids():
        ours, theirs = store.edit_log(name).labels, back.edit_log(name).labels
        assert [(one.time, one.user, one.new["success"]) for one in theirs] == [
            (one.time, one.user, one.new["success"]) for one in ours
        ]
        assert back.recording(name).values["success"] == store.recording(name).values["success"]
        assert back.read_header(name).success == store.read_header(name).success
        assert back.read(name).task == store.read(name).task
    back.undo("judged")
    assert (back.read_header("judged").success, back.edit_log("judged").labeler) == (True, "")


@pytest.mark.parametrize(
    "authors", [5, [["now", "ana", None]], [[1, "ana", None, True]], [["now", "ana", None, "yes"]]]
)
def test_damaged_labels_of_an_outcome_are_one_clear_error(authors: Any) -> None:
    column = pyarrow.array([json.dumps({"authors": authors})])
    with pytest.raises(StoreError, match=r"column vla_rl\.labels is damaged"):
        labels_of({"vla_rl.labels": column})


def test_an_outcome_that_its_last_label_contradicts_is_refused() -> None:
    column = pyarrow.array([json.dumps({"authors": [["now", "ana", None, True]], "success": False})])
    with pytest.raises(StoreError, match="the outcome is False, the last label of it says True"):
        labels_of({"vla_rl.labels": column})


def test_an_unknown_outcome_is_a_question_again_after_an_export(tmp_path: Path) -> None:
    store, back = EpisodeStore(tmp_path / "store"), EpisodeStore(tmp_path / "back")
    store.add(make_episode("unsure", success=True))
    store.label("unsure", None, "ana")
    import_lerobot(export_lerobot(store, tmp_path / "dataset"), back)
    assert (back.read_header("unsure").success, back.edit_log("unsure").labels) == (None, [])


def test_lerobot_reads_what_was_exported(exported: tuple[EpisodeStore, Path]) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.utils.feature_utils import dataset_to_policy_features

    store, folder = exported
    dataset = LeRobotDataset("local/dataset", root=folder, video_backend="pyav")
    assert (dataset.fps, dataset.num_episodes, len(dataset)) == (20, 4, 16)
    policy_features = dataset_to_policy_features(dataset.meta.features)
    assert set(policy_features) == {"observation.images.front", "observation.images.top", "observation.state", "action"}
    for index, episode_id in enumerate(store.ids()):
        episode = store.read(episode_id)
        start = dataset.meta.episodes[index]["dataset_from_index"]
        for step in range(len(episode)):
            item = dataset[start + step]
            last = step == len(episode) - 1
            won = last and bool(episode.success)
            assert item["task"] == episode.task
            np.testing.assert_array_equal(item["action"], episode.imitation_action()[step])
            np.testing.assert_array_equal(item["observation.state"], episode.state[step])
            picture = (item["observation.images.front"].numpy() * 255).round().astype(np.uint8).transpose(1, 2, 0)
            np.testing.assert_array_equal(picture, episode.images["front"][step])
            assert item["next.done"].item() == last
            assert item["next.success"].item() == won
            assert item["next.reward"].item() == float(won)
            assert item["intervention"].item() == (episode.source[step] == Source.HUMAN)
            assert item["vla_rl.source"].item() == episode.source[step]
            np.testing.assert_array_equal(item["vla_rl.action_policy"], episode.action_policy[step])
    state = np.concatenate([store.read(episode_id).state for episode_id in store.ids()])
    np.testing.assert_allclose(
        dataset.meta.stats["observation.state"]["mean"], state.mean(axis=0), rtol=1e-4, atol=1e-5
    )
    assert {"min", "max", "std", "q01", "q99"} <= set(dataset.meta.stats["action"])


def test_lerobots_loaders_take_what_was_exported(exported: tuple[EpisodeStore, Path]) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.rl.buffer import ReplayBuffer
    from torch.utils.data import DataLoader

    store, folder = exported
    windows = {"action": [step / 20 for step in range(4)]}
    dataset = LeRobotDataset("local/dataset", root=folder, video_backend="pyav", delta_timestamps=windows)
    batch = next(iter(DataLoader(dataset, batch_size=8)))
    assert batch["action"].shape == (8, 4, 2)
    assert batch["observation.images.top"].shape == (8, 3, 4, 6)
    assert json.loads(batch["vla_rl.labels"][0])["episode_id"] == store.ids()[0]

    steps = LeRobotDataset("local/dataset", root=folder, video_backend="pyav")
    transitions = ReplayBuffer._lerobotdataset_to_transitions(steps, state_keys=["observation.state"])
    ends = [index for index, transition in enumerate(transitions) if transition["done"]]
    assert ends == [4, 12, 13, 15]
    assert [transitions[index]["reward"] for index in ends] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # lerobot's statistics of random bits
def test_an_episode_survives_lerobots_own_editing(exported: tuple[EpisodeStore, Path], tmp_path: Path) -> None:
    from lerobot.datasets.dataset_tools import delete_episodes
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    store, folder = exported
    dataset = LeRobotDataset("local/dataset", root=folder, video_backend="pyav")
    delete_episodes(dataset, [1], output_dir=tmp_path / "edited", repo_id="local/edited")
    other = EpisodeStore(tmp_path / "other")
    import_lerobot(tmp_path / "edited", other)
    assert other.ids() == [store.ids()[0], *store.ids()[2:]]
    for episode_id in other.ids():
        assert_same_episode(other.read(episode_id), store.read(episode_id))


def test_video_is_exact_but_for_the_pictures(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for number in range(2):
        ramp = np.arange(64, dtype=np.uint8) * 2
        images = {
            "front": np.stack([np.broadcast_to((ramp + 8 * step)[:, None, None], (64, 64, 3)) for step in range(9)])
        }
        store.add(make_episode(f"e{number}", length=9, seed=number, images={"front": images["front"].copy()}))
    scheduling = os.sched_getscheduler(0)
    folder = export_lerobot(store, tmp_path / "dataset", ids=["e1", "e0"], video=True)
    assert os.sched_getscheduler(0) == scheduling, "the encoder has made this process a real-time one"
    other = EpisodeStore(tmp_path / "other")
    assert import_lerobot(folder, other) == ["e1", "e0"]
    for episode_id in other.ids():
        found, expected = other.read(episode_id), store.read(episode_id)
        error = np.square(found.images["front"].astype(float) - expected.images["front"]).mean()
        assert 10 * np.log10(255**2 / error) >= 35, "PSNR, dB; docs/data.md promises it"
        assert_same_episode(found, make_episode(episode_id, 9, int(episode_id[1]), images=dict(found.images)))

    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("local/dataset", root=folder, video_backend="pyav", return_uint8=True)
    theirs = np.stack([dataset[index]["observation.images.front"].numpy().transpose(1, 2, 0) for index in range(9, 18)])
    np.testing.assert_array_equal(theirs, other.read("e0").images["front"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lerobot-record` and its DAgger strategy write: no columns of ours."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = tmp_path_factory.mktemp("lerobot") / "my dataset"
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
        "observation.velocity": {"dtype": "float32", "shape": (1,), "names": None},
        "observation.images.laptop": {"dtype": "image", "shape": (4, 6, 3), "names": ["height", "width", "channels"]},
        "observation.images.phone": {"dtype": "image", "shape": (4, 6, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "intervention": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        "subtask": {"dtype": "string", "shape": (1,), "names": None},
    }
    dataset = LeRobotDataset.create(
        "local/x", fps=30, root=folder, features=features, robot_type="so101", use_videos=False
    )
    for number in range(2):
        for step in range(4 + number):
            dataset.add_frame(recorded_frame(number, step))
        dataset.save_episode()
    dataset.finalize()
    return folder


def recorded_frame(number: int, step: int) -> dict[str, Any]:
    random = np.random.default_rng([number, step])
    return {
        "observation.state": random.normal(size=3).astype(np.float32),
        "observation.velocity": random.normal(size=1).astype(np.float32),
        "observation.images.laptop": random.integers(0, 256, (4, 6, 3), dtype=np.uint8),
        "observation.images.phone": random.integers(0, 256, (4, 6, 3), dtype=np.uint8),
        "action": random.normal(size=2).astype(np.float32),
        "intervention": np.array([step >= 2]),
        "next.success": np.array([number == 1 and step == 4]),
        "subtask": "reach",
        "task": f"task {number}",
    }


def test_what_lerobot_records_is_imported_unchanged(recorded: Path, tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    assert import_lerobot(recorded, store) == ["my_dataset-000000", "my_dataset-000001"]
    for number, episode_id in enumerate(store.ids()):
        episode = store.read(episode_id)
        assert (episode.task, episode.success, episode.terminated) == (f"task {number}", number == 1, number == 1)
        assert (episode.control_hz, episode.env_id, episode.origin) == (30.0, "lerobot/so101", Origin.REAL)
        assert set(episode.images) == {"laptop", "phone"}
        assert (episode.state_dimensions.names, episode.action_dimensions.names) == (("a", "b", "c"), ("a", "b"))
        assert set(episode.extras) == {"observation.velocity", "intervention", "next.success"}
        for step in range(len(episode)):
            frame = recorded_frame(number, step)
            np.testing.assert_array_equal(episode.state[step], frame["observation.state"])
            np.testing.assert_array_equal(episode.action_sent[step], frame["action"])
            np.testing.assert_array_equal(episode.images["phone"][step], frame["observation.images.phone"])
            np.testing.assert_array_equal(
                episode.extras["observation.velocity"][step], frame["observation.velocity"][0]
            )
            assert episode.source[step] == (Source.HUMAN if step >= 2 else Source.POLICY)


def test_columns_that_are_left_out_are_named_once(
    recorded: Path, exported: tuple[EpisodeStore, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import_lerobot(recorded, EpisodeStore(tmp_path / "all"))
    only_front = LeRobotMapping(cameras={"front": "observation.images.laptop"})
    import_lerobot(recorded, EpisodeStore(tmp_path / "one camera"), only_front)
    import_lerobot(exported[1], EpisodeStore(tmp_path / "ours"))
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert [line.partition("left out: ")[2] for line in lines] == [
        "subtask (string)",
        "observation.images.phone (image), subtask (string)",
    ]


def test_an_observation_that_the_policy_will_not_read_is_named_with_the_setting_that_lets_it(
    recorded: Path, exported: tuple[EpisodeStore, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import_lerobot(recorded, EpisodeStore(tmp_path / "default"))
    (line,) = [record.getMessage() for record in caplog.records if "ours will not" in record.getMessage()]
    setting = "mapping.lerobot.state=[observation.state, observation.velocity]"
    assert "would read observation.velocity, " in line
    assert line.endswith(setting)
    caplog.clear()
    both = LeRobotMapping(state=("observation.state", "observation.velocity"))
    store = EpisodeStore(tmp_path / "both")
    (first, *_) = import_lerobot(recorded, store, both)
    assert store.read(first).state.shape[1] == 4
    import_lerobot(exported[1], EpisodeStore(tmp_path / "ours"))
    assert not [record for record in caplog.records if "ours will not" in record.getMessage()]


def test_of_several_tasks_an_episode_has_the_one_of_most_of_its_frames(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {name: {"dtype": "float32", "shape": (1,), "names": None} for name in ("observation.state", "action")}
    folder = tmp_path / "several"
    dataset = LeRobotDataset.create("local/x", fps=30, root=folder, features=features, use_videos=False)
    for tasks in (["place"] * 4, ["pick"] * 3 + ["place"] * 2, ["place"] * 3 + ["pick"] * 2):
        for task in tasks:
            dataset.add_frame({name: np.zeros(1, np.float32) for name in features} | {"task": task})
        dataset.save_episode()
    dataset.finalize()
    store = EpisodeStore(tmp_path / "store")
    names = import_lerobot(folder, store)
    assert [store.read_header(name).task for name in names] == ["place", "pick", "place"]
    assert [record.args[0] for record in caplog.records if "has the tasks" in record.msg] == [1, 2]


def test_the_mapping_chooses_and_renames(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "mapping.yaml").write_text(
        "state: [observation.velocity, observation.state]\n"
        "cameras: {front: observation.images.phone}\n"
        "env_id: bench\n"
        "episode_prefix: human\n"
    )
    mapping = load_config(LeRobotMapping, tmp_path / "mapping.yaml")
    store = EpisodeStore(tmp_path / "store")
    import_lerobot(recorded, store, mapping)
    episode = store.read("human-000001")
    frame = recorded_frame(1, 2)
    expected = np.concatenate([frame["observation.velocity"], frame["observation.state"]])
    np.testing.assert_array_equal(episode.state[2], expected)
    assert set(episode.images) == {"front"}
    assert episode.env_id == "bench"
    assert "observation.velocity" not in episode.extras


def test_without_an_intervention_column_everything_is_demonstrated(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(recorded, folder)
    drop_columns(folder, ["intervention", "next.success"])
    store = EpisodeStore(tmp_path / "store")
    import_lerobot(folder, store, LeRobotMapping(success=True))
    header = store.read_header("plain-000000")
    assert (header.origin, header.policy_version, header.success, header.terminated) == (Origin.DEMO, -1, True, True)
    assert (store.read("plain-000000").source == Source.DEMO).all()


def test_what_hil_serl_marks_is_a_persons(recorded: Path, tmp_path: Path) -> None:
    """lerobot's ReplayBuffer writes what its actor was told of a transition as numbers, under a name of its own."""
    import pyarrow.parquet as parquet

    folder, name = tmp_path / "buffer", "complementary_info.is_intervention"
    shutil.copytree(recorded, folder)
    for file in (folder / "data").glob("*/*.parquet"):
        table = parquet.read_table(file)
        marks = table["intervention"].cast("float32")
        parquet.write_table(table.drop_columns(["intervention"]).append_column(name, marks), file)
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["intervention"]
    info["features"][name] = {"dtype": "float32", "shape": [1], "names": None}
    (folder / "meta/info.json").write_text(json.dumps(info))

    theirs, ours = EpisodeStore(tmp_path / "theirs"), EpisodeStore(tmp_path / "ours")
    import_lerobot(folder, theirs, LeRobotMapping(episode_prefix="a"))
    import_lerobot(recorded, ours, LeRobotMapping(episode_prefix="a"))
    for episode_id in ours.ids():
        found, expected = theirs.read(episode_id), ours.read(episode_id)
        assert (found.origin, found.policy_version) == (Origin.REAL, 0)
        assert found.source.tolist() == expected.source.tolist()


def drop_columns(folder: Path, names: list[str]) -> None:
    import pyarrow.parquet as parquet

    for file in (folder / "data").glob("*/*.parquet"):
        parquet.write_table(parquet.read_table(file).drop_columns(names), file)
    info = json.loads((folder / "meta/info.json").read_text())
    for name in names:
        del info["features"][name]
    (folder / "meta/info.json").write_text(json.dumps(info))


def test_unknown_columns_are_named(recorded: Path, tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    with pytest.raises(UserError, match=r"no column 'actions'.*Did you mean 'action'"):
        import_lerobot(recorded, store, LeRobotMapping(action="actions"))
    with pytest.raises(UserError, match=r"Did you mean 'observation.images.phone'"):
        import_lerobot(recorded, store, LeRobotMapping(cameras={"front": "observation.image.phone"}))


def test_datasets_of_one_name_get_ids_of_their_own(recorded: Path, tmp_path: Path) -> None:
    store, other = EpisodeStore(tmp_path / "store"), make_episode("my_dataset-000000")
    store.add(other)
    assert import_lerobot(recorded, store) == ["my_dataset-000000.2", "my_dataset-000001"]
    assert_same_episode(store.read("my_dataset-000000"), other)
    np.testing.assert_array_equal(store.read("my_dataset-000000.2").action_sent[0], recorded_frame(0, 0)["action"])
    assert import_lerobot(recorded, store) == [], "importing again adds nothing"


@pytest.mark.parametrize("damage", ["nothing", "version", "data", "episodes", "labels", "unfinished", "elsewhere"])
def test_what_is_not_a_whole_dataset_is_one_clear_error(
    exported: tuple[EpisodeStore, Path], tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "dataset"
    if damage != "nothing":
        shutil.copytree(exported[1], folder)
    if damage == "version":
        info = json.loads((folder / "meta/info.json").read_text())
        (folder / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    elif damage == "data":
        file = next((folder / "data").glob("*/*.parquet"))
        file.write_bytes(file.read_bytes()[:-50])
    elif damage == "episodes":
        next((folder / "meta/episodes").glob("*/*.parquet")).unlink()
    elif damage == "labels":
        drop_columns(folder, ["vla_rl.source"])
    elif damage == "unfinished":
        shutil.rmtree(folder / "data")
    elif damage == "elsewhere":
        shutil.move(folder / "data", tmp_path / "data")
        info = json.loads((folder / "meta/info.json").read_text())
        info["data_path"] = "../" + info["data_path"]
        (folder / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(StoreError) as caught:
        import_lerobot(folder, EpisodeStore(tmp_path / "store"))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value) or "vla_rl.labels" in str(caught.value)


def test_numbers_that_are_not_finite_are_refused(recorded: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    folder = tmp_path / "dataset"
    shutil.copytree(recorded, folder)
    file = next((folder / "data").glob("*/*.parquet"))
    table = parquet.read_table(file)
    values = np.array(table["action"].to_pylist(), np.float32)
    values[2, 1] = np.nan
    kind = table.schema.field("action").type
    column = pyarrow.array(values.tolist(), kind.storage_type if hasattr(kind, "storage_type") else kind)
    table = table.set_column(table.column_names.index("action"), "action", column)
    parquet.write_table(table, file)
    store = EpisodeStore(tmp_path / "store")
    with pytest.raises(UserError, match=r"action_policy is not finite at step 2"):
        import_lerobot(folder, store)
    assert len(store) == 0


def test_episodes_that_do_not_fit_one_dataset_are_refused(tmp_path: Path) -> None:
    def export(*episodes: Episode) -> None:
        store = EpisodeStore(tmp_path / f"store{len(list(tmp_path.iterdir()))}")
        for episode in episodes:
            store.add(episode)
        export_lerobot(store, tmp_path / "dataset")

    with pytest.raises(StoreError, match="no episodes"):
        export()
    with pytest.raises(StoreError, match="different cameras"):
        export(make_episode("a"), make_episode("b", size=(8, 8)))
    with pytest.raises(StoreError, match=r"rates \[10.0, 20.0\]"):
        export(make_episode("a"), make_episode("b", control_hz=10.0))
    with pytest.raises(StoreError, match="whole numbers"):
        export(make_episode("a", control_hz=12.5))
    with pytest.raises(StoreError, match="extra column 'x' is <i8"):
        export(make_episode("a", extras={"x": np.zeros(5)}), make_episode("b", extras={"x": np.zeros(5, np.int64)}))
    (tmp_path / "dataset").mkdir()
    with pytest.raises(StoreError, match="exists"):
        export(make_episode("a"))
    assert not list(tmp_path.glob(".*"))
