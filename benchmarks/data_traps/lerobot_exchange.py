"""What outcomes a LeRobotDataset tells, and what an export keeps of what was imported."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data_traps.lerobot_files import ACTION, FRONT, JOINTS, STATE, Dataset, arm, imported, values, write
from benchmarks.data_traps.traps import SilentlyWrong, expect, trap
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot, survey_lerobot
from vla_rl.data.store import EpisodeStore

OUTCOMES = "outcomes of a LeRobotDataset"
EXPORT = "export of a LeRobotDataset"


# Outcomes


def _outcomes(
    folder: Path, dataset: Dataset, expected: Sequence[bool | None], said: str, success: bool | str | None = None
) -> str:
    """Import a dataset; its episodes must have these outcomes, and the survey must name their source."""
    mapping = LeRobotMapping(success=success)
    found = [episode.success for episode in imported(folder, dataset, mapping)]
    expect(found == list(expected), f"the outcomes are {found}, expected {list(expected)}")
    source = survey_lerobot(folder / "data", mapping).outcomes
    expect(said in source, f"the survey says: {source}")
    return f"{found} from {source}"


def _at_end(*values_at_end: float, dtype: type = np.float32) -> NDArray[Any]:
    """A column of both episodes, 0 but for their last rows."""
    column = np.zeros(11)
    column[[5, 10]] = values_at_end
    return column.astype(dtype)


_DONE = _at_end(1, 1, dtype=np.bool_)


@trap(OUTCOMES, "only next.reward and next.done, as the RL recorder writes: a success and a failure")
def rewards_only(folder: Path) -> str:
    dataset = arm().having(next_reward=_at_end(1, 0), next_done=_DONE)
    return _outcomes(folder, dataset, [True, False], "next.reward (1 is a success)")


@trap(OUTCOMES, "the second episode has no reward and was cut before next.done")
def cut_episode(folder: Path) -> str:
    dataset = arm().having(next_reward=_at_end(1, 0), next_done=_at_end(1, 0, dtype=np.bool_))
    return _outcomes(folder, dataset, [True, None], "next.reward")


@trap(OUTCOMES, "next.reward is a coverage of .27 and .97: no outcome until a threshold is named")
def dense_reward(folder: Path) -> str:
    dataset = arm().having(next_reward=_at_end(0.27, 0.97), next_done=_DONE)
    return _outcomes(folder, dataset, [None, None], "mapping.lerobot.success='next.reward>=")


@trap(OUTCOMES, "next.reward is a coverage of .27 and .97, and the mapping names the threshold .95")
def dense_reward_with_threshold(folder: Path) -> str:
    dataset = arm().having(next_reward=_at_end(0.27, 0.97), next_done=_DONE)
    return _outcomes(folder, dataset, [False, True], "next.reward >= 0.95", "next.reward>=0.95")


@trap(OUTCOMES, "next.reward is 0 in all rows of all episodes: a column that was never filled is no failure")
def empty_reward(folder: Path) -> str:
    dataset = arm().having(next_reward=_at_end(0, 0), next_done=_DONE)
    return _outcomes(folder, dataset, [None, None], "next.reward is 0 in every row")


@trap(OUTCOMES, "next.success is .27 and 1.0", remedy="mapping.lerobot.success='next.success>=")
def coverage_as_success(folder: Path) -> str:
    return _outcomes(folder, arm().having(next_success=_at_end(0.27, 1)), [], "refused")


@trap(OUTCOMES, "next.success is 1 and -1", remedy="mapping.lerobot.success='next.success>=")
def negative_success(folder: Path) -> str:
    return _outcomes(folder, arm().having(next_success=_at_end(1, -1, dtype=np.int64)), [], "refused")


@trap(OUTCOMES, "next.success and next.reward: the column that says it in words counts")
def success_before_reward(folder: Path) -> str:
    dataset = arm().having(next_success=_at_end(1, 0, dtype=np.bool_), next_reward=_at_end(0.3, 7))
    return _outcomes(folder, dataset, [True, False], "next.success")


@trap(OUTCOMES, "the mapping names an outcome column that is not there", remedy="expected true, false, COLUMN")
def unknown_outcome_column(folder: Path) -> str:
    return _outcomes(folder, arm(), [], "refused", "next.sucess>=1")


# Export


def _store(folder: Path, *episodes: Episode) -> EpisodeStore:
    store = EpisodeStore(folder)
    for episode in episodes:
        store.add(episode)
    return store


def _own(name: str, dimensions: Dimensions = UNDECLARED, success: bool | None = True) -> Episode:
    """An episode that was recorded by us; the numbers say which joint they are, in the order of the names."""
    column = values(dimensions.names or JOINTS, 4)
    return Episode(
        episode_id=name,
        images={"front": np.full((4, 8, 8, 3), 9, np.uint8)},
        state=column,
        action_policy=column,
        action_sent=column,
        source=np.full(4, Source.DEMO, np.uint8),
        task="put it in",
        success=success,
        terminated=bool(success),
        origin=Origin.DEMO,
        policy_version=-1,
        seed=None,
        control_hz=20.0,
        env_id="vla_rl/PegInsert-v0",
        extras={"chunk_id": np.arange(4), "action_age_ms": np.ones(4, np.float32)},
        state_dimensions=dimensions,
        action_dimensions=dimensions,
    )


def _exported(store: EpisodeStore, folder: Path) -> tuple[dict[str, Any], list[Episode]]:
    """What an export declares, and the episodes that it becomes when it is imported again."""
    export_lerobot(store, folder)
    again = EpisodeStore(folder.with_name(f"{folder.name}-again"))
    import_lerobot(folder, again)
    return json.loads((folder / "meta/info.json").read_text()), [again.read(name) for name in again.ids()]


def _digests(store: EpisodeStore) -> list[str]:
    return [store.read_header(name).digest for name in store.ids()]


@trap(EXPORT, "import and export keep names, robot type and own features, and a second import has the same digests")
def kept_by_export(folder: Path) -> str:
    columns = {
        **arm({"motors": JOINTS}).columns,
        "observation.effort": ({"motors": ["pan", "elbow"]}, values(["a", "bb"], 11)),
        "gripper_force": (["newton"], values(["force"], 11)),
        "next.reward": (None, np.linspace(0, 0.8, 11, dtype=np.float32)),
        "annotation.stage": (None, np.arange(11)),
    }
    first = Dataset(columns=columns)
    data = write(folder / "data", first)
    store = EpisodeStore(folder / "store")
    import_lerobot(data, store)
    declared, _ = _exported(store, folder / "export")
    source = json.loads((data / "meta/info.json").read_text())
    for key, feature in source["features"].items():
        kept = declared["features"].get(key)
        expect(kept is not None and kept == feature, f"{key} was {feature} and is exported as {kept}")
    expect(declared["robot_type"] == "so101_follower", f"the robot is exported as {declared['robot_type']}")
    expect(_digests(EpisodeStore(folder / "export-again")) == _digests(store), "the second import differs")
    return f"{len(source['features'])} features of {declared['robot_type']} are declared as before"


@trap(EXPORT, "cameras, state and action under other names: the export has the dataset's own")
def mapped_names_are_kept(folder: Path) -> str:
    columns = {"observation.arm": (JOINTS, values(JOINTS, 11)), "observation.grip": (["grip"], values(["grip"], 11))}
    dataset = Dataset(
        columns={**columns, "action.target": (JOINTS, values(JOINTS, 11))}, cameras={"observation.image": (8, 8)}
    )
    mapping = LeRobotMapping(
        state=("observation.arm", "observation.grip"), action="action.target", cameras={"wrist": "observation.image"}
    )
    data, store = write(folder / "data", dataset), EpisodeStore(folder / "store")
    import_lerobot(data, store, mapping)
    declared, _ = _exported(store, folder / "export")
    lost = {*json.loads((data / "meta/info.json").read_text())["features"]} - {*declared["features"]}
    expect(not lost, f"the export lacks {lost}")
    expect(_digests(EpisodeStore(folder / "export-again")) == _digests(store), "the second import differs")
    return "all columns have their own names"


@trap(EXPORT, "robot_type is null, as the RL recorder writes it")
def robot_type_is_null(folder: Path) -> str:
    store = EpisodeStore(folder / "store")
    import_lerobot(write(folder / "data", arm(robot_type=None)), store)
    declared, _ = _exported(store, folder / "export")
    expect(declared["robot_type"] is None, f"the robot is exported as {declared['robot_type']!r}")
    return "null"


@trap(EXPORT, "a simulated episode without names: placeholders in the export are no names after import")
def placeholders_are_no_names(folder: Path) -> str:
    declared, again = _exported(_store(folder / "store", _own("a")), folder / "export")
    names = declared["features"]["action"]["names"]
    expect(names == ["action_0", "action_1", "action_2"], f"the export names {names}")
    expect(again[0].dimensions == (UNDECLARED, UNDECLARED), f"imported as {again[0].dimensions}")
    begins = [key for key in declared["features"] if key.startswith(("action", "observation"))]
    expect(begins == [FRONT, STATE, ACTION], f"lerobot's policies would see {begins}")
    return f"{names}, then undeclared"


@trap(EXPORT, "names and units of an own episode survive the exchange")
def units_survive(folder: Path) -> str:
    dimensions = Dimensions(tuple(JOINTS), ("rad", "rad", "m"))
    declared, again = _exported(_store(folder / "store", _own("a", dimensions)), folder / "export")
    expect(declared["features"]["action"]["names"] == JOINTS, f"exported as {declared['features']['action']}")
    expect(again[0].dimensions == (dimensions, dimensions), f"imported as {again[0].dimensions}")
    return f"{list(again[0].action_dimensions.units)}"


@trap(EXPORT, "two episodes of one robot with reversed names go into one dataset")
def export_by_name(folder: Path) -> str:
    store = _store(folder / "store", _own("a", Dimensions(tuple(JOINTS))), _own("b", Dimensions(tuple(JOINTS[::-1]))))
    declared, again = _exported(store, folder / "export")
    for episode in again:
        expect(
            np.array_equal(episode.action_sent, values(JOINTS, 4)), f"{episode.episode_id}: {episode.action_sent[0]}"
        )
    return f"both begin with {again[1].action_sent[0].tolist()} for {declared['features']['action']['names']}"


@trap(EXPORT, "the names in meta/info.json were changed after the export", remedy="export anew")
def names_changed_afterwards(folder: Path) -> str:
    export_lerobot(_store(folder / "store", _own("a", Dimensions(tuple(JOINTS)))), folder / "export")
    file = folder / "export/meta/info.json"
    file.write_text(file.read_text().replace("elbow.pos", "wrist.pos"))
    import_lerobot(folder / "export", EpisodeStore(folder / "again"))
    raise SilentlyWrong("accepted")


@trap(EXPORT, "one of two outcomes is unknown: no column of the export calls it a failure")
def unknown_outcome(folder: Path) -> str:
    declared, again = _exported(_store(folder / "store", _own("a", success=None), _own("b")), folder / "export")
    told = {"next.success", "next.reward"} & {*declared["features"]}
    expect(not told, f"{told} say that it failed")
    expect([episode.success for episode in again] == [None, True], f"{[episode.success for episode in again]}")
    return "next.success and next.reward are left out; imported again: unknown, success"


@trap(EXPORT, "an imported failure was labelled a success afterwards: the export says success")
def relabelled_outcome(folder: Path) -> str:
    import pyarrow.parquet as parquet

    store = EpisodeStore(folder / "store")
    dataset = arm().having(next_success=_at_end(0, 1, dtype=np.bool_))
    names = import_lerobot(write(folder / "data", dataset), store)
    store.label(names[0], success=True)
    _, again = _exported(store, folder / "export")
    rows = parquet.read_table(folder / "export/data/chunk-000/file-000.parquet")["next.success"].to_numpy()
    expect(rows.tolist() == _at_end(1, 1, dtype=np.bool_).tolist(), f"next.success is {rows}")
    expect(again[0].success is True, "imported again it is a failure")
    return "next.success is true in the last row of both"
