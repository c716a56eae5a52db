"""What the six operators amount to: length, success and pauses of their demonstrations, and a picture of each."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import sim
from benchmarks.pictures.plotting import HUMAN, MUTED, POLICY, axis_labels, new_figure, plain, save_png, title
from sim.operators import OPERATORS, Operator
from sim.registration import ScriptedExpert
from vla_rl.report.media import encode_gif

DIFFICULTY = 0.4
EPISODES = 50
TASKS = {"vla_rl/PegInsert-v0": 300, "vla_rl/MetaWorldPickPlace-v0": 499}
"""Whose steps an episode may have: people need longer than the tasks' own limits, which are made for the expert."""
_SHOWN_S = (0, 1, 2, 3, 4, 6, 8, 10)
_FILM_HZ = 10


def drivers(env: Any) -> dict[str, ScriptedExpert]:
    """The expert without noise, and the six people."""
    people = {name: Operator(sim.make_expert(env), config) for name, config in OPERATORS.items()}
    return {"expert": sim.make_expert(env), **people}


def drive(env: Any, driver: ScriptedExpert, seed: int, frames: list[Any] | None = None) -> tuple[bool, NDArray[Any]]:
    """One episode: success, and what was sent at every step, float32 [T, A]; ``frames`` takes the pictures."""
    observation, _ = env.reset(seed=seed)
    driver.reset(seed)
    sent, ended = [], False
    while not ended:
        if frames is not None:
            frames.append((observation["pixels"]["front"], env.grip_points().copy()))
        sent.append(driver.act()[1])
        observation, _, success, truncated, _ = env.step(sent[-1])
        ended = success or truncated
    return bool(success), np.stack(sent)


def pause_share(env: Any, sent: NDArray[Any]) -> float:
    """The share of steps at which nothing is commanded to move."""
    change = np.diff(sent, axis=0)
    steps = np.array([kind == "delta" for kind in env.action_kind])
    change[:, steps] = sent[1:, steps]
    return float((np.abs(change).max(axis=1) < 1e-6).mean())


def measure(task: str) -> dict[str, Any]:
    """Demonstrations of everybody on one task, of equal starts."""
    env: Any = gymnasium.make(task, difficulty=DIFFICULTY).unwrapped
    env.drawing, env.max_episode_steps = False, TASKS[task]
    people = {}
    for name, driver in drivers(env).items():
        episodes = [drive(env, driver, seed) for seed in range(EPISODES)]
        lengths = [len(sent) for success, sent in episodes if success]
        people[name] = {
            "episodes": EPISODES,
            "success": float(np.mean([success for success, _ in episodes])),
            "steps": float(np.mean(lengths)) if lengths else None,
            "steps_deviation": float(np.std(lengths)) if lengths else None,
            "pauses": float(np.mean([pause_share(env, sent) for _, sent in episodes])),
        }
    env.close()
    return {"task": task, "difficulty": DIFFICULTY, "limit_steps": TASKS[task], "people": people}


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: one row per task and person."""
    rows = [
        f"| {cell['task']} | `{name}` | {own['success']:.0%} | {own['steps']:.0f} ± {own['steps_deviation']:.0f} "
        f"| {own['pauses']:.0%} |"
        for cell in cells
        for name, own in cell["people"].items()
        if own["steps"] is not None
    ]
    head = ["| task | who | success | steps to success | steps without motion |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def picture(stills: Path, film: Path, seed: int = 7) -> None:
    """Draw one start of the default task that all solve: key frames and hands' paths of each operator. A film shows all
    side by side; finished ones stand still.
    """
    task = next(iter(TASKS))
    env: Any = gymnasium.make(task, difficulty=DIFFICULTY, image_size=96, renderer="raycast").unwrapped
    env.max_episode_steps = TASKS[task]
    hz = round(env.metadata["render_fps"])
    episodes: dict[str, tuple[list[Any], bool]] = {}
    for name, driver in drivers(env).items():
        frames: list[Any] = []
        episodes[name] = frames, drive(env, driver, seed, frames)[0]
    env.close()
    _draw_stills(stills, episodes, hz)
    every = max(round(hz / _FILM_HZ), 1)
    last = max(len(frames) for frames, _ in episodes.values())
    shown = range(0, last + hz, every)
    tiles = [np.stack([frames[min(tick, len(frames) - 1)][0] for tick in shown]) for frames, _ in episodes.values()]
    film.write_bytes(encode_gif(np.concatenate(tiles, axis=2), round(1000 * every / hz)))


def _draw_stills(file: Path, episodes: dict[str, tuple[list[Any], bool]], hz: int) -> None:
    figure = new_figure(7.6, 0.86 * len(episodes))
    grid = figure.subplots(len(episodes), len(_SHOWN_S) + 1, gridspec_kw={"width_ratios": [1] * len(_SHOWN_S) + [1.5]})
    for row, (name, (frames, success)) in zip(grid, episodes.items(), strict=True):
        for axes, time_s in zip(row, _SHOWN_S, strict=False):
            axes.set_axis_off()
            if time_s * hz < len(frames):
                axes.imshow(frames[time_s * hz][0])
            if name == "expert":
                title(axes, f"{time_s} s")
        row[0].text(-0.12, 0.5, name, transform=row[0].transAxes, ha="right", va="center", fontsize=8, color=MUTED)
        paths = np.stack([points for _, points in frames])  # [T, arms, 3]
        for arm, color in enumerate((POLICY, HUMAN)):
            row[-1].plot(paths[:, arm, 0], paths[:, arm, 2], color=color, linewidth=0.8)
        plain(row[-1])
        row[-1].set_xticks([])
        row[-1].set_yticks([])
        axis_labels(row[-1], f"{len(frames) / hz:.1f} s{'' if success else ', failed'}")
    figure.subplots_adjust(left=0.11, right=0.99, top=0.96, bottom=0.04, wspace=0.05, hspace=0.35)
    save_png(figure, file)
