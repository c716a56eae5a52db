"""Recorded attempts, played again in the simulator: when a detector ends them, and what it says of a changed scene.

The commands of an attempt give the same pictures again. After a success the policy plays on, as it would on a robot.
A run of ticks that count ends an attempt (`vla_rl.outcomes.deployed`). *found*: the run ends at the first tick of
success, or a few ticks later. *cut short*: it ends earlier, or in a failure. In a changed scene the detector sees the
ends of the same attempts by a moved camera, in other light, or with other colors. It was fitted on unchanged ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.detector_fits import fit, in_orders, scores, share
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array, Observation

if TYPE_CHECKING:
    from vla_rl.outcomes.ensemble import PolicyFeatures, SuccessDetector, Track

ANSWERS = 80
HELD_OUT_SEED = 2
"""From this seed on, runs are reported. The rule of the run was chosen on the earlier ones."""
_PLAYED_ON = 20  # ticks after a success
_CHUNK = 6  # actions of a plan that are executed, as in practice
_NEAR = 10  # ticks around a success that all have a label in the ablation
_SOON, _LATER = 5, 20  # ticks
_EARLIER = ("ends", "all above 0.9", 8)  # the rule before this one
_RULES = (_EARLIER, *(("ends", "median", ticks) for ticks in (4, 8, 12, 16)))
_RULES += tuple(("every tick", "median", ticks) for ticks in (2, 4, 8))


@dataclass(frozen=True, eq=False)
class Replay:
    """An attempt that was played again.

    Attributes:
        features: float32 [N, F], of every observation.
        holds: bool [N], whether the task is done at this observation.
        end: Observation at which the recording ends.
        states: States of the simulator at the observations of the window that ends there.
        task: Task sentence.
    """

    features: Float32Array
    holds: NDArray[np.bool_]
    end: int
    states: list[NDArray[np.float64]]
    task: str

    @property
    def success(self) -> bool:
        """Whether the recording ends with success."""
        return bool(self.holds[self.end])

    @property
    def track(self) -> "Track":
        """What was recorded."""
        from vla_rl.outcomes.ensemble import Track

        return Track(self.features[: self.end + 1], self.success)


@dataclass(frozen=True, eq=False)
class Replayed:
    """All attempts of the first round of a run, and the demonstrations.

    Attributes:
        env: Environment of the run.
        features: Policy whose features are read.
    """

    demonstrations: "list[Track]"
    attempts: list[Replay]
    env: Any
    features: "PolicyFeatures"


def replayed(base: Path) -> Replayed:
    """Play the attempts of a run's first round again.

    Raises:
        UserError: If an attempt ends in another state than recorded.
    """
    import vla_rl as vla
    from vla_rl.outcomes.ensemble import PolicyFeatures

    run = vla.open_run(base)
    env, policy, features = run.env.gym.unwrapped, run.policy(0), PolicyFeatures(run.policies[0])
    demonstrations = [features.track(run.episodes.read(name)) for name in run.episodes.ids() if name.startswith("demo")]
    names = [name for name in run.episodes.ids() if name.startswith("round001")]
    attempts = [_replay(run.episodes.read(name), env, policy, features) for name in names]
    return Replayed(demonstrations, attempts, env, features)


def _replay(episode: Any, env: Any, policy: Any, features: "PolicyFeatures") -> Replay:
    raw, _ = env.reset(seed=episode.seed)
    observations, holds, states = [_seen(raw, episode.task)], [False], [env.get_state()]
    end = len(episode)

    def play(action: Float32Array) -> None:
        raw, *_ = env.step(action)
        observations.append(_seen(raw, episode.task))
        holds.append(env.is_success())
        states.append(env.get_state())

    for action in episode.action_sent:
        play(action)
    if holds[end] != episode.success or not np.array_equal(observations[end].state, episode.final_state):
        raise UserError(f"{episode.episode_id} ends otherwise than it was recorded; play the run anew")
    while holds[end] and len(observations) <= end + _PLAYED_ON:
        for action in policy.infer(observations[-1]).actions[:_CHUNK]:
            play(action)
    window = [states[max(end - offset, 0)] for offset in (4, 2, 0)]
    return Replay(features.of(observations), np.array(holds), end, window, episode.task)


def _seen(raw: Mapping[str, Any], task: str) -> Observation:
    return Observation(dict(raw["pixels"]), raw["agent_pos"], task, 0)


def stops(played: Replayed) -> list[dict[str, Any]]:
    """Return per order of the episodes and rule how many attempts a run ends in time, late, and too early."""
    rows = []
    for order, mixed in in_orders(played.attempts):
        known, rest = mixed[:ANSWERS], mixed[ANSWERS:]
        detectors = {
            "ends": fit([*played.demonstrations, *(each.track for each in known)], played.features, order),
            "every tick": _fit_ticks(played.demonstrations, known, played.features, order),
        }
        said = {name: [_members(detector, each) for each in rest] for name, detector in detectors.items()}
        for labels, vote, ticks in _RULES:
            delays = [_stop(members, novelty, vote, ticks) for members, novelty in said[labels]]
            rows.append({"order": order, "labels": labels, "vote": vote, "ticks": ticks, **_stop_scores(delays, rest)})
    return rows


def _fit_ticks(
    demonstrations: "Sequence[Track]", known: Sequence[Replay], features: "PolicyFeatures", seed: int
) -> "SuccessDetector":
    """Fit a detector on the truth at every tick near a success, and after it. No person could answer so."""
    from vla_rl.outcomes.ensemble import SuccessDetector, Track
    from vla_rl.outcomes.judge_network import Labeled, train

    random = np.random.default_rng(seed)
    rows, success, episode = [], [], []
    pairs = [(track.features, np.arange(len(track.features)) == len(track.features) - 1) for track in demonstrations]
    pairs += [(each.features, each.holds) for each in known]
    for number, (found, holds) in enumerate(pairs):
        first = int(np.argmax(holds)) if holds.any() else len(holds)
        near = np.arange(max(first - _NEAR, 0), len(holds))
        ticks = np.concatenate([near, random.integers(0, max(first - _NEAR, 1), 2 * _NEAR)])
        rows.append(Track(found, None).rows(ticks.tolist()))
        success.append(holds[ticks])
        episode.append(np.full(len(ticks), number))
    labels = np.concatenate(success)
    data = Labeled(np.concatenate(rows), labels, labels, np.concatenate(episode))
    network, errors = train(data, [bool(holds.any()) for _, holds in pairs], seed)
    return SuccessDetector(network, features, "every tick", errors)


def _members(detector: "SuccessDetector", attempt: Replay) -> tuple[Float32Array, Float32Array]:
    from vla_rl.outcomes.ensemble import Track

    rows = Track(attempt.features, None).rows(range(len(attempt.features)))
    return detector.members(rows)


def _stop(members: Float32Array, novelty: Float32Array, vote: str, ticks: int) -> int | None:
    """Return the observation at which a run of ticks ends; None: there is no run."""
    from vla_rl.outcomes.deployed import counts

    good = counts(members, novelty) if vote == "median" else (members.min(axis=-1) > 0.9) & (novelty <= 1)
    runs = np.flatnonzero(np.convolve(good, np.ones(ticks))[: len(good)] >= ticks)
    return int(runs[0]) if len(runs) else None


def _stop_scores(ends: Sequence[int | None], attempts: Sequence[Replay]) -> dict[str, float]:
    pairs = list(zip(ends, attempts, strict=True))
    late = [np.inf if stop is None else stop - each.end for stop, each in pairs if each.success]
    cut = [stop is not None and not (each.success and stop >= each.end) for stop, each in pairs]
    within = {ticks: share(np.array([0 <= delay <= ticks for delay in late])) for ticks in (_SOON, _LATER)}
    return {"found_soon": within[_SOON], "found_later": within[_LATER], "cut_short": share(np.array(cut))}


def shifts(played: Replayed) -> list[dict[str, Any]]:
    """Return how the ends of the other attempts are judged, per changed scene and order of the episodes.

    Each detector judges with and without the residual as a measure of novelty.
    """
    fitted = []
    for order, mixed in in_orders(played.attempts):
        known = [*played.demonstrations, *(each.track for each in mixed[:ANSWERS])]
        fitted.append((order, mixed[ANSWERS:], fit(known, played.features, order)))
    rows = []
    for name, change in SHIFTS.items():
        with change(played.env) as repaint:
            tracks = {id(each): _seen_again(each, played, repaint) for each in played.attempts}
        for order, rest, detector in fitted:
            ends, limit = [tracks[id(each)] for each in rest], detector._network.residual_limit
            for residual in (True, False):
                before = limit.clone()
                limit.copy_(before if residual else before * np.inf)
                rows.append({"shift": name, "order": order, "residual": residual, **scores(detector, ends)})
                limit.copy_(before)
    return rows


Repaint = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


def _seen_again(attempt: Replay, played: Replayed, repaint: Repaint) -> "Track":
    """Return the window at an attempt's end as it looks now."""
    from vla_rl.outcomes.ensemble import Track

    observations = []
    for state in attempt.states:
        seen = _seen(played.env.set_state(state), attempt.task)
        images = {camera: repaint(image) for camera, image in seen.images.items()}
        observations.append(Observation(images, seen.state, seen.task, 0))
    return Track(played.features.of(observations)[[0, 0, 1, 1, 2]], attempt.success)


