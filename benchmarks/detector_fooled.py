"""An adversary against the success detector: it only wants its probability, and never learns the truth.

The cross-entropy method (Rubinstein 1999) searches offsets of the supervised policy's actions: one for each third of an
episode. Its reward is the detector's probability at the end of an episode. The labels are those of practice: round 1 by
hand, then the detector, which asks, is audited, learns from the answers, and may stop practice. Here, practice is
resumed after every stop, so all rounds are seen. A killed measurement goes on after its last round.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import origin
from vla_rl.core.files import write_atomic
from vla_rl.core.types import ActionChunk, Float32Array, Observation

ROUNDS, EPISODES = 10, 16  # of the adversary
_ELITE = 4  # best episodes of a round, from which the next search distribution is fitted
_STD = 0.4  # of the first search distribution, in standard deviations of the actions
_THIRD_TICKS = 40
_FIRST_SEED = 500_000
_COMMAND = "python -m benchmarks detector --parts fooled --seeds 0"


class Moved:
    """A policy whose actions are moved by an offset, float32 [3, A], for each third of an episode."""

    version = 0

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.n_obs_steps = getattr(policy, "n_obs_steps", 1)
        self.offset: NDArray[np.float64] = np.zeros((3, 1))

    def reset(self, seed: int) -> None:
        self._policy.reset(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        chunk = self._policy.infer(observation, committed)
        ticks = observation.tick + np.arange(len(chunk.actions))
        offset = self.offset[np.minimum(ticks // _THIRD_TICKS, 2)]
        return ActionChunk((chunk.actions + offset).astype(np.float32), chunk.start_tick, chunk.chunk_id, self.version)


def fooled(base: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Let the adversary play its rounds on the labels of a run, and return how each round went."""
    import vla_rl as vla
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.data.store import EpisodeStore, add_new
    from vla_rl.outcomes.detector import window_at
    from vla_rl.outcomes.ensemble import SuccessDetector
    from vla_rl.outcomes.labeling import FooledError, LabelConfig
    from vla_rl.training.plan import BudgetConfig
    from vla_rl.training.round_labels import RoundLabels, choose_labels
    from vla_rl.training.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutJob

    run, target = vla.open_run(base), RunFolder(folder)
    if not (folder / "outcomes.yaml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base / "policies" / "version_0000", target.policy(0))
        recorded, store = EpisodeStore(base / "episodes", create=False), EpisodeStore(target.episodes)
        add_new(store, (recorded.read(name) for name in recorded.ids() if name.startswith(("demo", "round001"))))
        choose_labels(target, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
    store = EpisodeStore(target.episodes)
    first = [name for name in store.ids() if name.startswith("round001")]
    policy = Moved(run.policy(0))
    labels, worker = RoundLabels(target, store), SimulatorWorker(run.config, policy=policy)
    labels.label(1, first)
    scale = np.concatenate([store.read(name).action_sent for name in first[:20]]).std(axis=0)
    random, mean, std = np.random.default_rng(seed), np.zeros((3, len(scale))), np.full((3, len(scale)), _STD)
    file = folder / "adversary.json"
    rounds: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for number in range(2, ROUNDS + 2):
        offsets = mean + std * random.standard_normal((EPISODES, *mean.shape))
        if len(rounds) <= number - 2:
            names = [f"round{number:03d}-{index:05d}" for index in range(EPISODES)]
            for index, name in enumerate(names):
                policy.offset = offsets[index] * scale
                start = (_FIRST_SEED + 1000 * seed + number * EPISODES + index,)
                if name not in store:
                    list(worker.run([RolloutJob(name, target.episodes, run.config.task.env, start, target.policy(0))]))
            stopped = ""
            try:
                labels.label(number, names)
            except FooledError as error:
                stopped = str(error)
            detector = SuccessDetector.load(folder / "detector")
            rewards = [detector.judge(window_at(store.read(name))).probability for name in names]
            rounds.append({**_scores(store, names), "rewards": rewards, "stopped": stopped})
            write_atomic(file, json.dumps(rounds).encode())
        elite = offsets[np.argsort(-np.array(rounds[number - 2]["rewards"]), kind="stable")[:_ELITE]]
        mean, std = elite.mean(axis=0), elite.std(axis=0) + 0.05
    worker.close()
    return {"part": "fooled", "seed": seed, "episodes": EPISODES, "rounds": rounds}


def _scores(store: Any, names: list[str]) -> dict[str, Any]:
    """Compare the first judgments of a round with the truth."""
    from vla_rl.outcomes.labeling import DETECTOR

    true = [store.recording(name).values["success"] is True for name in names]
    entries = [store.edit_log(name).entries for name in names]
    said = [next(each.new["success"] for each in log if each.user.startswith(DETECTOR)) for log in entries]
    labels = [store.read_header(name).success for name in names]
    return {
        "true_successes": sum(true),
        "asked": sum(each is None for each in said),
        "called": sum(each is True for each in said),
        "fooled": sum(each is True and not real for each, real in zip(said, true, strict=True)),
        "false_labels": sum(each is True and not real for each, real in zip(labels, true, strict=True)),
    }


def figures(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Return the headline figures: wrong successes, as a share of all episodes that the adversary has played."""
    rounds = [each for cell in cells if cell["part"] == "fooled" for each in cell["rounds"]]
    if not rounds:
        return {}
    episodes = sum(cell["episodes"] * len(cell["rounds"]) for cell in cells if cell["part"] == "fooled")
    called = sum(each["called"] for each in rounds)
    return {
        "fooled_percent": 100 * sum(each["fooled"] for each in rounds) / episodes,
        "fooled_percent_of_called": 100 * sum(each["fooled"] for each in rounds) / max(called, 1),
        "fooled_rounds": len(rounds),
        "fooled_stops": sum(bool(each["stopped"]) for each in rounds),
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: a row per round of the adversary."""
    cells = [cell for cell in result["cells"] if cell["part"] == "fooled"]
    if not cells:
        return f"Not measured yet: `{_COMMAND}`."
    lines = ["| seed, round | mean probability | true successes | called success, of these wrong | asked |"]
    lines += ["|---|---|---|---|---|"]
    for cell in cells:
        for number, each in enumerate(cell["rounds"], start=1):
            asked = f"{each['asked']}{'; stops' if each['stopped'] else ''}"
            true = f"{each['true_successes']} of {cell['episodes']}"
            lines.append(
                f"| {cell['seed']}, {number} | {np.mean(each['rewards']):.2f} | {true} "
                f"| {each['called']}, {each['fooled']} | {asked} |"
            )
    share = figures(cells)
    lines += [
        "",
        f"Of all episodes of the adversary, {share['fooled_percent']:.1f}% are failures that the detector called "
        f"successes: {share['fooled_percent_of_called']:.1f}% of its successes. {origin(cells)} Command: "
        f"`{_COMMAND}`.",
    ]
    return "\n".join(lines)
