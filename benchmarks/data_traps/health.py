"""Data that cannot be right: the health check finds each fault in a set of smooth episodes, and nothing else in it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_traps.traps import expect, trap
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.health import check_episodes

_KIND = "health check"
_STEPS, _HZ, _EPISODES = 60, 20.0, 5
_NAMES = Dimensions(("pan", "lift", "grip"))


def _episode(number: int) -> Episode:
    """An arm on a smooth path, two cameras that see it, a gripper that closes; actions are the state 2 steps later."""
    random = np.random.default_rng(number)
    time = np.arange(_STEPS + 2) / _STEPS
    goal = random.uniform(0.5, 1.5, size=2)
    path = np.stack([goal[0] * np.sin(3 * time), goal[1] * time**2, (time > 0.5).astype(float)], axis=1)
    state = (path[:_STEPS] + random.normal(scale=1e-4, size=(_STEPS, 3))).astype(np.float32)
    action = path[2:].astype(np.float32)
    columns = np.linspace(0, 15, _STEPS).astype(int)
    images = {}
    for camera, color in (("front", (200, 120, 60)), ("wrist", (40, 90, 160))):
        pictures = np.full((_STEPS, 16, 16, 3), color, np.uint8) + random.integers(0, 20, (_STEPS, 16, 16, 3), np.uint8)
        pictures[np.arange(_STEPS), 4:8, columns] = 255
        images[camera] = pictures.astype(np.uint8)
    return Episode(
        episode_id=f"good-{number}",
        images=images,
        state=state,
        action_policy=action,
        action_sent=action,
        source=np.full(_STEPS, Source.DEMO, np.uint8),
        task="put it in",
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
        seed=number,
        control_hz=_HZ,
        env_id="arm",
        extras={"captured_ns.state": (np.arange(_STEPS) * 1e9 / _HZ).astype(np.int64)},
        state_dimensions=_NAMES,
        action_dimensions=_NAMES,
    )


def _cut(episode: Episode, steps: int) -> Episode:
    columns = ("state", "action_policy", "action_sent", "source")
    cut: dict[str, Any] = {name: getattr(episode, name)[:steps] for name in columns}
    for group in ("images", "extras"):
        cut[group] = {name: column[:steps] for name, column in getattr(episode, group).items()}
    return replace(episode, **cut)


def _freeze(episode: Episode) -> Episode:
    pictures = episode.images["front"].copy()
    pictures[20:50] = pictures[20]
    return replace(episode, images={**episode.images, "front": pictures})


def _blacken(episode: Episode) -> Episode:
    return replace(episode, images={**episode.images, "wrist": np.zeros_like(episode.images["wrist"])})


def _swap(episode: Episode) -> Episode:
    return replace(episode, images={"front": episode.images["wrist"], "wrist": episode.images["front"]})


def _stamp(times_s: np.ndarray) -> Callable[[Episode], Episode]:
    return lambda episode: replace(episode, extras={"captured_ns.state": (times_s * 1e9).astype(np.int64)})


def _jump(episode: Episode) -> Episode:
    state = episode.state.copy()
    state[30:32, 1] += 3
    return replace(episode, state=state)


def _acted(action: Callable[[Episode], np.ndarray]) -> Callable[[Episode], Episode]:
    return lambda episode: replace(episode, action_sent=action(episode), action_policy=action(episode))


def _delayed(episode: Episode) -> np.ndarray:
    return np.concatenate([episode.state[:1]] * 3 + [episode.state[:-3]])


def _column(number: int, values: np.ndarray | float) -> Callable[[Episode], Episode]:
    def change(episode: Episode) -> Episode:
        state = episode.state.copy()
        state[:, number] = values
        return replace(episode, state=state)

    return change


_UNNAMED = {"state_dimensions": Dimensions(), "action_dimensions": Dimensions()}
_OTHER = {"action_dimensions": Dimensions(("a", "b", "c"))}
_BACK = np.concatenate([np.arange(30), np.arange(20, 50)]) / _HZ
_JITTER = 1 + 1e-4 * np.random.default_rng(0).normal(size=_STEPS)
# Input, change of the last episode, change of all episodes, check that has to speak, part of its sentence.
_FAULTS: tuple[tuple[str, Any, Any, str, str], ...] = (
    ("one camera stands still for 1.5 s while the arm moves", _freeze, None, "frozen video", "1.5 s"),
    ("one camera is black in one episode", _blacken, None, "black video", "wrist"),
    ("two cameras are swapped in one episode", _swap, None, "camera swap", "front and wrist"),
    ("stamps at 10 Hz in episodes of 20 Hz", _stamp(np.arange(_STEPS) / 10), None, "rate", "10 Hz"),
    ("stamps that go back by half a second", _stamp(_BACK), None, "times", "go back"),
    ("one episode of one step", lambda episode: _cut(episode, 1), None, "length", "1 steps"),
    ("one episode stands twice under two ids", lambda _: _episode(0), None, "duplicates", "2 episodes"),
    ("one joint jumps by 3 rad and back", _jump, None, "jump", "state lift"),
    ("the actions repeat the states of 3 steps before", None, _acted(_delayed), "order", "3 steps before"),
    ("the actions are the states of the same step", None, _acted(lambda each: each.state), "order", "equals the state"),
    ("a joint jitters by 1e-4 around 1", None, _column(1, _JITTER), "nearly constant", "state lift"),
    ("a gripper never moves", None, _column(2, 0.5), "constant", "state grip is 0.5"),
    ("a gripper is closed in 59 of 60 steps", None, _column(2, np.arange(_STEPS) > 0), "saturated", "98 %"),
    ("one episode at another rate", lambda each: replace(each, control_hz=10.0), None, "control rate", "1 x 10 Hz"),
    ("one episode without its sentence", lambda each: replace(each, task=" "), None, "sentence", "empty"),
    ("one sentence in another spelling", lambda each: replace(each, task="Put it  in."), None, "sentence", "2 ways"),
    ("one episode without an outcome", lambda each: replace(each, success=None), None, "outcome", "1 of 5"),
    ("one episode without names", lambda each: replace(each, **_UNNAMED), None, "names", "1 of 5"),
    ("one episode of another robot", lambda each: replace(each, **_OTHER), None, "names of the action", "1 x a, b, c"),
    ("sound data", None, None, "", "no problem found"),
)


def _register(sentence: str, change_last: Any, change_all: Any, check: str, part: str) -> None:
    @trap(_KIND, sentence)
    def find(folder: Path) -> str:
        del folder
        episodes = [_episode(number) for number in range(_EPISODES)]
        if change_all:
            episodes = [change_all(each) for each in episodes]
        if change_last:
            episodes[-1] = replace(change_last(episodes[-1]), episode_id="changed")
        report = check_episodes(episodes)
        found = [each for each in report.findings if each.check != "rate" or check == "rate"]
        expect({each.check for each in found} <= {check}, f"found {[(each.check, each.detail) for each in found]}")
        text = found[0].detail if found else report.table()
        expect(part in text, f"{part!r} is not in {text!r}")
        if change_last and check != "duplicates":
            expect("changed" in found[0].episodes, f"concerned are {found[0].episodes}")
        expect(bool(report.picture()) == ("video" in check or "camera" in check), "a picture of what is suspicious")
        return report.table()


for _fault in _FAULTS:
    _register(*_fault)
