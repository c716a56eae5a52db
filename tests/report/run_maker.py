"""A small run folder like the ones that training leaves, with known numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.report.sinks import JsonlSink

SUCCESSES = (38, 66, 91)


def make_episode(
    episode_id: str,
    length: int,
    success: bool | None,
    version: int = 0,
    seed: int = 0,
    human: slice = slice(0),
    demo: bool = False,
) -> Episode:
    """Frames of two cameras get brighter with the step; a person acts in the steps of ``human``."""
    level = (np.arange(length) * 255 // max(length - 1, 1)).astype(np.uint8)[:, None, None, None]
    images = {
        "front": np.broadcast_to(level, (length, 12, 16, 3)),
        "top": np.broadcast_to(255 - level, (length, 16, 16, 3)),
    }
    source = np.full(length, Source.DEMO if demo else Source.POLICY, np.uint8)
    source[human] = Source.HUMAN
    zeros = np.zeros((length, 2), np.float32)
    return Episode(
        episode_id=episode_id,
        images={name: np.ascontiguousarray(image) for name, image in images.items()},
        state=zeros,
        action_policy=zeros,
        action_sent=zeros,
        source=source,
        task="put the peg into the box",
        success=success,
        terminated=success is True,
        origin=Origin.DEMO if demo else Origin.SIM,
        policy_version=version,
        seed=seed,
        control_hz=20.0,
        env_id="toy",
    )


def evaluation(number: int, successes: int) -> dict[str, Any]:
    return {
        "round": number,
        "label": "supervised" if number == 0 else f"round {number}",
        "policy_version": number,
        "gradient_steps": 1500 * (number + 1),
        "real_episodes": 40 + 100 * number,
        "successes": successes,
        "episodes": 100,
        "mean_success_length": 60.4 - number,
    }


def write_run(run: Path) -> None:
    evaluations = [evaluation(number, successes) for number, successes in enumerate(SUCCESSES)]
    control = {"control": "more supervised training", "label": "more supervised training"}
    evaluations.append({**control, "round": 2, "successes": 47, "episodes": 100})
    summary = {
        "task": "vla_rl/PegInsert-v0",
        "algorithm": "habc",
        "seed": 3,
        "wall_s": 432.2,
        "machine": {"cpu": "Some CPU", "cores": 2, "gpu": None, "versions": {"numpy": "2.2.6"}},
        "stages": [{"name": "demonstrate 0", "wall_s": 12.2}, {"name": "supervise 0", "wall_s": 420.0}],
        "evaluations": evaluations,
    }
    (run / "summary.json").write_text(json.dumps(summary))
    config = "supervised: {actor: {batch_size: 64}}\nlearning: {actor: {batch_size: 128}}\nbudget:\n  rounds: 2\n"
    (run / "config.yaml").write_text(config)
    with JsonlSink(run / "metrics.jsonl") as sink:
        sink.on_metrics(
            {"kind": "collect", "round": 0, "step": 0, "episodes": 40, "successes": 40, "takeovers": 0, "rescued": 0}
        )
        for step in range(50, 4501, 50):
            critics = {} if step <= 1500 else {"viability_loss": 0.3, "gate_mean": 0.9, "gate_saturated": 0.1}
            number = (step - 1) // 1500
            train = {"kind": "train", "round": number, "step": step, "actor_loss": 50 / step, "steps_per_s": 10.0}
            sink.on_metrics(train | critics)
        practice = {
            "kind": "collect",
            "round": 1,
            "step": 1500,
            "episodes": 100,
            "successes": 63,
            "takeovers": 31,
            "rescued": 26,
        }
        sink.on_metrics(practice | {"mean_length": 84.2})
        forecast = {"steps": 60, "calibration_error": 0.125, "brier": 0.2, "mean_predicted": 0.5, "mean_observed": 0.4}
        forecast |= {"auc": 0.875, "discount": 0.99}
        curve = {"predicted": [0.25, 0.75], "observed": [0.25, 0.55], "samples": [30, 30]}
        for number, error in ((2, 0.25), (3, 0.125)):
            own = {"kind": "calibrate", "round": number, "step": 1500 * number, "calibration_error": error}
            sink.on_metrics(forecast | curve | own)
    write_episodes(run)


def write_episodes(run: Path) -> None:
    played = EpisodeStore(run / "evaluation")
    # (first, last) succeed: seed 0 both, 1 only the last, 2 neither, 3 only the first, 4 only the last
    for number, (first, last) in enumerate(((True, True), (False, True), (False, False), (True, False), (False, True))):
        played.add(make_episode(f"v0000-{number:06d}", 8 if first else 14, first, version=0, seed=900 + number))
        played.add(make_episode(f"v0001-{number:06d}", 9, True, version=1, seed=900 + number))
        played.add(make_episode(f"v0002-{number:06d}", 6 if last else 14, last, version=2, seed=900 + number))
    practiced = EpisodeStore(run / "episodes")
    episodes = [
        make_episode("round001-00000", 20, True),
        make_episode("round001-00001", 30, False),
        make_episode("round001-00002", 30, True, human=slice(12, 25)),
        make_episode("round002-00000", 24, True),
    ]
    (run / "traces").mkdir()
    for episode in episodes:
        practiced.add(episode)
        write_trace(run, episode.episode_id, len(episode))


def write_trace(run: Path, episode_id: str, length: int) -> None:
    """Columns as a run writes them."""
    columns = {"viability": np.linspace(0.2, 0.9, length), "efficiency": np.linspace(-length, 0, length)}
    columns |= {"advantage_gate": np.full(length, 1.1), "weight": np.full(length, 0.7)}
    columns |= {"viability_advantage": np.full(length, 0.1), "efficiency_advantage": np.full(length, -0.5)}
    np.savez(run / "traces" / f"{episode_id}.npz", source=np.zeros(length, np.uint8), **columns)
