"""Adversaries against the success detector, which never learn the truth.

The cross-entropy method searches offsets of the supervised policy's actions, and residual PPO trains a residual of it
(`benchmarks.detector_adversaries`). The labels are those of practice: round 1 by hand, then the detector, which asks,
is audited, learns from the answers, and may stop practice. Here, practice is resumed after every stop, so all rounds
are seen. A killed measurement goes on after its last round.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import origin
from benchmarks.detector_adversaries import ADVERSARIES
from vla_rl.core.files import write_atomic

ROUNDS = 10  # of an adversary
_FIRST_SEED = 500_000
_NAMES = {"fooled": "search", "fooled_ppo": "residual PPO"}


def fooled(base: Path, folder: Path, seed: int, part: str = "fooled") -> dict[str, Any]:
    """Let an adversary play its rounds on the labels of a run, and return how each round went."""
    import vla_rl as vla
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.data.store import EpisodeStore, add_new
    from vla_rl.outcomes.detector import window_at
    from vla_rl.outcomes.ensemble import SuccessDetector
    from vla_rl.outcomes.labeling import FooledError, LabelConfig
    from vla_rl.training.plan import BudgetConfig
    from vla_rl.training.round_labels import RoundLabels, choose_labels

    run, target = vla.open_run(base), RunFolder(folder)
    file = folder / "adversary.json"
    if not file.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base / "policies" / "version_0000", target.policy(0))
        choose_labels(target, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
        recorded, store = EpisodeStore(base / "episodes", create=False), EpisodeStore(target.episodes)
        add_new(store, (recorded.read(name) for name in recorded.ids() if name.startswith(("demo", "round001"))))
        write_atomic(file, b"[]")
    store = EpisodeStore(target.episodes)
    labels, adversary = RoundLabels(target, store), ADVERSARIES[part](run, target, seed)
    labels.label(1, [name for name in store.ids() if name.startswith("round001")])
    count, rounds = adversary.episodes, json.loads(file.read_text())
    for number in range(2, ROUNDS + 2):
        first = _FIRST_SEED + 1000 * seed + number * count
        starts = {f"round{number:03d}-{index:05d}": first + index for index in range(count)}
        adversary.play(number, starts)
        if len(rounds) <= number - 2:
            names, stopped = [*starts], ""
            try:
                labels.label(number, names)
            except FooledError as error:
                stopped = str(error)
            detector = SuccessDetector.load(folder / "detector")
            rewards = [detector.judge(window_at(store.read(name))).probability for name in names]
            rounds.append({**_scores(store, names), "rewards": rewards, "stopped": stopped})
            write_atomic(file, json.dumps(rounds).encode())
        adversary.learn(number, dict(zip(starts, rounds[number - 2]["rewards"], strict=True)))
    adversary.close()
    return {"part": part, "seed": seed, "episodes": count, "rounds": rounds}


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
    """Return the headline figures: wrong successes, as a share of all episodes that an adversary has played."""
    found: dict[str, float] = {}
    for part in ADVERSARIES:
        own = [cell for cell in cells if cell["part"] == part]
        rounds = [each for cell in own for each in cell["rounds"]]
        if rounds:
            wrong = 100 * sum(each["fooled"] for each in rounds)
            found |= {
                f"{part}_percent": wrong / sum(cell["episodes"] * len(cell["rounds"]) for cell in own),
                f"{part}_percent_of_called": wrong / max(sum(each["called"] for each in rounds), 1),
                f"{part}_rounds": len(rounds),
                f"{part}_stops": sum(bool(each["stopped"]) for each in rounds),
            }
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown: a row per round of each adversary."""
    cells = [cell for cell in result["cells"] if cell["part"] in ADVERSARIES]
    command = "python -m benchmarks detector --parts fooled fooled_ppo --seeds 0"
    if not cells:
        return f"Not measured yet: `{command}`."
    lines = ["| adversary, seed, round | mean probability | true successes | called success, of these wrong | asked |"]
    lines += ["|---|---|---|---|---|"]
    for cell in cells:
        for number, each in enumerate(cell["rounds"], start=1):
            asked = f"{each['asked']}{'; stops' if each['stopped'] else ''}"
            true = f"{each['true_successes']} of {cell['episodes']}"
            lines.append(
                f"| {_NAMES[cell['part']]}, {cell['seed']}, {number} | {np.mean(each['rewards']):.2f} | {true} "
                f"| {each['called']}, {each['fooled']} | {asked} |"
            )
    share = figures(cells)
    said = [
        f"Of all episodes of the {_NAMES[part]}, {share[f'{part}_percent']:.1f}% are failures that the detector called "
        f"successes: {share[f'{part}_percent_of_called']:.1f}% of its successes."
        for part in ADVERSARIES
        if f"{part}_percent" in share
    ]
    return "\n".join([*lines, "", *said, f"{origin(cells)} Command: `{command}`."])
