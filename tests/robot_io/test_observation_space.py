"""Cameras and state are found in any observation space."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_io.observation_space import RENDERED, ObservationReader
from vla_rl.core.errors import ConfigError, UserError


def picture(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


def vector(size: int, dtype: Any = np.float32) -> Box:
    return Box(-1, 1, (size,), dtype)


IMAGE, VECTOR = picture(6, 5, 3), vector(3)

leaves = st.one_of(
    st.builds(picture, st.integers(6, 20), st.integers(6, 20), st.sampled_from([1, 3, 4])),
    st.builds(picture, st.sampled_from([1, 3]), st.integers(6, 20), st.integers(6, 20)),
    st.builds(picture, st.integers(8, 20), st.integers(8, 20)),
    st.builds(vector, st.integers(1, 4), st.sampled_from([np.float32, np.float64])),
    st.builds(lambda: Box(-1, 1, (2, 3), np.float64)),
    st.just(Discrete(3)),
)
observation_spaces = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c.d", "left", "0"]), inner, min_size=1, max_size=3).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
    ),
    max_leaves=6,
)


@given(space=observation_spaces, seed=st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_whatever_the_nesting_there_are_pictures_of_one_size_and_one_vector(space: Any, seed: int) -> None:
    reader = ObservationReader(space, image_size=16, render=lambda: np.zeros((9, 7, 3), np.uint8))
    space.seed(seed)
    raw = space.sample()
    reader.check(raw)
    images, state = reader.images_of(raw), reader.state_of(raw)
    flat = [(space, value) for space, value in _leaves(space, raw) if isinstance(space, Box)]
    pictures = [value for space, value in flat if space.dtype == np.uint8]
    assert len(images) == max(len(pictures), 1)
    assert tuple(images) == reader.camera_names
    for image in images.values():
        assert (image.dtype, image.shape) == (np.uint8, (*reader.size, 3))
        assert max(reader.size) <= 16
    numbers = [value.ravel() for space, value in flat if space.dtype.kind == "f"]
    expected = np.concatenate(numbers).astype(np.float32) if numbers else np.zeros(1, np.float32)
    np.testing.assert_array_equal(state, expected)
    assert state.dtype == np.float32
    assert len(state) == reader.state_dim
    for values in (*images.values(), state):
        assert not any(np.shares_memory(values, value) for _, value in flat), "environments may write their own anew"


def _leaves(space: Any, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(space, Dict):
        return [leaf for key in space.spaces for leaf in _leaves(space[key], value[key])]
    if isinstance(space, Tuple):
        return [leaf for inner, part in zip(space, value, strict=True) for leaf in _leaves(inner, part)]
    return [(space, value)]


@pytest.mark.parametrize(
    ("space", "cameras", "state"),
    [
        (Dict(pixels=Dict(front=IMAGE, top=IMAGE), agent_pos=VECTOR), ("front", "top"), {"agent_pos": 3}),
        (Dict({"observation.images.top": IMAGE, "observation.state": VECTOR}), ("top",), {"observation.state": 3}),
        (Dict(left=Dict(rgb=IMAGE), right=Dict(rgb=IMAGE), q=VECTOR), ("left_rgb", "right_rgb"), {"q": 3}),
        (Tuple([IMAGE, IMAGE, VECTOR, vector(2)]), ("camera_0", "camera_1"), {"2": 3, "3": 2}),
        (IMAGE, ("camera",), {}),
        (VECTOR, (RENDERED,), {"": 3}),
        (Dict(achieved_goal=VECTOR, desired_goal=VECTOR), (RENDERED,), {"achieved_goal": 3, "desired_goal": 3}),
    ],
)
def test_names_are_short_and_unique(space: Any, cameras: tuple[str, ...], state: dict[str, int]) -> None:
    reader = ObservationReader(space, render=lambda: np.zeros((4, 4, 3), np.uint8))
    assert (reader.camera_names, reader.state) == (cameras, state)


def test_what_is_named_is_taken_and_nothing_else() -> None:
    space = Dict(a=Dict(eye=IMAGE, q=VECTOR), b=Tuple([IMAGE, vector(2)]), secret=vector(5))
    reader = ObservationReader(space, {"wrist": "b.0"}, ["b.1", "a.q"])
    assert reader.camera_names == ("wrist",)
    assert reader.state == {"b.1": 2, "a.q": 3}
    for cameras, state, complaint in (
        ({"wrist": "b.9"}, (), "no 'b.9' in the observation space.*Known: a.eye, a.q, b.0, b.1, secret"),
        ({}, ("a.p",), "Did you mean 'a.q'"),
        ({"wrist": "a.q"}, (), "'a.q' is .*; a camera is"),
        ({}, ("a.eye",), "the state cannot hold 'a.eye'"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            ObservationReader(space, cameras, state)


def test_layouts_show_the_same_picture() -> None:
    colors = np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3)
    gray = colors[..., 0]
    reader = ObservationReader(Dict(hwc=picture(8, 9, 3), chw=picture(3, 8, 9), rgba=picture(8, 9, 4)))
    raw = {"hwc": colors, "chw": colors.transpose(2, 0, 1), "rgba": np.dstack([colors, gray])}
    for image in reader.images_of(raw).values():
        np.testing.assert_array_equal(image, colors)
    reader = ObservationReader(Dict(flat=picture(8, 9), hwc=picture(8, 9, 1), chw=picture(1, 8, 9)))
    for image in reader.images_of({"flat": gray, "hwc": gray[..., None], "chw": gray[None]}).values():
        np.testing.assert_array_equal(image, np.dstack([gray] * 3))
    assert "camera 'flat' is gray" in " ".join(reader.notes)


def test_frames_on_top_of_each_other_are_no_picture_with_transparency() -> None:
    reader = ObservationReader(Dict(eye=picture(8, 9, 3), stack=picture(4, 8, 9)))
    assert list(reader.cameras) == ["eye"]
    assert "left out of the observation: 'stack'" in " ".join(reader.notes)


def test_large_pictures_are_averaged_and_small_ones_stay() -> None:
    raw = np.zeros((32, 32, 3), np.uint8)
    raw[::2] = 200
    small = ObservationReader(picture(32, 32, 3), image_size=16)
    assert np.unique(small.images_of(raw)["camera"]).tolist() == [100]
    assert "resized by area to 16x16: camera 32x32" in " ".join(small.notes)
    assert ObservationReader(picture(12, 16, 3), image_size=16).size == (12, 16)
    with pytest.raises(UserError, match=r"differ in size .*a 6x5, b 8x8"):
        ObservationReader(Dict(a=IMAGE, b=picture(8, 8, 3)))


def test_what_cannot_be_seen_is_said() -> None:
    reader = ObservationReader(Dict(eye=IMAGE, stage=Discrete(3)))
    assert [note.split(":")[0] for note in reader.notes] == ["left out of the observation", "no state was found"]
    np.testing.assert_array_equal(reader.state_of({"eye": 0, "stage": 1}), [0])
    with pytest.raises(UserError, match=r"neither numbers nor a picture .* render"):
        ObservationReader(Discrete(3))
    with pytest.raises(UserError, match=r"render.. draws float64"):
        ObservationReader(VECTOR, render=lambda: np.zeros((4, 4, 3)))
    with pytest.raises(UserError, match="has no 'eye', its space has"):
        ObservationReader(Dict(eye=IMAGE)).check({})


def test_without_a_camera_the_policy_sees_the_state_alone() -> None:
    reader = ObservationReader(VECTOR, image_size=16)
    assert (reader.camera_names, reader.size, reader.renders) == ((), (16, 16), False)
    assert reader.images_of(VECTOR.sample()) == {}
    assert "no camera" in " ".join(reader.notes)


def test_gymnasium_sorts_keys_and_the_state_is_in_its_order() -> None:
    space = gymnasium.spaces.Dict({"z": vector(1), "a": vector(2), "eye": IMAGE})
    assert list(ObservationReader(space).state) == ["a", "z"]
