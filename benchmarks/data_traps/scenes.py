"""Traps of foreign MuJoCo scenes: what moves or changes at run time, collision shapes, and what a renderer leaves out.

Every scene is drawn by the ray caster, and by EGL where it loads; both must see the same geoms.
"""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from benchmarks.data_traps.traps import expect, trap
from sim.egl import why_egl_does_not_load
from sim.hulls import with_hulls
from sim.rendering import Renderer
from vla_rl.core.errors import UserError

SIZE = 48
LARGEST_DISAGREEMENT = 0.01
POSES, GEOMS, CHANGES = "picture of another pose", "wrong geoms in a picture", "scene changed at run time"
_FLOOR = '<geom name="floor" type="box" size="1 1 .01" pos="0 0 -.01" rgba="0 0 1 1"/>'
_ABOVE = '<camera name="eye" pos="0 0 1" fovy="45"/>'
_BALL = '<geom name="ball" size=".1" rgba="1 0 0 1"/>'
_SHEET = "-.1 -.1 0 .1 -.1 0 .1 .1 0 -.1 .1 0"


def _compiled(world: str, rest: str = "") -> tuple[mujoco.MjModel, mujoco.MjData]:
    """A scene with its kinematics computed."""
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{rest}<worldbody>{world}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


class _Renderers:
    """Both renderers of a scene, or the ray caster alone where EGL does not load."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, **options: Any) -> None:
        names = ("raycast", "egl") if not why_egl_does_not_load() else ("raycast",)
        self._all = [Renderer(name, model, data, ["eye"], SIZE, **options) for name in names]

    def segment(self, model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.int32]:
        """Geom ids [H, W] after a step of kinematics; both renderers must agree."""
        mujoco.mj_forward(model, data)
        seen = [renderer.segment(data, "eye") for renderer in self._all]
        share = float(np.mean(seen[0] != seen[-1]))
        expect(share <= LARGEST_DISAGREEMENT, f"the renderers disagree in {share:.1%} of the pixels")
        return seen[0]

    def render(self, data: mujoco.MjData) -> list[NDArray[np.uint8]]:
        """Pictures, the ray caster's first."""
        return [renderer.render(data, "eye") for renderer in self._all]


def _pixels(seen: NDArray[np.int32], model: mujoco.MjModel, geom: str) -> int:
    return int((seen == model.geom(geom).id).sum())


@trap(POSES, "a camera in a robot's hand, which has moved over an object since the start")
def wrist_camera(_: Path) -> str:
    hand = '<body pos="-.6 0 .5"><joint name="x" type="slide" axis="1 0 0"/><geom size=".02"/>'
    model, data = _compiled(f'{_FLOOR}{_BALL}{hand}<camera name="eye" pos="0 0 -.05" fovy="45"/></body>')
    renderers = _Renderers(model, data)
    before = _pixels(renderers.segment(model, data), model, "ball")
    data.joint("x").qpos = 0.6
    after = _pixels(renderers.segment(model, data), model, "ball")
    expect(before == 0 and after > 100, f"the ball covers {before} pixels before the move and {after} after it")
    return f"the ball below the hand covers {before} pixels before the move and {after} after it"


@trap(POSES, "a fixed camera that turns to follow a body (mode targetbody)")
def target_camera(_: Path) -> str:
    camera = '<camera name="eye" pos="0 -1 .5" mode="targetbody" target="target" fovy="30"/>'
    model, data = _compiled(f'{_FLOOR}{camera}<body name="target" pos="0 0 .2"><freejoint/>{_BALL}</body>')
    renderers = _Renderers(model, data)
    for x in (0.0, 0.4):
        data.qpos[0] = x
        seen = renderers.segment(model, data)
        rows, columns = np.nonzero(seen == model.geom("ball").id)
        expect(
            len(rows) > 0 and abs(columns.mean() - SIZE / 2 + 0.5) < 1, f"at x = {x} m the ball is not in the middle"
        )
    return "the ball stays in the middle of the picture"


