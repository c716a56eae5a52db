"""The comparison of the renderers on scenes of other projects."""

import argparse

import pytest

from benchmarks import foreign_scenes
from sim.egl import why_egl_does_not_load
from vla_rl.core.errors import UserError


def test_renderers_agree_on_a_scene_whose_cameras_move(monkeypatch):
    pytest.importorskip("dm_control")
    if why_egl_does_not_load():
        pytest.skip("EGL does not load")
    monkeypatch.setitem(foreign_scenes.SCENES, "missing", (foreign_scenes.SCENES["dm_control humanoid"][0], "no_such"))
    options = argparse.Namespace(scenes=["dm_control humanoid", "missing"], size=32)
    result = foreign_scenes.run(options)
    assert 0.0 <= result["raycast_egl_disagreement_max"] <= 0.01
    assert {row["camera"]: row["moves"] for row in result["rows"]}["egocentric"]
    assert result["not_installed"] == {"missing": "no_such"}
    assert "dm_control humanoid | 3 |" in foreign_scenes.table(result)


def test_unknown_scene_is_refused():
    with pytest.raises(UserError, match="--scenes"):
        foreign_scenes.run(argparse.Namespace(scenes=["robosuite lift"], size=32))
