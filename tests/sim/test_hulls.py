"""Coarse hulls: the same shape from far away, one and the same to both ways of casting rays."""

import mujoco
import numpy as np
import pytest

from sim.hulls import N_DIRECTIONS, with_hulls
from sim.raycast import RaycastRenderer


@pytest.fixture(scope="module")
def scene():
    """A fine ellipsoid as a mesh, turned and shifted in its own frame, before a box and behind a ball."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(2000, 3))
    points = points / np.linalg.norm(points, axis=1, keepdims=True) * (0.10, 0.06, 0.03) + (0.02, 0.01, 0.0)
    model = mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <asset><mesh name="stone" vertex="{" ".join(map(str, points.ravel()))}"/></asset>
          <worldbody>
            <camera name="front" pos="0 0 0.6" fovy="40"/>
            <geom type="box" size="0.15 0.15 0.01" pos="0 0 -0.2" rgba="0 0 1 1"/>
            <body euler="20 30 40"><freejoint/><geom type="mesh" mesh="stone" rgba="1 0 0 1"/></body>
            <body pos="0.05 0 0.2"><freejoint/><geom type="sphere" size="0.02" rgba="0 1 0 1"/></body>
          </worldbody>
        </mujoco>""")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def test_a_hull_is_coarse_and_looks_like_its_mesh(scene):
    model, data = scene
    before = model.mesh_vert.copy()
    coarse = with_hulls(model, ["stone"])
    assert coarse.mesh_vertnum[0] <= N_DIRECTIONS < model.mesh_vertnum[0]
    assert np.array_equal(model.mesh_vert, before)
    fine, drawn = (RaycastRenderer(m, data, ["front"], 64).segment(data, "front") for m in (model, coarse))
    assert (fine == drawn).mean() > 0.97
    assert (drawn == 1).sum() > 300


def test_rays_through_planes_meet_what_mujocos_rays_meet(scene):
    model, data = scene
    coarse = with_hulls(model, ["stone"])
    by_rays, by_planes = (RaycastRenderer(coarse, data, ["front"], 64, hulls) for hulls in ((), ("stone",)))
    assert np.array_equal(by_rays.segment(data, "front"), by_planes.segment(data, "front"))
    difference = by_rays.render(data, "front").astype(int) - by_planes.render(data, "front")
    assert np.abs(difference).max() <= 1


def test_nothing_is_met_from_inside_a_hull(scene):
    model, data = scene
    coarse = with_hulls(model, ["stone"])
    renderer = RaycastRenderer(coarse, data, ["front"], 64, ("stone",))
    (hull,) = renderer._planes.values()
    met, distance, normal = hull.cast(np.eye(3), np.zeros(3), np.eye(3))
    assert len(met) == len(distance) == len(normal) == 0