@trap(POSES, "a mocap body that is moved at run time, as goals and hands of many benchmarks are")
def mocap(_: Path) -> str:
    model, data = _compiled(f'{_FLOOR}{_ABOVE}<body name="goal" mocap="true" pos="-.2 0 .1">{_BALL}</body>')
    renderers = _Renderers(model, data)
    middles = []
    for x in (-0.2, 0.2):
        data.mocap_pos[0, 0] = x
        middles.append(np.nonzero(renderers.segment(model, data) == model.geom("ball").id)[1].mean())
    expect(middles[1] - middles[0] > SIZE / 4, f"the mocap body is drawn in column {middles[0]} and then {middles[1]}")
    return f"the mocap body moves from column {middles[0]:.0f} to {middles[1]:.0f}"


@trap(POSES, "a static body whose pose is changed in the model, as Meta-World does at resets, without a further call")
def static_body(_: Path) -> str:
    model, data = _compiled(f'{_FLOOR}{_ABOVE}<body name="shelf" pos="-.2 0 .1">{_BALL}</body>')
    renderers = _Renderers(model, data)
    first = renderers.segment(model, data)
    model.body("shelf").pos = (0.2, 0, 0.1)
    second = renderers.segment(model, data)
    expect(np.array_equal(first[:, ::-1], second), "the shelf is drawn where it was")
    return "the shelf is drawn where the model has put it"


@trap(POSES, "a lamp on a moving body: the ray caster lights every scene with its own fixed lamp")
def moving_light(_: Path) -> str:
    lamp = '<body pos="0 0 .8"><joint name="x" type="slide" axis="1 0 0"/><geom size=".01" mass="1" group="3"/>'
    model, data = _compiled(f'{_FLOOR}{_ABOVE}{_BALL}{lamp}<light pos="0 0 0" dir="0 0 -1"/></body>')
    renderers = _Renderers(model, data)
    before, first = renderers.segment(model, data), renderers.render(data)
    data.joint("x").qpos = 0.5
    after, second = renderers.segment(model, data), renderers.render(data)
    expect(np.array_equal(before, after), "the lamp changes which geoms are seen")
    same = [np.array_equal(one, other) for one, other in zip(first, second, strict=True)]
    expect(same == [True, False][: len(same)], f"picture unchanged: ray caster and EGL {same}")
    return "EGL's picture follows the lamp; the ray caster's does not depend on it, as its page says"


@trap(GEOMS, "a robot with collision shapes in group 0 and visual geoms in group 1, as robosuite and LIBERO have them")
def collision_shapes(_: Path) -> str:
    link = (
        '<body pos="0 0 .1"><freejoint/><geom name="shape" type="box" size=".1 .1 .1" rgba="0 1 0 1"/>'
        '<geom name="skin" type="box" size=".09 .09 .09" group="1" contype="0" conaffinity="0"/>'
        '<body pos="0 0 .06"><geom name="pad" type="box" size=".05 .05 .05" rgba="0 1 0 1"/></body></body>'
    )
    cube = '<body pos=".3 0 .1"><geom name="cube" type="box" size=".05 .05 .05"/>'
    mark = '<geom name="mark" type="box" size=".01 .01 .051" group="1" contype="0" conaffinity="0"/></body>'
    model, data = _compiled(_FLOOR + _ABOVE + link + cube + mark)
    seen = _Renderers(model, data).segment(model, data)
    counts = {name: _pixels(seen, model, name) for name in ("shape", "pad", "skin", "cube", "mark", "floor")}
    hidden, drawn = counts["shape"] + counts["pad"], ("skin", "cube", "mark", "floor")
    expect(hidden == 0 and all(counts[name] for name in drawn), f"pixels per geom: {counts}")
    return f"pixels per geom: {counts}; a mark does not hide its cube"


@trap(GEOMS, "the same collision shapes, asked for with geom_groups")
def chosen_groups(_: Path) -> str:
    both = '<geom name="skin" size=".05" group="1" contype="0" conaffinity="0"/><geom name="shape" size=".1"/>'
    model, data = _compiled(_ABOVE + f'<body pos="0 0 .1">{both}</body>')
    seen = _Renderers(model, data, geom_groups=(0,)).segment(model, data)
    expect(_pixels(seen, model, "shape") > 0 and _pixels(seen, model, "skin") == 0, "not group 0 alone")
    return "group 0 alone is drawn"


