"""The success of a task of other people, as its info, its reward and a declared comparison report it."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_traps.tasks import Dot
from benchmarks.data_traps.traps import expect, trap
from robot_io.env_interface import EnvDeclaration
from robot_io.env_robot import EnvRobot
from vla_rl.acting.task_config import OneTask
from vla_rl.core.config import load_config

SUCCESS = "success of a task"


class Ending(Dot):
    """Ends at its third step with given values; the steps before have the reward and info of ``before``."""

    def __init__(self, ends: tuple[Any, Any, Any], before: tuple[Any, Any] = (0.0, {})) -> None:
        super().__init__()
        self.ends, self.before, self.count = ends, before, 0

    def step(self, _: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        self.count += 1
        if self.count < 3:
            return self.observe(), self.before[0], False, False, self.before[1]
        reward, terminated, info = self.ends
        return self.observe(), reward, terminated, terminated is not True, info


def _success(ends: tuple[Any, Any, Any], success: str = "auto", before: tuple[Any, Any] = (0.0, {})) -> bool | None:
    robot = EnvRobot(Ending(ends, before), declared=EnvDeclaration(success=success))
    robot.reset(0)
    for _ in range(3):
        robot.write(np.zeros(2, np.float32))
    return robot.success


@trap(SUCCESS, "success=coverage where coverage ends at 0.27", remedy="'task.declare.success=coverage>=NUMBER'")
def _fraction(_: Path) -> str:
    return f"success is {_success((0.0, False, {'coverage': 0.27}), 'coverage')}"


@trap(SUCCESS, "info['success'] is -1, an error code", remedy="task.declare.success=")
def _negative(_: Path) -> str:
    return f"success is {_success((0.0, False, {'success': -1}))}"


@trap(SUCCESS, "info['is_success'] is NaN", remedy="task.declare.success=")
def _not_a_number(_: Path) -> str:
    return f"success is {_success((0.0, True, {'is_success': np.nan}))}"


@trap(SUCCESS, "info['success'] is the text 'False'", remedy="task.declare.success=")
def _text(_: Path) -> str:
    return f"success is {_success((0.0, True, {'success': 'False'}))}"


@trap(SUCCESS, "info['success'] is None at the end of an episode with a reward", remedy="task.declare.success=")
def _none(_: Path) -> str:
    return f"success is {_success((1.0, True, {'success': None}))}"


@trap(SUCCESS, "info['success'] has one element per agent", remedy="task.declare.success=")
def _per_agent(_: Path) -> str:
    return f"success is {_success((0.0, True, {'success': np.array([True, False])}))}"


@trap(SUCCESS, "thresholds on nested numbers, elements, distances and the reward, and every kind of yes")
def _thresholds(_: Path) -> str:
    info = {"score": {"coverage": 0.96}, "stages": np.array([4, 0]), "error": np.float32(0.01)}
    rules = {
        "score.coverage>=0.95": True,
        "score.coverage > 0.96": False,
        "stages.0==4": True,
        "stages.1!=0": False,
        "error<.02": True,
        "error<=-1e-3": False,
        "reward>=2": True,
        "terminated": False,
    }
    found = {rule: _success((2.0, False, info), rule) for rule in rules}
    expect(found == rules, str(found))
    for value in (True, np.bool_(True), 1, 1.0, np.float32(1), np.array(1), np.array([1.0]), np.array([[True]])):
        expect(_success((0.0, False, {"success": value})) is True, repr(value))
    return str(found)


@trap(SUCCESS, "a comparison with a misspelt sign", remedy="'task.declare.success=coverage>=0.95'")
def _misspelt(_: Path) -> str:
    return str(load_config(OneTask, overrides=["task.declare.success=coverage=>0.95"]))


@trap(SUCCESS, "a reward of 1 per step until the robot falls, as CartPole has", remedy="task.declare.success=KEY")
def _reward_per_step(_: Path) -> str:
    return f"success is {_success((1.0, True, {}), before=(1.0, {}))}"


@trap(SUCCESS, "a success that the info reports at all steps but the last", remedy="task.declare.success=KEY")
def _missing_at_the_end(_: Path) -> str:
    return f"success is {_success((0.0, False, {}), before=(0.0, {'is_success': True}))}"


@trap(SUCCESS, "is_success and success contradict each other", remedy="task.declare.success=is_success")
def _two_records(_: Path) -> str:
    return f"success is {_success((0.0, True, {'is_success': True, 'success': False}))}"


@trap(SUCCESS, "an autoreset wrapper moved the success to final_info")
def _final_info(_: Path) -> str:
    found = [
        _success((0.0, True, {"final_info": final, "success": False}))
        for final in ({"success": True}, np.array([{"success": True}]), {"success": np.array([True])})
    ]
    expect(found == [True, True, True], str(found))
    return str(found)


@trap(SUCCESS, "terminated is a dict per agent, which is true even if all agents go on", remedy="one agent")
def _agents(_: Path) -> str:
    return f"success is {_success((0.0, {'arm': False, '__all__': False}, {}))}"
