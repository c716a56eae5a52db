"""The simulated tasks: speed beside bare MuJoCo, and how often the scripted experts and supervisors succeed.

Speed: bare MuJoCo takes the actions of one expert episode from its start, with the same substeps. It draws the same two
cameras with the same renderer. Environment and bare MuJoCo alternate episode by episode, so that a busy machine slows
both.

Skill: the expert alone, and the supervisor beside a policy that is the expert until a random moment and then stands
still. Every seed is another start.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.progress import track
from vla_rl.report.statistics import wilson_interval

_FREEZE_STREAM = 11  # keeps the moment of freezing apart from the draws of environment, expert and supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", help="which of our own tasks (default: all)")
    parser.add_argument("--blocks", type=int, default=30, help="expert episodes for each of the two")
    parser.add_argument("--renderers", nargs="+", default=["raycast"])
    parser.add_argument("--seeds", type=int, default=200, help="episodes of each expert and of each supervisor")


def run(options: argparse.Namespace) -> dict[str, Any]:
    import gymnasium

    import sim

    for name in ("blocks", "seeds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be at least 1")
    tasks = options.tasks or sim.TASKS
    for name in tasks:
        if name not in sim.TASKS:
            raise UserError(f"there is no task {name!r} of our own.{did_you_mean(name, sim.TASKS)}")
    rows, skills = [], []
    for renderer in options.renderers:
        for name in tasks:
            env = gymnasium.make(name, renderer=renderer, disable_env_checker=True)
            rows.append({"task": name, "renderer": renderer, **_compare(env, options.blocks)})
            env.close()
    for name in track(tasks, "experts and supervisors", "task"):
        # Experts read the true state: the smallest picture of one camera is all the drawing that is needed.
        env = gymnasium.make(name, image_size=16, cameras=("front",), disable_env_checker=True).unwrapped
        skills.append({"task": name, **_skills(env, options.seeds)})
        env.close()
    return {"rows": rows, "worst_ratio": min(row["ratio"] for row in rows), "skills": skills}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task and renderer for speed, one per task for skill."""
    head = ["| task | renderer | steps/s with two 64 px cameras | of bare MuJoCo |", "|---|---|---|---|"]
    rows = [
        f"| {row['task']} | {row['renderer']} | {row['steps_per_s']:.0f} | {row['ratio']:.3f} |"
        for row in result["rows"]
    ]
    machine = f"{result['machine']['cpu']}, one process. Command: `{result['command']}`."
    return "\n".join([*head, *rows, "", *_skill_table(result.get("skills", [])), machine])


def _skill_table(skills: list[dict[str, Any]]) -> list[str]:
    if not skills:  # measured before experts and supervisors were
        return []
    head = ["| task | the expert succeeds | in steps | the supervisor rescues |", "|---|---|---|---|"]
    rows = [
        f"| {skill['task']} | {_rate(skill['expert'])} | {skill['expert']['mean_steps']:.0f} "
        f"| {_rate(skill['supervisor'])} |"
        for skill in skills
    ]
    note = (
        "Successes of episodes on different seeds [95 % Wilson interval]. The supervisor watches a policy that is the "
        "expert until a random moment and does not move after it. The episodes with a takeover count, to their end."
    )
    return [*head, *rows, "", note]


def _rate(count: dict[str, Any]) -> str:
    low, high = count["interval"]
    return f"{count['successes']}/{count['episodes']} [{low * 100:.0f}, {high * 100:.0f}]"


def _compare(env: Any, blocks: int) -> dict[str, float]:
    """Median step time of the environment and of bare MuJoCo, over alternating episodes with the same actions."""
    import mujoco

    bare, actions = env.unwrapped, _expert_actions(env.unwrapped)
    env_s, bare_s = [], []
    for _ in range(blocks):
        env.reset(seed=0)
        start = time.perf_counter()
        for action in actions:
            bare.step(action)
        env_s.append((time.perf_counter() - start) / len(actions))
        env.reset(seed=0)
        start = time.perf_counter()
        for action in actions:
            bare.data.ctrl[:] = action
            mujoco.mj_step(bare.model, bare.data, bare.n_substeps)
            mujoco.mj_kinematics(bare.model, bare.data)
            for camera in bare.cameras:
                bare.renderer.render(bare.data, camera)
        bare_s.append((time.perf_counter() - start) / len(actions))
    ratio = statistics.median(bare / own for bare, own in zip(bare_s, env_s, strict=True))
    return {"steps_per_s": 1 / statistics.median(env_s), "ratio": ratio}


def _expert_actions(env: Any) -> list[np.ndarray]:
    """The actions of one expert episode, float32 [A] each, so that the physics has real contacts to solve."""
    import sim

    expert = sim.make_expert(env)
    env.reset(seed=0)
    expert.reset(0)
    actions, ended = [], False
    while not ended:
        actions.append(expert.act()[1])
        _, _, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated
    return actions


def _skills(env: Any, seeds: int) -> dict[str, Any]:
    """Success of the expert alone, and of the supervisor where it took over."""
    import sim
    from sim.supervisor import ScriptedSupervisor, SupervisorConfig

    expert = sim.make_expert(env)
    # Always there, and never handing back to a policy that would do nothing with it.
    supervisor = ScriptedSupervisor(env, SupervisorConfig(rescue_probability=1.0, hand_back_probability=0.0))
    lengths, alone, rescued, taken_over = [], 0, 0, 0
    for seed in range(seeds):
        success, _ = _episode(env, expert, None, seed)
        alone += success
        lengths += [env.elapsed_steps] * success
        success, driven = _episode(env, expert, supervisor, seed)
        taken_over += driven
        rescued += success and driven
    steps = float(np.mean(lengths)) if lengths else float("nan")
    return {"expert": {**_count(alone, seeds), "mean_steps": steps}, "supervisor": _count(rescued, taken_over)}


def _count(successes: int, episodes: int) -> dict[str, Any]:
    return {"successes": successes, "episodes": episodes, "interval": wilson_interval(successes, episodes)}


def _episode(env: Any, expert: Any, supervisor: Any, seed: int) -> tuple[bool, bool]:
    """One episode: did it succeed, and did the supervisor take over? Without a supervisor the expert goes on."""
    observation, _ = env.reset(seed=seed)
    expert.reset(seed)
    stops_at = env.max_episode_steps
    if supervisor is not None:
        supervisor.reset(seed)
        stops_at = int(np.random.default_rng([seed, _FREEZE_STREAM]).integers(env.expert_steps))
    ended = success = driven = False
    while not ended:
        tick = env.elapsed_steps
        action = expert.act()[1] if tick < stops_at else env.rest_action(observation["agent_pos"])
        command = None if supervisor is None else supervisor.command(tick, action)
        driven |= command is not None
        observation, _, success, truncated, _ = env.step(action if command is None else command)
        ended = success or truncated
    return success, driven
