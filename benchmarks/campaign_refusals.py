"""What the policy node has to refuse, and every execution strategy on it, for `benchmarks.campaign`.

A refusal counts if the node says no, or begins no attempt, and if not one command was seen.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.campaign_causes import CAUSES, only_disturbed
from benchmarks.campaign_course import Course
from benchmarks.campaign_wave import WAVE
from benchmarks.campaign_world import LIMITS, SETTINGS, rig_parameters
from robot_io.disturbances import Disturbance
from robot_io.faults import FAULTS
from robot_io.limits import RobotLimits
from vla_rl.core.errors import UserError

_INF, _NAN = float("inf"), float("nan")
_STRATEGY_TICKS = 60
_REFUSED_WITHIN_S = 10.0  # of the machine's time, which may be busy: free ticks take next to none
_DISCOVERED_AFTER_S = 4.0  # others discover a node a moment after the observer, later on a busy machine
_GONE_WITHIN_S = 60.0
_SLICE_S = 0.005


def refusals(course: Course, folder: Path) -> list[dict[str, Any]]:
    """Name -> refused or not, of everything."""
    found = [_configure_refused(course, name, changes) for name, changes in _settings(folder).items()]
    found += [_configure_beside(course, name) for name in ("rival", "twin")]
    found.append(_row("activate before configure", not course.rig.transition("activate")))
    # Whom the observer saw go, the node may still see for a moment.
    course.rig.wait(lambda: course.rig.transition("configure"), _GONE_WITHIN_S, "configure without the twin")
    found.append(_row("start of a node that is not active", not course.rig.trigger("start")[0]))
    course.rig.transition("activate")
    found += [_row(f"{name} without an attempt", not course.rig.trigger(name)[0]) for name in _LABELS]
    found.append(_row("a parameter while configured", bool(course.rig.set_parameters({"control_hz": 20.0}))))
    found += [_start_refused(course, name, prepare) for name, prepare in _STARTS.items()]
    found.append(_while_acting(course))
    course.unconfigure()
    return found


def strategies(course: Course, policies: dict[str, str]) -> list[dict[str, Any]]:
    """Each strategy acts for an attempt: ticks with a command that moves, and its end by a label."""
    found = []
    for name, policy in policies.items():
        changes = {
            "policy": policy,
            "strategy": name,
            "overrides": [*rig_parameters()["overrides"], *_EXTRA.get(name, ())],
        }
        try:
            course.configure(changes)
            course.begin_attempt()
            course.run_ticks(_STRATEGY_TICKS)
            commands = np.stack([sample.command for sample in course.world.samples[-_STRATEGY_TICKS:]])
            moving = float((np.diff(commands, axis=0) != 0).any(axis=1).mean())
            course.while_ticking(lambda: course.rig.trigger("success"))
            course.wait_standing_by()
            found.append({"strategy": name, "ran": True, "moving": moving, "why_not": ""})
        except UserError as error:
            course.recover()
            found.append({"strategy": name, "ran": False, "moving": 0.0, "why_not": str(error)})
        course.unconfigure()
        course.rig.set_parameters({"strategy": "", "policy": WAVE, "overrides": rig_parameters()["overrides"]})
    return found


_LABELS = ("success", "failure", "discard")
_EXTRA = dict.fromkeys(("training_time_prefix", "xiaomi"), ("execution.max_prefix_ticks=4",))


def _settings(folder: Path) -> dict[str, dict[str, object]]:
    """Name -> parameters that configure has to refuse."""
    two = RobotLimits(low=LIMITS.low[:2], high=LIMITS.high[:2], max_velocity=LIMITS.max_velocity[:2])
    limits = {
        "limits of two joints": two,
        "infinite limits": replace(LIMITS, high=(_INF,) * 3),
        "an infinite velocity": replace(LIMITS, max_velocity=(_INF,) * 3),
        "crossed limits": replace(LIMITS, low=(2.0,) * 3),
        "a watchdog of NaN ms": replace(LIMITS, max_observation_age_ms=_NAN),
        "a stop after infinite ms": replace(LIMITS, stop_after_ms=_INF),
        "a joint monitor of NaN ms": replace(LIMITS, joint_monitor=replace(LIMITS.joint_monitor, beyond_after_ms=_NAN)),
    }
    asked: dict[str, dict[str, object]] = {}
    for number, (name, wrong) in enumerate(limits.items()):
        file = folder / f"wrong-{number}.yaml"
        file.write_text(yaml.safe_dump(json.loads(json.dumps(asdict(wrong)))))
        asked[name] = {"limits": str(file)}
    asked["no limits"] = {"limits": ""}
    asked["limits that are no file"] = {"limits": str(folder / "nowhere.yaml")}
    asked["2.5 times the policy's rate"] = {"control_hz": 50.0}
    asked["half the policy's rate"] = {"control_hz": 10.0}
    for name in ("a2c2", "rtc", "rtc_identity", "training_time_prefix", "xiaomi", "vlash"):
        asked[f"{name} with a policy that does not support it"] = {"strategy": name}
    asked["a strategy that does not exist"] = {"strategy": "guess"}
    asked["a joint too few"] = {"joints": ["shoulder", "elbow"]}
    asked["the same joint twice"] = {"joints": ["shoulder", "shoulder", "wrist"]}
    asked["no policy"] = {"policy": ""}
    asked["a policy that is no folder"] = {"policy": str(folder / "nowhere")}
    asked["a setting that does not exist"] = {"overrides": ["execution.hold_tick=3"]}
    return asked


def _configure_refused(course: Course, name: str, changes: dict[str, object]) -> dict[str, Any]:
    rig, before = course.rig, rig_parameters()
    before["limits"] = str(rig.limits)
    seen = len(course.world.samples)
    refused = bool(rig.set_parameters(changes)) or not rig.transition("configure")
    if not refused:
        course.unconfigure()
    rig.set_parameters({key: before.get(key, _DEFAULTS.get(key, "")) for key in changes})
    return _row(name, refused and len(course.world.samples) == seen)


_DEFAULTS: dict[str, object] = {"control_hz": 0.0}


def _configure_beside(course: Course, name: str) -> dict[str, Any]:
    with CAUSES[name](course):
        time.sleep(_DISCOVERED_AFTER_S)
        refused = not course.rig.transition("configure")
    if not refused:
        course.unconfigure()
    return _row(f"configure beside a {name}", refused)


def _start_refused(course: Course, name: str, prepare: Callable[[Course], Any]) -> dict[str, Any]:
    """A start in a world in which no attempt may begin."""
    rig, world = course.rig, course.world
    with prepare(course):
        course.free_ticks(20)
        world.samples.clear()
        rig.trigger("start")
        until_s = time.monotonic() + _REFUSED_WITHIN_S
        while not (rig.stopped() or world.samples) and time.monotonic() < until_s:
            course.free_ticks(1)
            time.sleep(_SLICE_S)
    refused = bool(rig.stopped()) and not world.samples
    course.free_ticks(10)
    quiet = not world.samples
    course.recover()
    return _row(name, refused and quiet)


def _while_acting(course: Course) -> dict[str, Any]:
    course.begin_attempt()
    answers: list[bool] = []
    course.while_ticking(lambda: answers.append(course.rig.trigger("start")[0]))
    course.while_ticking(lambda: course.rig.trigger("failure"))
    course.wait_standing_by()
    return _row("a start during an attempt", answers == [False])


@contextlib.contextmanager
def _disturbed(course: Course, fault: str) -> Iterator[None]:
    course.world.disturbance = FAULTS[fault].disturbance(course.random, LIMITS)
    with CAUSES.get(fault, only_disturbed)(course):
        yield
    course.world.disturbance = Disturbance(course.random, LIMITS)


@contextlib.contextmanager
def _lying_outside(course: Course) -> Iterator[None]:
    with course.world.moved_to(1.5):
        yield


@contextlib.contextmanager
def _silent_hand(course: Course) -> Iterator[None]:
    with _disturbed(course, "deadman_silent"):
        _wait(course, 1.5e-3 * SETTINGS.deadman_timeout_ms)
        yield


@contextlib.contextmanager
def _discovered(course: Course, fault: str) -> Iterator[None]:
    with _disturbed(course, fault):
        _wait(course, _DISCOVERED_AFTER_S)
        yield


def _wait(course: Course, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        course.free_ticks(1)


def _starting(fault: str) -> Callable[[Course], Any]:
    return lambda course: _disturbed(course, fault)


def _beside(fault: str) -> Callable[[Course], Any]:
    return lambda course: _discovered(course, fault)


_STARTS: dict[str, Callable[[Course], Any]] = {
    "a start outside the limits": _lying_outside,
    "a start without a camera": _starting("camera_silent"),
    "a start with pictures of 0 x 0": _starting("pictures_empty"),
    "a start with pictures of 1 x 1": _starting("pictures_tiny"),
    "a start without joints": _starting("joints_silent"),
    "a start without one driver": _starting("driver_silent"),
    "a start with a joint at NaN": _starting("joints_nan"),
    "a start with a joint that reads outside": _starting("joint_beyond"),
    "a start beside a rival": _beside("rival"),
    "a start beside a twin": _beside("twin"),
    "a start with the emergency stop pressed": _starting("estop_pressed"),
    "a start while nobody publishes the emergency stop": _starting("estop_gone"),
    "a start with the emergency stop called": _starting("estop_called"),
    "a start with the dead-man let go": _starting("deadman_released"),
    "a start while the dead-man is silent": _silent_hand,
    "a start beside a controller that is not active": _starting("controller_idle"),
    "a start without the controller manager": _starting("manager_gone"),
}


def _row(name: str, refused: bool) -> dict[str, Any]:
    return {"refusal": name, "refused": refused}
