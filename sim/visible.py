"""Which geoms a picture shows: one rule for both renderers.

MuJoCo draws geom groups 0 to 2 and hides groups 3 to 5. MuJoCo Menagerie, Meta-World and OGBench keep collision shapes
in a hidden group. robosuite, LIBERO and imported URDF files keep them in group 0, beside visual geoms in group 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mujoco
import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError

DEFAULT_GROUPS = (0, 1, 2)  # as in MuJoCo's MjvOption
ONLY_SHOWN = np.array([1, 0, 0, 0, 0, 0], np.uint8)
"""Value of `geomgroup` for a MuJoCo call inside `only`, which puts what is shown into group 0."""
LOOKS = (
    *(f"geom_{name}" for name in ("group", "rgba", "size", "type", "dataid", "matid", "pos", "quat")),
    *("mat_rgba", "mat_texid"),
)
OPTICS = ("cam_fovy", "cam_sensorsize", "cam_intrinsic")
"""Arrays of a model, of geoms and of cameras, that pictures depend on and that a task may change at run time."""
_COVERED = 0.5  # share of a collision shape's box that lies inside the box of the visual geoms beside it


class Visibility:
    """The geoms of a model that a picture shows.

    Args:
        model: Compiled model.
        geom_groups: Numbers of the geom groups to draw. None: groups 0 to 2 without the collision shapes in group 0
            that have visual geoms beside them.

    Raises:
        UserError: A group is not a number from 0 to 5.
    """

    def __init__(self, model: mujoco.MjModel, geom_groups: Sequence[int] | None = None) -> None:
        groups = DEFAULT_GROUPS if geom_groups is None else geom_groups
        unknown = [group for group in groups if group not in range(mujoco.mjNGROUP)]
        if unknown:
            raise UserError(
                f"geom_groups holds {unknown[0]!r}. Geom groups are numbers from 0 to {mujoco.mjNGROUP - 1}."
            )
        self._shown = np.isin(np.arange(mujoco.mjNGROUP), groups)
        self._hidden = np.zeros(model.ngeom, bool) if geom_groups is not None else _collision_shapes(model)

    def geoms(self, model: mujoco.MjModel) -> NDArray[np.bool_]:
        """Mask [G] of the geoms to draw, by the present groups and colors of the model."""
        group = np.clip(model.geom_group, 0, mujoco.mjNGROUP - 1)
        return self._shown[group] & ~self._hidden & (geom_rgba(model)[:, 3] > 0)


@contextmanager
def only(model: mujoco.MjModel, geoms: NDArray[np.bool_]) -> Iterator[None]:
    """Let MuJoCo calls with `ONLY_SHOWN` as geom groups draw or meet these geoms [G] and no others."""
    groups = model.geom_group.copy()
    np.logical_not(geoms, out=model.geom_group)
    try:
        yield
    finally:
        model.geom_group[:] = groups


def geom_rgba(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Return colors [G, 4] from 0 to 1 without textures: the geom's own, else its material's, as in MuJoCo."""
    colors = model.geom_rgba.astype(np.float64)
    from_material = uses_material(model)
    colors[from_material] = model.mat_rgba[model.geom_matid[from_material]]
    return colors


def uses_material(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Mask [G] of the geoms that take their color from a material."""
    return (model.geom_matid >= 0) & (model.geom_rgba == np.array([0.5, 0.5, 0.5, 1.0], np.float32)).all(axis=1)


def geom_halves(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Half sizes [G, 3] of the box around each geom, in its frame; of a primitive, by its present size."""
    halves, size, kind = model.geom_aabb[:, 3:].copy(), model.geom_size, model.geom_type
    types = mujoco.mjtGeom
    for shape, columns in (
        (types.mjGEOM_SPHERE, (0, 0, 0)),
        (types.mjGEOM_CAPSULE, (0, 0, 1)),
        (types.mjGEOM_CYLINDER, (0, 0, 1)),
        (types.mjGEOM_ELLIPSOID, (0, 1, 2)),
        (types.mjGEOM_BOX, (0, 1, 2)),
    ):
        halves[kind == shape] = size[kind == shape][:, columns]
    capsule = kind == types.mjGEOM_CAPSULE
    halves[capsule, 2] += size[capsule, 0]
    return halves


def _collision_shapes(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Mask [G] of the colliding geoms of group 0 whose rigid part has visual geoms in their place.

    A visual geom collides with nothing and has a shown group of its own. A part is what moves as one; of what stands
    still, everything below one child of the world. The visual geoms must cover most of a collision shape: a painted
    mark on a box does not hide the box.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    bounded = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    solid = collides & bounded & (model.geom_group == 0)
    visual = ~collides & bounded & np.isin(model.geom_group, DEFAULT_GROUPS[1:]) & (geom_rgba(model)[:, 3] > 0)
    weld = model.body_weldid[model.geom_bodyid]
    part = np.where(weld > 0, weld, model.body_rootid[model.geom_bodyid])
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    middle = data.geom_xpos + np.einsum("gij,gj->gi", data.geom_xmat.reshape(-1, 3, 3), model.geom_aabb[:, :3])
    reach = np.einsum("gij,gj->gi", np.abs(data.geom_xmat.reshape(-1, 3, 3)), geom_halves(model))
    low, high = middle - reach, middle + reach
    hidden = np.zeros(model.ngeom, bool)
    for geom in np.flatnonzero(solid):
        (beside,) = np.nonzero(visual & (part == part[geom]))
        lows, highs = low[beside], high[beside]
        if part[geom] != 0 and len(beside):  # the visual geoms of one part count as one; scenery does not
            lows, highs = lows.min(axis=0, keepdims=True), highs.max(axis=0, keepdims=True)
        common = np.minimum(highs, high[geom]) - np.maximum(lows, low[geom])  # [V, 3]
        share = np.prod(np.clip(common, 0.0, None) / np.maximum(high[geom] - low[geom], mujoco.mjMINVAL), axis=1)
        hidden[geom] = (share >= _COVERED).any()
    return hidden
