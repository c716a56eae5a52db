"""Both renderers draw the same scene, and the ray caster's shortcuts change nothing."""

import gymnasium
import numpy as np
import pytest

import sim
from sim.egl import why_egl_does_not_load
from sim.raycast import RaycastRenderer
from sim.rays import Caster, camera_rays
from vla_rl.core.errors import UserError


@pytest.fixture
def busy_env(task):
    """An environment in the middle of its task."""
    env = gymnasium.make(task).unwrapped
    env.reset(seed=4)
    expert = sim.make_expert(env)
    expert.reset(4)
    for _ in range(28):
        env.step(expert.act()[0])
    return env


@pytest.mark.skipif(bool(why_egl_does_not_load()), reason=f"EGL does not load: {why_egl_does_not_load()}")
def test_egl_and_ray_casting_see_the_same_objects_in_the_same_colors(task, busy_env):
    other = gymnasium.make(task, renderer="egl").unwrapped
    try:
        other.set_state(busy_env.get_state())
        for camera in busy_env.cameras:
            objects = busy_env.renderer.segment(busy_env.data, camera)
            assert (objects == other.renderer.segment(other.data, camera)).mean() >= 0.98
            assert len(np.unique(objects)) > 8
            pictures = [env.renderer.render(env.data, camera).astype(float) for env in (busy_env, other)]
            assert np.abs(pictures[0] - pictures[1]).mean() < 4.0
    finally:
        other.close()


def test_casting_only_where_something_moves_misses_nothing(busy_env):
    model, data = busy_env.model, busy_env.data
    for camera in busy_env.cameras:
        rays = camera_rays(model, data, camera, busy_env.image_size)
        everything = Caster(model, data).cast(data, rays.origin, rays.directions, np.ones(model.ngeom, bool)).geom
        assert np.array_equal(busy_env.renderer.segment(data, camera).reshape(-1), everything)


def test_pictures_are_fresh_arrays(busy_env):
    first = busy_env.renderer.render(busy_env.data, "front")
    kept = first.copy()
    busy_env.step(busy_env.action_space.high)
    assert np.array_equal(first, kept)


def test_a_static_geom_that_changes_is_drawn_anew(busy_env):
    before = busy_env.renderer.render(busy_env.data, "top")
    model = busy_env.model
    model.geom_rgba[model.geom("table").id] = (0, 0, 1, 1)
    assert not np.array_equal(busy_env.renderer.render(busy_env.data, "top"), before)


def test_every_object_and_gripper_is_seen_at_the_start(task):
    env = gymnasium.make(task).unwrapped
    for seed in range(5):
        env.reset(seed=seed)
        seen = np.union1d(*(env.renderer.segment(env.data, camera) for camera in env.cameras))
        bodies = {env.model.body(env.model.geom_bodyid[geom]).name for geom in seen if geom >= 0}
        assert set(env.objects) <= bodies
        assert {f"{arm.side}_finger_front" for arm in env.arms} <= bodies


@pytest.mark.slow
def test_picture_for_people_has_shadows(busy_env):
    picture = busy_env.render()
    assert picture.shape == (480, 480, 3)
    plain = RaycastRenderer(busy_env.model, busy_env.data, ("overview",), 480).render(busy_env.data, "overview")
    darker = (picture.astype(int).sum(axis=2) < plain.astype(int).sum(axis=2) - 40).mean()
    assert 0.005 < darker < 0.3


@pytest.mark.skipif(bool(why_egl_does_not_load()), reason=f"EGL does not load: {why_egl_does_not_load()}")
def test_closing_one_egl_renderer_leaves_the_others(task):
    first, second = (gymnasium.make(task, renderer="egl").unwrapped for _ in range(2))
    kept = second.reset(seed=0)[0]["pixels"]
    first.close()
    again = second.reset(seed=0)[0]["pixels"]
    second.close()
    assert all(np.array_equal(kept[camera], again[camera]) for camera in second.cameras)


def test_while_an_environment_does_not_draw_it_repeats_the_last_pictures():
    env = gymnasium.make("vla_rl/PickPlace-v0").unwrapped
    before = env.reset(seed=0)[0]["pixels"]
    env.drawing = False
    away = env.action_space.high
    repeated = [env.step(away)[0] for _ in range(5)][-1]
    env.drawing = True
    seen = env.step(away)[0]
    assert env.observation_space.contains(repeated)
    for camera in env.cameras:
        assert np.array_equal(repeated["pixels"][camera], before[camera])
        assert not np.array_equal(seen["pixels"][camera], before[camera])


def test_egl_that_does_not_load_is_explained(monkeypatch):
    monkeypatch.setattr("sim.egl.why_egl_does_not_load", lambda: "no driver")
    with pytest.raises(UserError, match=r"no driver.*raycast"):
        gymnasium.make("vla_rl/PegInsert-v0", renderer="egl")
