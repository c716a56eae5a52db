"""Practice without a hand: the policy puts a cube into a tray, and takes it out again.

The second task is examples/own_reset. The environment resets the world once, before the first demonstration. Later,
every attempt goes on in the world of the last one, and only the arms go home. Where the world is stuck, the simulator
resets it. That counts as a hand.
"""

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.cells import origin
from benchmarks.runs import evaluations, run_verb

FORWARD, BACKWARD = "vla_rl/PickPlace-v0", "own_reset:PutBack-v0"
_EXAMPLE = Path(__file__).parents[1] / "examples" / "own_reset"
_COMMAND = "python -m benchmarks detector --parts unattended --seeds 0"
_STUCK = 3  # failed attempts in a row
_EVERY = 50  # attempts of the forward task per reported share
SETTINGS = ["--config", "imagined", "algorithm=filtered_bc", f"task.env={FORWARD}", f"task.also=[{BACKWARD}]"]
SETTINGS += ["policy.text.film=true", "workers=0", "environments_per_worker=1", "torch_threads=1"]
SETTINGS += ["budget.demonstrations=32", "budget.episodes_per_round=150", "budget.steps_per_round=100"]
SETTINGS += ["budget.supervised_steps=400", "budget.rounds=4", "budget.checkpoint_every=50"]
SETTINGS += ["budget.evaluation_episodes=20"]


def practiced(runs: Path, seed: int) -> dict[str, Any]:
    """Let a policy practice both tasks in one world, and return how its attempts went."""
    folder = runs / f"unattended-{seed}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_EXAMPLE), os.environ.get("PYTHONPATH", "")])
    run_verb(arguments(seed), folder)
    entries = [json.loads(line) for line in (folder / "resets.jsonl").read_text().splitlines()]
    held_out = [{"round": each["round"], "tasks": each["tasks"]} for each in evaluations(folder)]
    return {"part": "unattended", "seed": seed, **scores(entries), "evaluations": held_out}


def arguments(seed: int) -> list[str]:
    """Return the arguments of the run."""
    return ["train", "--seed", str(seed), *SETTINGS, "--resets", "patience=20"]


def scores(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often each task succeeded, how often the world was stuck, and what freed it.

    The world is stuck after three failures in a row. The next success frees it, or a hand.
    """
    success: dict[str, list[bool]] = {FORWARD: [], BACKWARD: []}
    freed = {"forward": 0, "backward": 0, "hand": 0}
    failures = longest = since = most = 0
    for entry in entries:
        if not str(entry.get("episode", entry.get("hand"))).startswith("round"):
            continue  # demonstrations
        if "hand" in entry:
            freed["hand"] += 1
            failures = since = 0
            continue
        success[entry["task"]].append(entry["success"] is True)
        since += 1
        most = max(most, since)
        if entry["success"]:
            freed["forward" if entry["task"] == FORWARD else "backward"] += failures >= _STUCK
            failures = 0
        else:
            failures += 1
            longest = max(longest, failures)
    shares = {
        name: [_share(each[at : at + _EVERY]) for at in range(0, len(each), _EVERY)] for name, each in success.items()
    }
    return {
        "forward_episodes": len(success[FORWARD]),
        "backward_episodes": len(success[BACKWARD]),
        "forward_success": shares[FORWARD],
        "backward_success": shares[BACKWARD],
        "hands": freed["hand"],
        "longest_without_hand": most,
        "freed": freed,
        "longest_failures": longest,
    }


def _share(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def figures(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Return the headline figures of the cells that there are, of the run with the fewest episodes without a hand."""
    found = [cell for cell in cells if cell["part"] == "unattended"]
    if not found:
        return {}
    least = min(found, key=lambda cell: cell["longest_without_hand"])
    named = ("forward_episodes", "backward_episodes", "hands")
    return {
        "unattended_episodes": least["longest_without_hand"],
        **{f"unattended_{name}": least[name] for name in named},
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: success per 50 attempts of each task, then what freed the world."""
    cells = [cell for cell in result["cells"] if cell["part"] == "unattended"]
    if not cells:
        return f"Not measured yet: `{_COMMAND}`."
    lines = [f"| task | success in attempts 1 to {_EVERY}, then in each {_EVERY} that follow, % |", "|---|---|"]
    for cell in cells:
        for name in ("forward", "backward"):
            shares = ", ".join(f"{100 * share:.0f}" for share in cell[f"{name}_success"])
            lines.append(f"| {name}, seed {cell['seed']} | {shares} |")
    for cell in cells:
        freed, about = cell["freed"], f"Seed {cell['seed']}: {cell['forward_episodes']} attempts forward"
        lines += [
            "",
            f"{about} and {cell['backward_episodes']} backward, {cell['hands']} resets by hand. At most "
            f"{cell['longest_failures']} attempts in a row failed. Three or more did {sum(freed.values())} times: the "
            f"forward task ended that {freed['forward']} times, the backward task {freed['backward']} times, a "
            f"hand {freed['hand']} times.",
        ]
    return "\n".join([*lines, "", f"{origin(cells)} Command: `{_COMMAND}`."])
