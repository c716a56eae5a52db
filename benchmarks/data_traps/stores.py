"""Episode stores of one robot whose dimensions are in another order, in other units, or undeclared: what training
reads, and what a policy or a task accepts.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.data_traps.traps import expect, trap
from vla_rl.acting.demonstrations import bring_demonstrations, check_demonstrations
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.sources import DataMapping, import_source
from vla_rl.data.statistics import spec_of
from vla_rl.data.store import EpisodeStore
from vla_rl.training.finetune import FinetuneConfig, check_data, check_fit

_JOINTS = Dimensions(("pan", "lift", "grip"), ("rad", "rad", ""))
_KIND = "names in stores"


def _values(names: Sequence[str], length: int) -> np.ndarray:
    """One number per joint and step that says which joint it is: pan 1.0, 1.01 ..., lift 2.0 ..., grip 3.0 ..."""
    first = np.array([{"pan": 1.0, "lift": 2.0, "grip": 3.0}.get(name, 9.0) for name in names])
    return (first + np.arange(length)[:, None] / 100).astype(np.float32)


def _episode(name: str, dimensions: Dimensions, names: Sequence[str] = (), length: int = 4) -> Episode:
    """An episode whose columns stand in the order of ``names``, by default those that it declares."""
    values = _values(names or dimensions.names, length)
    return Episode(
        episode_id=name,
        images={"front": np.zeros((length, 8, 8, 3), np.uint8)},
        state=values,
        action_policy=values,
        action_sent=values,
        source=np.full(length, Source.DEMO, np.uint8),
        task="put it in",
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
        seed=None,
        control_hz=20.0,
        env_id="arm",
        state_dimensions=dimensions,
        action_dimensions=dimensions,
    )


def _store(folder: Path, *episodes: Episode) -> EpisodeStore:
    store = EpisodeStore(folder)
    for episode in episodes:
        store.add(episode)
    return store


def _spec(dimensions: Dimensions = _JOINTS) -> PolicySpec:
    return PolicySpec("arm", ("front",), (8, 8), 3, 3, dimensions=((dimensions, dimensions),))


def _cached(folder: Path, *episodes: Episode, expected: PolicySpec | None = None) -> FrameCache:
    cache = FrameCache(_store(folder / "store", *episodes), folder / "cache", expected=expected)
    cache.refresh()
    return cache


def _first_rows(cache: FrameCache) -> str:
    """What training reads at the first step of every episode, checked against the joints' own numbers."""
    for column in (cache.state, cache.action, cache.action_sent):
        rows = column[[episode.start for episode in cache.episodes]]
        names = cache.episodes[0].state_dimensions.names or _JOINTS.names
        expect(np.allclose(rows, _values(names, 1)), f"first rows {rows.tolist()} for the joints {names}")
    return f"state, action and sent action begin with {rows[0].tolist()} for {list(names)} in every episode"


@trap(_KIND, "a second store has the three names in reverse order")
def reversed_names(folder: Path) -> str:
    return _first_rows(_cached(folder, _episode("a", _JOINTS), _episode("b", _JOINTS.take([2, 1, 0]))))


@trap(_KIND, "one joint has another name in the second store", remedy="Map the names")
def other_names(folder: Path) -> str:
    return _first_rows(_cached(folder, _episode("a", _JOINTS), _episode("b", Dimensions(("pan", "elbow", "grip")))))


@trap(_KIND, "the first store declares no names, the second reverses them, the third is in order")
def undeclared_first(folder: Path) -> str:
    episodes = [_episode("a", UNDECLARED, ("grip", "lift", "pan")), _episode("b", _JOINTS.take([2, 1, 0]))]
    return _first_rows(_cached(folder, *episodes, _episode("c", _JOINTS)))


@trap(_KIND, "the policy to start from has the names in another order than all the data")
def policy_decides_the_order(folder: Path) -> str:
    reverse = _JOINTS.take([2, 1, 0])
    cache = _cached(folder, _episode("a", _JOINTS), _episode("b", _JOINTS.take([1, 0, 2])), expected=_spec(reverse))
    expect(cache.episodes[0].state_dimensions == reverse, f"rows are in the order {cache.episodes[0].state_dimensions}")
    return _first_rows(cache)


