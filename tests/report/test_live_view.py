"""The rerun stream: what the loop did can be read from the file; a slow viewer costs steps, never time."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation, Source, Step
from vla_rl.report.live_view import LiveView

pytestmark = pytest.mark.skipif(find_spec("rerun") is None, reason="the extra viz is not installed")


def step(tick: int) -> Step:
    image = np.full((8, 8, 3), tick, np.uint8)
    observation = Observation({"front": image}, np.arange(2, dtype=np.float32), "wave", tick)
    action = np.full(2, tick, np.float32)
    return Step(observation, action, action, Source.HUMAN if tick > 3 else Source.POLICY, extras={"gate_reasons": 0})


@pytest.mark.slow
def test_a_recording_holds_what_the_loop_did(tmp_path: Path) -> None:
    file = tmp_path / "view" / "robot.rrd"
    with LiveView(str(file), "robot") as view:
        for tick in range(6):
            view.on_step(step(tick))
    assert view.dropped == 0
    content = file.read_bytes()
    assert content.startswith(b"RRF2")
    for entity in (b"camera/front", b"action/sent", b"who/human", b"loop/gate_reasons"):
        assert entity in content


def test_a_view_that_falls_behind_drops_steps(tmp_path: Path) -> None:
    view = LiveView(str(tmp_path / "robot.rrd"), "robot")
    for tick in range(20):
        view.on_step(step(tick))
    assert view.dropped == 12
    with view:
        pass


@pytest.mark.slow
def test_a_viewer_that_is_gone_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with LiveView("rerun+http://127.0.0.1:9/proxy", "robot") as view:
        view.on_step(step(0))
    assert "the live view did not show everything" in caplog.text


def test_a_viewer_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="cannot go to"):
        LiveView("nonsense://", "robot")
