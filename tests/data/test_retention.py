import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Origin
from vla_rl.data.cache import RetentionConfig, episodes_to_drop
from vla_rl.data.episode_header import EpisodeHeader

HEADER = EpisodeHeader(
    episode_id="x",
    length=10,
    task="",
    success=None,
    terminated=False,
    origin=Origin.SIM,
    policy_version=0,
    seed=None,
    control_hz=20.0,
    env_id="",
    state_dim=1,
    action_dim=1,
    cameras={},
    extras={},
    human_steps=0,
    digest="",
)


def header(episode_id: str, version: int, length: int = 10, origin: Origin = Origin.SIM) -> EpisodeHeader:
    return dataclasses.replace(HEADER, episode_id=episode_id, policy_version=version, length=length, origin=origin)


DEMOS = [header("demo0", -1, origin=Origin.DEMO), header("teleop", -1, origin=Origin.REAL)]


def test_without_bounds_nothing_is_dropped() -> None:
    assert episodes_to_drop([*DEMOS, header("a", 0), header("b", 100)], RetentionConfig()) == set()


def test_beyond_the_bound_the_oldest_rollouts_go_in_portions() -> None:
    rollouts = [header("late0", 0), header("a1", 1), header("b1", 1), header("c2", 2)]
    assert episodes_to_drop(DEMOS + rollouts, RetentionConfig(max_frames=60)) == set()
    assert episodes_to_drop(DEMOS + rollouts, RetentionConfig(max_frames=59)) == {"late0"}
    assert episodes_to_drop(DEMOS + rollouts, RetentionConfig(max_frames=49)) == {"late0", "a1"}
    assert episodes_to_drop(DEMOS + rollouts[::-1], RetentionConfig(max_frames=59)) == {"late0"}


def test_demonstrations_that_alone_exceed_the_bound_are_an_error() -> None:
    with pytest.raises(StoreError, match="demonstrations alone hold 20 frames"):
        episodes_to_drop([*DEMOS, header("a", 0)], RetentionConfig(max_frames=19))


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ConfigError):
        RetentionConfig(max_frames=0)


@given(
    rollouts=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 50)), max_size=30),
    max_frames=st.integers(20, 800),
)
def test_what_remains_fits_and_is_never_older_than_what_went(rollouts: list[tuple[int, int]], max_frames: int) -> None:
    headers = DEMOS + [header(f"{index:03d}", version, length) for index, (version, length) in enumerate(rollouts)]
    dropped = episodes_to_drop(headers, RetentionConfig(max_frames))
    kept = [h for h in headers if h.episode_id not in dropped]
    assert sum(h.length for h in kept) <= max_frames
    assert not dropped & {"demo0", "teleop"}
    ages = [(h.policy_version, h.episode_id) for h in headers if h.origin is Origin.SIM]
    assert sorted(ages)[: len(dropped)] == sorted(age for age in ages if age[1] in dropped)
    if dropped:
        assert sum(h.length for h in headers) > max_frames, "dropped although all fitted"


@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=30))
def test_what_is_dropped_does_not_depend_on_when_it_was_asked_for(lengths: list[int]) -> None:
    config = RetentionConfig(100)
    rollouts = [header(f"{index:03d}", index, length) for index, length in enumerate(lengths)]
    so_far: set[str] = set()
    for count in range(1, len(rollouts) + 1):
        dropped = episodes_to_drop(DEMOS + rollouts[:count], config)
        assert dropped >= so_far, "an episode that was dropped came back"
        so_far = dropped