@trap(_KIND, "the store is in degrees, the policy in radians")
def degrees_for_radians(folder: Path) -> str:
    degrees = replace(_JOINTS, units=("deg", "degrees", ""))
    episode = _episode("a", degrees)
    cache = _cached(folder, episode, expected=_spec())
    expected = episode.state * [np.pi / 180, np.pi / 180, 1]
    expect(np.allclose(cache.state, expected), f"the policy reads {cache.state[0].tolist()}")
    return f"1, 2 degrees and 3 are read as {cache.state[0].round(4).tolist()}"


@trap(
    _KIND,
    "the joints of the second store are normalized to -100..100, those of the first in radians",
    "correct the declared units",
)
def units_without_conversion(folder: Path) -> str:
    normalized = replace(_JOINTS, units=("normalized", "normalized", ""))
    return _first_rows(_cached(folder, _episode("a", _JOINTS), _episode("b", normalized)))


@trap(_KIND, "a frame cache exists, then an episode with reversed names is added and the cache reopened")
def cache_grows(folder: Path) -> str:
    cache = _cached(folder, _episode("a", _JOINTS))
    cache.store.add(_episode("b", _JOINTS.take([2, 0, 1])))
    cache.refresh()
    again = FrameCache(cache.store, folder / "cache")
    again.refresh()
    return _first_rows(again)


@trap(_KIND, "a frame cache of one order is opened for a policy of another order")
def cache_for_another_policy(folder: Path) -> str:
    first = _cached(folder, _episode("a", _JOINTS))
    other = FrameCache(first.store, folder / "cache", expected=_spec(_JOINTS.take([2, 1, 0])))
    other.refresh()
    return _first_rows(other)


@trap(_KIND, "finetune --data A B, B's joints have other names", remedy="Map the names")
def finetune_of_two_robots(folder: Path) -> str:
    for name, joints in (("A", _JOINTS), ("B", Dimensions(("a", "b", "c")))):
        _store(folder / name, _episode(name.lower(), joints))
    check_data(FinetuneConfig(data=(str(folder / "A"), str(folder / "B"))))
    return "accepted"


@trap(_KIND, "data whose names are those of the policy in another order are joined and compared with it")
def fit_by_name(folder: Path) -> str:
    store = EpisodeStore(folder / "all")
    for name, joints in (("a", _JOINTS.take([1, 2, 0])), ("b", _JOINTS)):
        import_source(_store(folder / name, _episode(name, joints)).path, store, DataMapping())
    cache = FrameCache(store, folder / "cache", expected=_spec())
    cache.refresh()
    check_fit(_spec(), spec_of(cache.episodes), folder)
    return _first_rows(cache)


@trap(_KIND, "the policy expects a joint that the data do not have", remedy="Map the names")
def fit_of_another_robot(folder: Path) -> str:
    check_fit(_spec(), replace(_spec(), dimensions=((_JOINTS, Dimensions(("pan", "lift", "wrist"))),)), folder)
    return "accepted"


@trap(_KIND, "demonstrations with reversed names are brought into a task that declares names")
def brought_demonstrations(folder: Path) -> str:
    source = _store(folder / "shown", _episode("a", _JOINTS.take([2, 1, 0])))
    (folder / "run").mkdir()
    run = EpisodeStore(folder / "run" / "episodes")
    bring_demonstrations(source.path, folder / "run", run, {"arm": _spec()}, most=0)
    episode = run.read("demo-00000")
    expect(np.allclose(episode.state, _values(_JOINTS.names, 4)), f"the run reads {episode.state[0].tolist()}")
    return f"the run's demonstration begins with {episode.state[0].tolist()} for {list(episode.state_dimensions.names)}"


@trap(_KIND, "demonstrations of a robot with other joint names are brought into a task", remedy="Map the names")
def demonstrations_of_another_robot(folder: Path) -> str:
    source = _store(folder / "shown", _episode("a", Dimensions(("x", "y", "z"))))
    check_demonstrations(source.path, {"arm": _spec()})
    return "accepted"


@trap(_KIND, "an episode without names has the digest that it had before names existed")
def digest_of_undeclared(folder: Path) -> str:
    store = _store(folder, _episode("a", UNDECLARED, _JOINTS.names))
    digest = store.read_header("a").digest
    expect(digest.startswith("6dce0dc9a31852d5"), f"the digest is {digest}")
    return digest


@trap(_KIND, "names and units of an episode survive the store")
def stored_names(folder: Path) -> str:
    found = _store(folder, _episode("a", _JOINTS)).read("a")
    expect(found.dimensions == (_JOINTS, _JOINTS), f"read back are {found.dimensions}")
    return f"{list(found.state_dimensions.names)} in {list(found.state_dimensions.units)}"
