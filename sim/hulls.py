"""Coarse convex hulls in the place of chosen meshes, and rays that meet them.

A robot's links have ten thousand triangles each, and a link covers a few hundred pixels. They cost nearly all of the
time of a picture, in both renderers. Shapes that are nearly convex look the same.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError, did_you_mean

N_DIRECTIONS = 24
"""A hull keeps the vertices that are outermost in this many directions: enough for 64 pixels, faceted at 200."""
FLAT = 1e-4
"""A mesh is flat whose extent in its thinnest direction is less than this share of that in its longest."""


def with_hulls(model: mujoco.MjModel, meshes: Sequence[str]) -> mujoco.MjModel:
    """Copy of a compiled model in which these meshes are coarse hulls. It can be drawn with the data of the original.

    Do not simulate the copy: only the arrays for drawing are right. The meshes lose their texture. Flat meshes stay
    unchanged.

    Raises:
        UserError: the model has no mesh of such a name.
    """
    meshes, spec = with_volume(model, meshes), mujoco.MjSpec()
    for name in meshes:
        corners = _outermost(_vertices(model, model.mesh(name).id))
        # A mesh without faces gets those of its hull.
        spec.add_mesh(name=name, uservert=corners.ravel(), inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name)
    drawn, hulls = copy.deepcopy(model), spec.compile()
    for name in meshes:
        _replace(drawn, model.mesh(name).id, hulls, hulls.mesh(name).id)
    return drawn


def with_volume(model: mujoco.MjModel, meshes: Sequence[str]) -> list[str]:
    """Return the meshes that have a hull: not those in a plane, such as a decal. UserError for an unknown mesh."""
    names = [model.mesh(mesh).name for mesh in range(model.nmesh)]
    solid = []
    for name in meshes:
        if name not in names:
            raise UserError(f"hulls names the mesh {name!r}, which the model does not have.{did_you_mean(name, names)}")
        corners = _outermost(_vertices(model, names.index(name)))
        extents = np.linalg.svd(corners - corners.mean(axis=0), compute_uv=False)
        if len(extents) == 3 and len(corners) > 3 and extents[2] > FLAT * extents[0]:
            solid.append(name)
    return solid


@dataclass(frozen=True)
class Hull:
    """The planes of a convex mesh, in its frame: inside is where normals @ point < offsets."""

    normals: NDArray[np.float64]  # [F, 3], unit length, outwards
    offsets: NDArray[np.float64]  # [F] meters

    @classmethod
    def of_mesh(cls, model: mujoco.MjModel, name: str) -> "Hull":
        """Return the hull of a mesh that `with_hulls` has made."""
        mesh = model.mesh(name).id
        vertices, face = _vertices(model, mesh).astype(np.float64), model.mesh_faceadr[mesh]
        a, b, c = (vertices[corner] for corner in model.mesh_face[face : face + model.mesh_facenum[mesh]].T)  # [F, 3]
        normals = np.cross(b - a, c - a)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        return cls(normals, (normals * a).sum(axis=1))

    def cast(
        self, rotation: NDArray[np.float64], offset: NDArray[np.float64], directions: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """Cast rays from one point; many times faster than one ray after the other through a mesh.

        A ray enters a convex body through the last of the planes that face its start, and leaves it through the first
        of the others. Of each plane, `rate` is one over the distance at which the ray crosses it.

        Args:
            rotation: from the hull's frame to the rays', [3, 3].
            offset: the hull's place as seen from the start of the rays, [3] meters.
            directions: unit vectors [N, 3].

        Returns:
            Indices [M] of the rays that meet it, their distances [M] in meters and the normals [M, 3] there.
        """
        normals = self.normals @ rotation.T
        gap = self.offsets + normals @ offset  # [F], negative where a plane faces the start
        front = gap < 0
        if not front.any():  # the rays start inside
            return np.empty(0, np.intp), np.empty(0), np.empty((0, 3))
        rate = directions @ (normals / gap[:, None]).T  # [N, F]
        entry = rate[:, front].min(axis=1)
        (met,) = np.nonzero((entry > 0) & (entry >= rate[:, ~front].max(axis=1)))
        plane = rate[np.ix_(met, front)].argmin(axis=1)
        return met, 1.0 / entry[met], normals[front][plane]


def _vertices(model: mujoco.MjModel, mesh: int) -> NDArray[np.float32]:
    """Vertices [N, 3] of a mesh, in its frame."""
    start = model.mesh_vertadr[mesh]
    return model.mesh_vert[start : start + model.mesh_vertnum[mesh]]


def _outermost(vertices: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vertices [M, 3] of [N, 3] that are furthest out in directions spread evenly over a sphere."""
    turn = np.arange(N_DIRECTIONS) + 0.5
    height, angle = 1.0 - 2.0 * turn / N_DIRECTIONS, np.pi * (1.0 + np.sqrt(5.0)) * turn  # Fibonacci's spiral
    radius = np.sqrt(1.0 - height**2)
    directions = np.stack([radius * np.cos(angle), radius * np.sin(angle), height])  # [3, D]
    return vertices[np.unique((vertices @ directions).argmax(axis=0))]


def _replace(model: mujoco.MjModel, mesh: int, hulls: mujoco.MjModel, hull: int) -> None:
    """Write a hull over the mesh of which it was made; what it does not fill of the arrays is no longer used."""
    # Compiling has moved the hull into a frame of its own.
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, hulls.mesh_quat[hull])
    turn, shift = rotation.reshape(3, 3).T, hulls.mesh_pos[hull]

    def part(kind: str, of: mujoco.MjModel, which: int) -> slice:
        start = getattr(of, f"mesh_{kind}adr")[which]
        return slice(start, start + getattr(hulls, f"mesh_{kind}num")[hull])

    for kind in ("vert", "normal", "face", "bvh"):
        getattr(model, f"mesh_{kind}num")[mesh] = getattr(hulls, f"mesh_{kind}num")[hull]
    to, of = part("vert", model, mesh), part("vert", hulls, hull)
    model.mesh_vert[to] = hulls.mesh_vert[of] @ turn + shift
    to, of = part("normal", model, mesh), part("normal", hulls, hull)
    model.mesh_normal[to] = hulls.mesh_normal[of] @ turn
    to, of = part("face", model, mesh), part("face", hulls, hull)
    model.mesh_face[to], model.mesh_facenormal[to] = hulls.mesh_face[of], hulls.mesh_facenormal[of]
    # The tree by which rays find faces: a turned box lies inside the straight one around it.
    to, of = part("bvh", model, mesh), part("bvh", hulls, hull)
    model.bvh_child[to], model.bvh_nodeid[to] = hulls.bvh_child[of], hulls.bvh_nodeid[of]
    model.bvh_aabb[to, :3] = hulls.bvh_aabb[of, :3] @ turn + shift
    model.bvh_aabb[to, 3:] = hulls.bvh_aabb[of, 3:] @ np.abs(turn)
    model.mesh_texcoordadr[mesh] = model.mesh_graphadr[mesh] = -1