@trap(GEOMS, "a geom group that does not exist", remedy="geom_groups")
def unknown_group(_: Path) -> str:
    model, data = _compiled(_ABOVE + _BALL)
    Renderer("raycast", model, data, ["eye"], SIZE, geom_groups=(1, 6))
    expect(False, "accepted")
    return ""


@trap(GEOMS, "visual meshes on a turned body without collision shapes near them, as in robosuite's hand")
def visual_geoms_of_turned_bodies(_: Path) -> str:
    shape = '<geom size=".02" pos=".3 0 0" group="3"/>'
    skin = '<geom name="skin" type="box" size=".05 .05 .05" pos="-.3 0 0" group="2" contype="0" conaffinity="0"/>'
    model, data = _compiled(f'{_FLOOR}{_ABOVE}<body pos="0 0 .1" euler="0 0 60"><freejoint/>{shape}{skin}</body>')
    found = _pixels(_Renderers(model, data).segment(model, data), model, "skin")
    expect(found > 30, f"the visual geom covers {found} pixels")
    return f"the visual geom covers {found} pixels"


@trap(GEOMS, "a camera inside a geom and another geom closer than the near plane, as at a wrist camera's housing")
def camera_inside(_: Path) -> str:
    housing = (
        '<geom name="housing" size=".1" pos="0 0 1"/><geom name="lens" type="box" size=".2 .2 .002" pos="0 0 .99"/>'
    )
    model, data = _compiled(
        _FLOOR + _ABOVE + housing + _BALL, '<statistic extent="2"/><visual><map znear=".01"/></visual>'
    )
    seen = _Renderers(model, data).segment(model, data)
    expect(set(np.unique(seen)) == {model.geom(name).id for name in ("floor", "ball")}, f"it sees {np.unique(seen)}")
    return "the camera sees the floor and the ball through its housing"


@trap(GEOMS, "a floor plane whose middle is 30 m away from the camera")
def distant_plane(_: Path) -> str:
    plane = '<geom name="ground" type="plane" size="0 0 1" pos="30 0 0"/>'
    model, data = _compiled(_ABOVE + plane + _BALL, '<statistic extent="2"/>')
    share = float(np.mean(_Renderers(model, data).segment(model, data) == model.geom("ground").id))
    expect(share > 0.5, f"the floor covers {share:.0%} of the picture")
    return f"the floor covers {share:.0%} of the picture"


