"""The world model: does it follow actions, judge success and keep its pace?

Parts, each resumed cell by cell in OUT/world-model/ and --runs:
  model    trains the world model on a demo run's episodes, probe, horizon curves; with --world it judges a model that
           exists
  cost     frames a second with 1 and 16 streams, latency of step 1,000 over step 10
  judge    counterfactual pairs from one state, and real episodes imagined open loop with their own actions
  ablate   the model again without near successes, for the longest horizon and the counterfactuals
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cells import Cells, origin
from benchmarks.world_horizons import HorizonConfig
from sim.experts.perturbed import PerturbationConfig
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.world_folder import episodes_of
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.world_model import WorldModelConfig

PARTS = ("model", "cost", "judge", "ablate")
_ABLATION = "no-near-success"
# As far as an episode of the default task reaches; so long ones are mostly failures, hence a cell of their own.
_LONG = HorizonConfig(horizons=(1, 2, 5, 10, 20, 40, 80, 100))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="a finished demo run to learn from")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/bench-world-model"), help="where models and runs are kept"
    )
    parser.add_argument("--world", type=Path, help="judge the world model of this folder instead of training one")
    parser.add_argument("--near-success", type=int, default=300)
    parser.add_argument("--episodes", type=int, default=50, help="real episodes of each policy that are imagined")
    parser.add_argument("--pairs", type=int, default=50, help="counterfactual pairs")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes to the model")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts that are asked for and missing, and gather all that there are."""
    for part in options.parts:
        if part not in PARTS:
            raise UserError(f"there is no part {part!r} of this benchmark.{did_you_mean(part, PARTS)}")
    cells = open_cells(options)
    options.runs = options.runs / cells.digest
    measure: dict[str, Callable[[argparse.Namespace, Cells], None]] = {
        "model": _measure_model,
        "cost": _measure_cost,
        "judge": _measure_judge,
        "ablate": _measure_ablation,
    }
    for part in PARTS:
        if part in options.parts:
            measure[part](options, cells)
    return _gather(cells)


def open_cells(options: argparse.Namespace) -> Cells:
    """The cells of one world model, under the present settings."""
    settings = {
        "model": asdict(load_config(WorldModelConfig, overrides=options.overrides)),
        "run": str(options.run),
        "near_success": asdict(PerturbationConfig()),
        "sizes": [options.near_success, options.episodes, options.pairs],
    }
    if options.world is not None:
        settings["world"] = str(options.world)
    run = RunFolder(options.run)
    stores = [EpisodeStore(path, create=False) for path in (run.episodes, run.evaluation) if path.exists()]
    seen_by = [find_policy(options.run).path / "config.json"] if stores else []
    if options.world is not None:
        seen_by += [options.world / part / "config.json" for part in ("encoder", "model")]
    return Cells(options.out / "world-model", settings, [*map(episodes_of, stores), *seen_by] or None)


def table(result: dict[str, Any]) -> str:
    """Markdown: the key figures, those that were measured."""
    head = ["| what | measured | wanted |", "|---|---|---|"]
    rows = [
        ("position error, true over shuffled actions, 10 steps ahead", "action_error_ratio_h10", "<= 0.7"),
        ("position error, true actions over nothing moves, 10 steps ahead", "persistence_ratio_h10", "< 1"),
        ("error of the probe on reconstructions, pixels", "probe_floor_px", "<= 2"),
        ("counterfactual outcomes that agree", "counterfactual_agreement", ">= 0.85"),
        ("the same without near successes", "counterfactual_agreement_no_near_success", "lower"),
        ("position error 100 steps ahead, without near successes over with", "longest_error_ratio_no_near_success", ""),
        ("outcomes of whole real episodes that agree, open loop", "open_loop_agreement", ""),
        ("frames a second, one stream", "frames_per_s_b1", ">= 30"),
        ("frames a second, 16 streams", "frames_per_s_b16", ">= 200"),
        ("latency of step 1,000 over step 10", "late_latency_ratio", "about 1"),
    ]
    lines = [f"| {what} | {_shown(result, key)} | {wanted} |" for what, key, wanted in rows]
    machine = f"{origin(list(result['cells'].values()))} Command: `{result['command']}`."
    return "\n".join([*head, *lines, "", machine])


