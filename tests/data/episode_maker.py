"""Small episodes for the tests of the data layer."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from vla_rl.core.types import Episode, Origin, Source

EXTRA_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def make_episode(
    episode_id: str, length: int = 5, seed: int = 0, size: tuple[int, int] = (4, 6), **changes: Any
) -> Episode:
    """An episode of noise with cameras front and top; `changes` replace fields."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "images": {name: random.integers(0, 256, (length, *size, 3), dtype=np.uint8) for name in ("front", "top")},
        "state": random.normal(size=(length, 3)).astype(np.float32),
        "action_policy": random.normal(size=(length, 2)).astype(np.float32),
        "action_sent": random.normal(size=(length, 2)).astype(np.float32),
        "source": random.integers(0, len(Source), length, dtype=np.uint8),
    }
    labels: dict[str, Any] = {
        "task": "put the cube on the tray",
        "success": True,
        "terminated": True,
        "origin": Origin.SIM,
        "policy_version": 0,
        "seed": seed,
        "control_hz": 20.0,
        "env_id": "vla_rl/Toy-v0",
    }
    return Episode(episode_id, **(columns | labels | changes))


def random_column(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Any bits of the type: NaN and infinity too; booleans stay 0 or 1."""
    if dtype == "?":
        return random.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(random.bytes(size), dtype).reshape(shape).copy()


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Valid episodes of every kind: 0 to 2 cameras, empty states, extras of every type, every label."""
    length = draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cameras = draw(st.lists(st.sampled_from(["front", "top", "wrist_left.rgb"]), unique=True, max_size=2))
    extras = draw(
        st.dictionaries(
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
            st.tuples(st.sampled_from(EXTRA_DTYPES), st.lists(st.integers(0, 3), max_size=2)),
            max_size=3,
        )
    )
    state_dim, action_dim = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    images = {
        camera: random.integers(0, 256, (length, draw(st.integers(1, 5)), 3, 3), dtype=np.uint8) for camera in cameras
    }
    final: dict[str, Any] = {}
    if draw(st.booleans()):
        pictures = {camera: random.integers(0, 256, image.shape[1:], np.uint8) for camera, image in images.items()}
        final = {"final_state": random.normal(size=state_dim).astype(np.float32), "final_images": pictures}
    return Episode(
        episode_id=draw(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,30}", fullmatch=True)),
        images=images,
        state=random.normal(size=(length, state_dim)).astype(np.float32),
        action_policy=random.normal(size=(length, action_dim)).astype(np.float32),
        action_sent=random.normal(size=(length, action_dim)).astype(np.float32),
        source=random.integers(0, len(Source), length, dtype=np.uint8),
        task=draw(st.text(max_size=30)),
        success=draw(st.sampled_from([True, False, None])),
        terminated=draw(st.booleans()),
        origin=draw(st.sampled_from(Origin)),
        policy_version=draw(st.integers(-1, 10**6)),
        seed=draw(st.none() | st.integers(0, 2**63)),
        control_hz=draw(st.floats(1, 1000)),
        env_id=draw(st.text(max_size=30)),
        extras={name: random_column(random, dtype, (length, *tail)) for name, (dtype, tail) in extras.items()},
        **final,
    )


def with_final(episode: Episode, seed: int = 7) -> Episode:
    """The episode with an observation of noise after its last command."""
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, image.shape[1:], np.uint8) for name, image in episode.images.items()}
    state = random.normal(size=episode.state.shape[1]).astype(np.float32)
    return replace(episode, final_state=state, final_images=images)


def columns_of(episode: Episode) -> dict[str, NDArray[Any]]:
    columns = {name: getattr(episode, name) for name in ("state", "action_policy", "action_sent", "source")}
    if episode.final_state is not None:
        columns["final_state"] = episode.final_state
    columns |= {f"final_images/{name}": image for name, image in episode.final_images.items()}
    columns |= {f"images/{name}": image for name, image in episode.images.items()}
    return columns | {f"extras/{name}": column for name, column in episode.extras.items()}


def labels_of(episode: Episode) -> dict[str, Any]:
    names = ["episode_id", "task", "success", "terminated", "origin", "policy_version", "seed", "control_hz", "env_id"]
    return {name: getattr(episode, name) for name in names}


def assert_same_episode(found: Episode, expected: Episode) -> None:
    """Equal in every label and every bit of every column."""
    assert labels_of(found) == labels_of(expected)
    found_columns, expected_columns = columns_of(found), columns_of(expected)
    assert found_columns.keys() == expected_columns.keys()
    for name, column in expected_columns.items():
        assert found_columns[name].dtype == column.dtype, name
        assert found_columns[name].shape == column.shape, name
        assert found_columns[name].tobytes() == column.tobytes(), name