@trap(GEOMS, "a pane of glass (alpha .2) over an object")
def pane_of_glass(_: Path) -> str:
    pane = '<geom name="pane" type="box" size=".5 .5 .01" pos="0 0 .5" rgba="0 1 0 .2"/>'
    model, data = _compiled(_FLOOR + _ABOVE + _BALL + pane)
    renderers = _Renderers(model, data)
    seen = renderers.segment(model, data)
    middle = renderers.render(data)[0][SIZE // 2, SIZE // 2]
    expect(bool((seen == model.geom("pane").id).any()), "the pane is not in the segmentation")
    expect(middle[0] > 100 and 20 < middle[1] < middle[0], f"the ball's red is {middle} behind the pane")
    return f"the ball shows through the pane: {middle.tolist()}"


@trap(GEOMS, "colors of a scene without a geom 'table', and of one whose 'table' has its own texture")
def table_of_their_own(_: Path) -> str:
    texture = '<texture name="wood" type="2d" builtin="flat" width="8" height="8" rgb1="1 0 0"/>'
    assets = f'<asset>{texture}<material name="wood" texture="wood"/></asset>'
    for name in ("table", "desk"):
        model, data = _compiled(f'{_ABOVE}<geom name="{name}" type="box" size="1 1 .01" material="wood"/>', assets)
        picture = Renderer("raycast", model, data, ["eye"], SIZE).render(data, "eye")
        expect(bool((picture[..., 0] > 150).all() and (picture[..., 1:] == 0).all()), f"{name}: {picture[0, 0]}")
        expect(len(np.unique(picture[..., 0])) == 1, f"{name} is drawn with the pattern of another table")
    return "both are drawn in the texture's mean color"


@trap(GEOMS, "an invisible material on a geom with a color of its own, and the reverse")
def invisible_material(_: Path) -> str:
    assets = '<asset><material name="none" rgba="1 1 1 0"/><material name="some" rgba="1 1 1 1"/></asset>'
    own = '<geom name="own" size=".1" pos="-.2 0 0" material="none" rgba="1 0 0 1"/>'
    gone = '<geom name="gone" size=".1" pos=".2 0 0" material="some" rgba="1 0 0 0"/>'
    model, data = _compiled(_FLOOR + _ABOVE + own + gone, assets)
    seen = _Renderers(model, data).segment(model, data)
    expect(_pixels(seen, model, "own") > 0 and _pixels(seen, model, "gone") == 0, f"it sees {np.unique(seen)}")
    return "the geom's own color counts"


@trap(GEOMS, "a flat mesh among those that are to be drawn as hulls")
def coplanar_hull(_: Path) -> str:
    rng = np.random.default_rng(0)
    stone = " ".join(f"{number:.4f}" for number in rng.normal(scale=0.1, size=600))
    meshes = f'<mesh name="decal" vertex="{_SHEET}" face="0 1 2 0 2 3" inertia="shell"/>'
    meshes += f'<mesh name="stone" vertex="{stone}"/>'
    decal = '<geom name="decal" type="mesh" mesh="decal" contype="0" conaffinity="0" mass="1"/>'
    decal = f'<body pos="0 0 .05"><joint type="slide" axis="1 0 0"/>{decal}</body>'
    body = '<body pos=".3 0 .1"><freejoint/><geom name="stone" type="mesh" mesh="stone"/></body>'
    model, data = _compiled(_FLOOR + _ABOVE + decal + body, f"<asset>{meshes}</asset>")
    seen = _Renderers(model, data, hulls=("decal", "stone")).segment(model, data)
    counts = [_pixels(seen, model, name) for name in ("decal", "stone")]
    expect(min(counts) > 40, f"the decal covers {counts[0]} pixels and the stone {counts[1]}")
    return f"the decal stays as it is ({counts[0]} pixels), the stone is a hull ({counts[1]} pixels)"


@trap(GEOMS, "a misspelt mesh name in hulls", remedy="'stone'")
def misspelt_hull(_: Path) -> str:
    stone = "0 0 0 1 0 0 0 1 0 0 0 1"
    model, _ = _compiled('<geom type="mesh" mesh="stone"/>', f'<asset><mesh name="stone" vertex="{stone}"/></asset>')
    with_hulls(model, ["stnoe"])
    expect(False, "accepted")
    return ""


@trap(GEOMS, "a misspelt camera name", remedy="'eye'")
def misspelt_camera(_: Path) -> str:
    model, data = _compiled(_ABOVE + _BALL)
    Renderer("auto", model, data, ["eey"], SIZE)
    expect(False, "accepted")
    return ""


@trap(GEOMS, "a rope (spatial tendon), which the ray caster cannot draw", remedy="renderer='egl'")
def rope(_: Path) -> str:
    ends = '<site name="a"/><body pos="0 0 .3"><freejoint/><geom size=".02"/><site name="b"/></body>'
    xml = f"{_FLOOR}{_ABOVE}{ends}"
    tendon = '<tendon><spatial><site site="a"/><site site="b"/></spatial></tendon>'
    model, data = _compiled(xml, tendon)
    Renderer("raycast", model, data, ["eye"], SIZE)
    expect(False, "drawn without the rope")
    return ""


@trap(GEOMS, "an orthographic camera, which the ray caster cannot draw", remedy="renderer='egl'")
def orthographic(_: Path) -> str:
    model, data = _compiled(_FLOOR + _BALL + '<camera name="eye" pos="0 0 1" projection="orthographic" fovy="1"/>')
    Renderer("raycast", model, data, ["eye"], SIZE)
    expect(False, "drawn with perspective")
    return ""


@trap(CHANGES, "a color that signals the goal, changed at run time, on a mesh that is drawn as a hull")
def color_of_the_moment(_: Path) -> str:
    stone = " ".join(f"{number:.4f}" for number in np.random.default_rng(0).normal(scale=0.1, size=600))
    body = '<body pos="0 0 .3"><freejoint/><geom name="stone" type="mesh" mesh="stone" rgba="1 0 0 1"/></body>'
    model, data = _compiled(_FLOOR + _ABOVE + body, f'<asset><mesh name="stone" vertex="{stone}"/></asset>')
    renderers = _Renderers(model, data, hulls=("stone",))
    first = renderers.render(data)
    model.geom("stone").rgba = (0, 1, 0, 1)
    for before, after in zip(first, renderers.render(data), strict=True):
        old, new = before[SIZE // 2, SIZE // 2], after[SIZE // 2, SIZE // 2]
        expect(bool(old[0] > 50 and new[0] < 20 < new[1]), f"red {old} stays {new}")
    model.geom("stone").rgba = (0, 1, 0, 0)
    expect(_pixels(renderers.segment(model, data), model, "stone") == 0, "an invisible geom is drawn")
    return "the mesh turns green, and vanishes with alpha 0"


@trap(CHANGES, "a geom that is resized and regrouped at run time, as domain randomization does")
def resized(_: Path) -> str:
    model, data = _compiled(f'{_FLOOR}{_ABOVE}<body pos="0 0 .1"><freejoint/>{_BALL}</body>')
    renderers = _Renderers(model, data)
    small = _pixels(renderers.segment(model, data), model, "ball")
    model.geom("ball").size[0] = 0.25
    large = _pixels(renderers.segment(model, data), model, "ball")
    expect(large > 4 * small, f"2.5 times the radius covers {large} pixels instead of {small}")
    model.geom("ball").group = 4
    expect(_pixels(renderers.segment(model, data), model, "ball") == 0, "a geom in a hidden group is drawn")
    return f"{small} pixels, {large} at 2.5 times the radius, none in group 4"


@trap(CHANGES, "a zoom at run time, and a lens whose principal point is off the middle")
def optics(_: Path) -> str:
    lens = 'resolution="48 48" sensorsize=".02 .02" focal=".02 .02" principal=".004 -.002"'
    model, data = _compiled(f'{_FLOOR}{_BALL}<camera name="eye" pos="0 0 1" {lens}/>')
    seen = _Renderers(model, data).segment(model, data)
    rows, columns = np.nonzero(seen == model.geom("ball").id)
    expect(abs(columns.mean() - 23.5) > 5, f"the ball is in column {columns.mean()}, row {rows.mean()}")
    model, data = _compiled(_FLOOR + _ABOVE + _BALL)
    renderers = _Renderers(model, data)
    wide = _pixels(renderers.segment(model, data), model, "ball")
    model.camera("eye").fovy = 20
    narrow = _pixels(renderers.segment(model, data), model, "ball")
    expect(narrow > 4 * wide, f"zooming in changes {wide} pixels to {narrow}")
    return f"the ball is in column {columns.mean():.0f}, row {rows.mean():.0f}; a zoom makes {wide} pixels {narrow}"


@trap(CHANGES, "a task that compiles a new model at reset, as robosuite does, drawn by the renderer of the first")
def new_model(_: Path) -> str:
    model, data = _compiled(_FLOOR + _ABOVE + _BALL)
    renderers = _Renderers(model, data)
    first = _pixels(renderers.segment(model, data), model, "ball")
    model, data = _compiled(_FLOOR + _ABOVE + '<geom size=".05" pos=".3 0 0"/>' + _BALL.replace(".1", ".3"))
    second = _pixels(renderers.segment(model, data), model, "ball")
    expect(second > 4 * first, f"the new model's ball, three times as large, covers {second} pixels instead of {first}")
    model, data = _compiled(_FLOOR + _BALL)
    try:
        renderers.segment(model, data)
    except UserError as error:
        expect("'eye'" in str(error), str(error))
    return f"the ball covers {first} pixels, then {second}; a model without the camera is refused"