def _measure_model(options: argparse.Namespace, cells: Cells) -> None:
    if options.world is None:
        _train(options, options.runs / "world", options.near_success)
    cells.once("horizons", lambda: _judge(_world(options)).horizons())
    cells.once("horizons-long", lambda: _judge(_world(options)).horizons(_LONG))


def _measure_cost(options: argparse.Namespace, cells: Cells) -> None:
    def measure() -> dict[str, Any]:
        from benchmarks.world_speed import late_latency, stream_speed

        judge = _judge(_world(options))
        return {
            "frames_per_s_b1": stream_speed(judge.world, judge.cache, 1),
            "frames_per_s_b16": stream_speed(judge.world, judge.cache, 16),
            "late_latency_ratio": late_latency(judge.world, judge.cache),
            "image_size": judge.spec.image_size[0],
            "cameras": len(judge.spec.cameras),
        }

    cells.once("cost", measure)


def _measure_judge(options: argparse.Namespace, cells: Cells) -> None:
    def outcomes() -> dict[str, Any]:
        from vla_rl.data.run_folder import RunFolder
        from vla_rl.training.config import RunConfig

        source, _ = RunFolder.open(options.run, RunConfig)
        return dict(_judge(_world(options)).outcomes(source.policy_versions(), options.episodes))

    cells.once("counterfactuals", lambda: _judge(_world(options)).counterfactuals(options.pairs))
    cells.once("outcomes", outcomes)


def _measure_ablation(options: argparse.Namespace, cells: Cells) -> None:
    def measure() -> dict[str, Any]:
        place = options.runs / f"world-{_ABLATION}"
        _train(options, place, near=0)
        judge = _judge(place, instruments=_world(options))
        return {
            "horizons": judge.horizons(),
            "horizons-long": judge.horizons(_LONG),
            "counterfactuals": judge.counterfactuals(options.pairs),
        }

    cells.once(f"ablation-{_ABLATION}", measure)


def _train(options: argparse.Namespace, place: Path, near: int) -> None:
    """The verb itself, which goes on where it stopped."""
    from vla_rl.cli.main import main

    arguments = ["imagine", "train", str(options.run), "--out", str(place), "--near-success", str(near)]
    if main([*arguments, *options.overrides]):
        raise UserError(f"the world model in {place} could not be trained; see the message above")


def _world(options: argparse.Namespace) -> Path:
    return Path(options.world or options.runs / "world")


def _judge(place: Path, instruments: Path | None = None) -> Any:
    from benchmarks.world_judge import WorldJudge
    from vla_rl.acting.world_folder import WorldFolder

    return WorldJudge(WorldFolder(place), None if instruments is None else WorldFolder(instruments))


def _gather(found: Cells) -> dict[str, Any]:
    """Every cell that there is, and the key figures."""
    cells = found.by_name()
    result: dict[str, Any] = {}
    if "horizons" in cells:
        curves = cells["horizons"]
        place = curves["horizons"].index(10)
        result["action_error_ratio_h10"] = curves["all"]["ratio"][place]
        result["persistence_ratio_h10"] = curves["all"]["true"][place] / curves["all"]["persistence"][place]
        result["probe_floor_px"] = curves["probe_floor_px"]["reconstruction_m"]
    if "counterfactuals" in cells:
        result["counterfactual_agreement"] = cells["counterfactuals"]["agreement"]
    if "outcomes" in cells:
        result["open_loop_agreement"] = cells["outcomes"]["all"]["agreement"]
    result |= cells.get("cost", {})
    if (ablated := cells.get(f"ablation-{_ABLATION}")) and "horizons-long" in cells:
        longest_mm = [each["horizons-long"]["all"]["true"][-1] for each in (ablated, cells)]
        result["longest_error_ratio_no_near_success"] = longest_mm[0] / longest_mm[1]
        result["counterfactual_agreement_no_near_success"] = ablated["counterfactuals"]["agreement"]
    return {**result, "cells": cells}


def _shown(result: dict[str, Any], key: str) -> str:
    return "not measured" if result.get(key) is None else f"{result[key]:.2f}"