def _as_is(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image


@contextmanager
def _unchanged(env: Any) -> Iterator[Repaint]:
    del env
    yield _as_is


def _turned(camera: str, pixels: float = 0.0, roll_deg: float = 0.0) -> Callable[[Any], Any]:
    """Return the change that turns a camera sideways until the picture moves by pixels, or around its own axis."""

    @contextmanager
    def change(env: Any) -> Iterator[Repaint]:
        import mujoco

        found = env.model.camera(camera)
        before = found.quat.copy()
        focal = 0.5 * env.image_size / np.tan(np.deg2rad(float(found.fovy[0])) / 2)  # pixels
        for axis, angle in (((0.0, 1.0, 0.0), np.arctan(pixels / focal)), ((0.0, 0.0, 1.0), np.deg2rad(roll_deg))):
            turn = np.empty(4)
            mujoco.mju_axisAngle2Quat(turn, np.array(axis), float(angle))
            mujoco.mju_mulQuat(found.quat, found.quat.copy(), turn)
        yield _as_is
        found.quat[:] = before

    return change


def _exposed(gain: Sequence[float]) -> Callable[[Any], Any]:
    """Return the change that multiplies red, green and blue of every picture."""

    @contextmanager
    def change(env: Any) -> Iterator[Repaint]:
        del env
        yield lambda image: np.clip(image * np.array(gain), 0, 255).astype(np.uint8)

    return change


def _painted(**colors: Sequence[float]) -> Callable[[Any], Any]:
    """Return the change that gives all parts of objects another color."""

    @contextmanager
    def change(env: Any) -> Iterator[Repaint]:
        model, before = env.model, env.model.geom_rgba.copy()
        for name, color in colors.items():
            model.geom_rgba[model.geom_bodyid == model.body(name).id, :3] = color
        yield _as_is
        model.geom_rgba[:] = before

    return change


SHIFTS: dict[str, Callable[[Any], Any]] = {
    "nothing": _unchanged,
    "front camera, 4 pixels": _turned("front", pixels=4),
    "top camera, 4 pixels": _turned("top", pixels=4),
    "front camera, 10 degrees": _turned("front", roll_deg=10),
    "top camera, 10 degrees": _turned("top", roll_deg=10),
    "light, 30 % less": _exposed((0.7, 0.7, 0.7)),
    "light, 30 % more": _exposed((1.3, 1.3, 1.3)),
    "light, warmer": _exposed((1.0, 0.9, 0.7)),
    "peg blue": _painted(peg=(0.1, 0.2, 0.9)),
    "socket yellow": _painted(socket=(0.9, 0.8, 0.1)),
}
"""Name -> context in which an environment looks otherwise; it gives what repaints the pictures."""


def figures(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the headline figures of the cells that there are: stops of the held-out seeds, and all changed scenes."""
    from vla_rl.outcomes.deployed import RUN_TICKS

    found: dict[str, float] = {}
    held_out = [cell for cell in cells if cell["part"] == "stops" and cell["seed"] >= HELD_OUT_SEED]
    rows = [row for cell in held_out for row in cell["rows"] if _rule(row) == ("ends", "median", RUN_TICKS)]
    names = {"found_soon": f"found_within_{_SOON}_ticks_share", "found_later": f"found_within_{_LATER}_ticks_share"}
    for name, published in {**names, "cut_short": "cut_short_share"}.items() if rows else ():
        found[published] = float(np.mean([row[name] for row in rows]))
    changed = [row for row in _shift_rows(cells) if row["residual"] and row["shift"] != "nothing"]
    if changed:
        found["shifted_false_success_percent"] = _pooled_percent(changed)
        found["shifted_asked_percent"] = 100 * float(np.mean([row["asked"] for row in changed]))
    return found


def _rule(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["labels"], row["vote"], row["ticks"]


def _shift_rows(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for cell in cells if cell["part"] == "shifts" for row in cell["rows"]]


def _pooled_percent(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how many of all sure successes are false, percent."""
    false = sum(row["false_success_asking"] * row["sure_successes"] for row in rows)
    return 100 * false / max(sum(row["sure_successes"] for row in rows), 1)


def stop_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of stops; none without cells."""
    measured = [cell for cell in cells if cell["part"] == "stops"]
    if not measured:
        return []
    groups = [[cell for cell in measured if (cell["seed"] >= HELD_OUT_SEED) is late] for late in (False, True)]
    titles = [f"seed {', '.join(str(cell['seed']) for cell in group) or '-'}" for group in groups]
    lines = [
        "",
        f"| labels, vote, ticks in a row | {titles[0]}: found within {_SOON}, {_LATER} ticks; cut short "
        f"| {titles[1]}, held out: found within {_SOON}, {_LATER} ticks; cut short |",
        "|---|---|---|",
    ]
    for labels, vote, ticks in _RULES:
        columns = []
        for group in groups:
            rows = [row for cell in group for row in cell["rows"] if _rule(row) == (labels, vote, ticks)]
            means = [f"{np.mean([row[name] for row in rows]):.1%}" for name in _SCORES] if rows else ["", "", ""]
            columns.append(f"{means[0]}, {means[1]}; {means[2]}")
        lines.append(f"| {labels}, {vote}, {ticks} | {' | '.join(columns)} |")
    return lines


_SCORES = ("found_soon", "found_later", "cut_short")


def shift_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of changed scenes; none without cells."""
    rows = _shift_rows(cells)
    if not rows:
        return []
    lines = [
        "",
        "| what changed | false successes, failures; asked | without the residual: false successes, failures; asked |",
        "|---|---|---|",
    ]
    for name in SHIFTS:
        columns = []
        for residual in (True, False):
            some = [row for row in rows if row["shift"] == name and row["residual"] is residual]
            means = {key: float(np.mean([row[key] for row in some])) for key in ("false_failure_asking", "asked")}
            columns.append(f"{_pooled_percent(some):.1f}%, {means['false_failure_asking']:.1%}; {means['asked']:.1%}")
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines
