"""What imagined branches add to practice without a person, at equal real episodes; nothing else differs.

*With* is `imagined_edit`, *without* `unimagined`, which has self-imitation and selection but no residual. `python -m
benchmarks outcomes` measures both, with equal supervised policies, practice seeds and evaluation seeds. Further pairs
have no time discount, full-step residuals, or no self-imitation. This gathers the pairs and measures the speed of
branches. `benchmarks.ladder` and `benchmarks.branch_values` show which part limits imagination, and
`benchmarks.policy_ranking` whether it orders policies.
"""

import argparse
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks import branch_values, ladder, outcomes, policy_ranking, predicted_starts
from benchmarks.cells import Cells, origin
from benchmarks.statistics import bootstrap_interval, paired_p
from vla_rl.core.errors import UserError

PAIRED = {
    "": ("imagined_edit", "unimagined"),
    "patient_": ("imagined_edit", "unimagined_patient"),
    "bold_": ("bold", "unimagined_patient"),
    "untaught_": ("untaught", "chunk_critic"),
}
"""What the figures' names begin with -> with and without imagination."""
_PARTS = ("pairs", *ladder.PARTS, "values", "starts", "ranking")
_GOAL = 0.8
_UPDATES = 5


@dataclass(frozen=True)
class Pair:
    """A run with imagination and its paired run without.

    Attributes:
        name: task and seed.
        start: success before practice.
        curves: of the two, success after each round.
        cpu_s: of the two.
        episodes: real ones of a round.
    """

    name: str
    start: float
    curves: tuple[list[float], list[float]]
    cpu_s: tuple[float, float]
    episodes: float

    @classmethod
    def of(cls, imagines: dict[str, Any], twin: dict[str, Any]) -> Self:
        """The pair of two cells of `outcomes`."""
        return cls(
            f"{imagines['task']}, seed {imagines['seed']}",
            imagines["supervised"]["success"],
            (imagines["curve"], twin["curve"]),
            (imagines["cpu_s"], twin["cpu_s"]),
            imagines["practice_episodes"] / len(imagines["curve"]),
        )

    def gain(self, after: int) -> float:
        """Of imagination, in success, after a round (from 0; -1: the last)."""
        return self.curves[0][after] - self.curves[1][after]

    def episodes_to_goal(self, which: int) -> float:
        """Real episodes until 80 %, by straight lines between evaluations; all of the budget where it never gets
        there.
        """
        success = [self.start, *self.curves[which]]
        for index, (before, after) in enumerate(itertools.pairwise(success)):
            if after >= _GOAL:
                return self.episodes * (index + max(0.0, (_GOAL - before) / (after - before)))
        return self.episodes * (len(success) - 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["pairs"], choices=_PARTS, help="what to measure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the other parts than pairs")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-outcomes"), help="where run folders are kept")
    parser.add_argument("--policy", type=Path, help="measure the speed of branches with this policy folder")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Climb the ladder where that is asked for, and gather what has been measured."""
    for part in ladder.PARTS:
        if part in options.parts:
            ladder.measure(options.out, options.runs, options.seeds, part)
    values = branch_values.open_cells(options.out)
    if "values" in options.parts:
        branch_values.measure_seeds(values, options.out, options.runs, options.seeds)
    forecasts = predicted_starts.open_cells(options.out)
    if "starts" in options.parts:
        predicted_starts.measure_seeds(forecasts, options.out, options.runs, options.seeds)
    ranked = policy_ranking.open_cells(options.out)
    if "ranking" in options.parts:
        policy_ranking.measure(ranked, options.out, options.runs, options.seeds)
    runs = outcomes.open_cells(options.out)
    cells = [cell for cell in runs.read() if "method" in cell]
    twins = {prefix: find_twins(cells, *methods) for prefix, methods in PAIRED.items()}
    if not any(twins.values()):
        raise UserError(f"{runs.folder} has no run with imagination with a paired run without; run `outcomes` first")
    speed = Cells(options.out / "imagination", {"updates": _UPDATES}, options.policy)
    if options.policy is not None:
        speed.once("speed", lambda: _speed(options.policy))
    found = speed.by_name().get("speed", {})
    return {
        **{prefix + key: value for prefix, own in twins.items() if own for key, value in _figures(own).items()},
        **{name: value for name, value in found.items() if name != "measured"},
        "ladder": [cell for part in ladder.PARTS for cell in ladder.open_cells(options.out, part).read()],
        **branch_values.keys(values.read()),
        **predicted_starts.keys(forecasts.read()),
        **policy_ranking.keys(ranked.read()),
        "measured": origin([cell for own in twins.values() for both in own for cell in both]),
    }


def _figures(twins: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """What imagination is worth."""
    pairs = [Pair.of(*both) for both in twins]
    to_goal = np.array([[pair.episodes_to_goal(which) for which in (0, 1)] for pair in pairs])
    cpu_s = np.array([pair.cpu_s for pair in pairs])
    budgets = np.array([[pair.episodes * len(curve) for curve in pair.curves] for pair in pairs])
    to_goal_s = (cpu_s * to_goal / budgets).mean(0)  # a round costs as much as another
    return {
        "real_episodes_ratio_to_80": float(to_goal[:, 0].mean() / to_goal[:, 1].mean()),
        "wall_clock_ratio_to_80": float(to_goal_s[0] / to_goal_s[1]),
        **_gain("gain_158", "gain_p", [pair.gain(0) for pair in pairs]),
        **_gain("gain_458", "gain_458_p", [pair.gain(-1) for pair in pairs]),
        "wall_clock_ratio": float(cpu_s[:, 0].mean() / cpu_s[:, 1].mean()),
        "pairs": [
            {"name": pair.name, "start": pair.start, "with": pair.curves[0], "without": pair.curves[1]}
            for pair in pairs
        ],
    }


def _gain(name: str, of_p: str, gains: list[float]) -> dict[str, float]:
    """The mean in points, and, where the pairs are enough for it, its p-value."""
    mean, p = {name: 100 * float(np.mean(gains))}, paired_p(gains)
    return mean if p is None else {**mean, of_p: p}


def find_twins(cells: list[dict[str, Any]], imagines: str, twin: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Cells of the same task and seed, by the methods with and without, in their order."""
    by_run = {(cell["task"], cell["seed"], cell["method"]): cell for cell in cells}
    keys = sorted(key[:2] for key in by_run if key[2] == imagines and (*key[:2], twin) in by_run)
    return [(by_run[*key, imagines], by_run[*key, twin]) for key in keys]


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per pair."""
    parts = [
        *(_table_of_pairs(result, prefix) for prefix in PAIRED if f"{prefix}pairs" in result),
        f"{result['measured']} Command: `{result['command']}`.",
        *([ladder.table(result["ladder"])] if result["ladder"] else []),
        *([branch_values.table(result["branch_values"])] if "branch_values" in result else []),
        *([predicted_starts.table(result)] if "foretold_policies" in result else []),
        *([policy_ranking.table(result)] if "foretold_ranking" in result else []),
    ]
    return "\n\n".join(parts)


def _table_of_pairs(result: dict[str, Any], prefix: str) -> str:
    own = {name.removeprefix(prefix): value for name, value in result.items() if name.startswith(prefix)}
    pairs, (imagines, twin) = own["pairs"], PAIRED[prefix]
    rows = [
        f"| {pair['name']} | {pair['start']:.1%} | {_percents(pair['without'])} | {_percents(pair['with'])} |"
        for pair in pairs
    ]
    return "\n".join(
        [
            f"| run | supervised | without imagination after 150, 300, 450 episodes: `{twin}` | with: `{imagines}` |",
            "|---|---|---|---|",
            *rows,
            "",
            f"After the first round imagination is worth {_told(pairs, 0, own.get('gain_p'))}, after the last one "
            f"{_told(pairs, -1, own.get('gain_458_p'))}. Real episodes to 80 %, with over without: "
            f"{own['real_episodes_ratio_to_80']:.2f} (a run that never gets there counts its whole budget), and "
            f"{own['wall_clock_ratio_to_80']:.2f} of the processor time. Processor time of the whole run "
            f"{own['wall_clock_ratio']:.2f} times.",
        ]
    )


def _told(pairs: list[dict[str, Any]], after: int, p: float | None) -> str:
    gains = np.array([pair["with"][after] - pair["without"][after] for pair in pairs])
    if len(gains) == 1:
        return f"{100 * gains.mean():+.1f} points (one run)"
    low, high = bootstrap_interval(gains, np.mean, seed=0)
    over = "" if p is None else f", p {f'= {p:.3f}' if p >= 0.001 else '< 0.001'} paired over runs"
    return f"{100 * gains.mean():+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}, bootstrap over runs{over}]"


def _percents(curve: list[float]) -> str:
    return ", ".join(f"{success:.1%}" for success in curve)


def _speed(folder: Path) -> dict[str, float]:
    """Measure chunks a second of imagination alone on one core, without the updates of the residual: sampling, dynamics
    and value at their default sizes. Their training does not matter here.
    """
    import torch

    from vla_rl.algorithms.model_rollouts import BranchConfig, Imagination, Starts, imagine
    from vla_rl.critics.outcome import OutcomeValue
    from vla_rl.policies.base import draw_from_flat, example_row
    from vla_rl.policies.folders import load_model
    from vla_rl.policies.residual import Residual
    from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions
    from world_model.feature_world import FeatureWorld
    from world_model.protocol import Observations, OneStep

    torch.set_num_threads(1)
    model, _ = load_model(folder)
    ticks, count = 6, 1000
    residual, generator = Residual(model), torch.Generator().manual_seed(0)
    features = example_row(model) + 0.1 * torch.randn(count, len(example_row(model)), generator=generator)
    actions = torch.randn(count, ticks, model.spec.action_dim, generator=generator)
    lasted = torch.ones(count, dtype=torch.bool)
    whole = torch.full((count,), ticks)
    dynamics = FeatureDynamics.of(
        Transitions(features, actions, whole, features.flip(0), lasted, ~lasted, lasted), FeatureDynamicsConfig()
    )
    tick = torch.zeros(count)
    value = OutcomeValue(torch.cat([features, tick[:, None]], 1), 5)
    moments = Observations(OneStep({}, features.numpy()), np.arange(count))
    within = Imagination(
        FeatureWorld(dynamics, lambda seen: features[seen.frames], residual.action_normalizer.network_input),
        lambda state: state.features,
        lambda seen: draw_from_flat(model, seen, torch.randn(len(seen), model.horizon, model.spec.action_dim))[
            :, :ticks
        ],
        lambda seen, when, fold: value(torch.cat([seen, when[:, None]], 1), fold),
        chunk_ticks=ticks,
        last_tick=10**6,
    )
    config, starts = BranchConfig(), Starts(moments, tick, torch.zeros(count, dtype=torch.int64))
    imagine(residual, within, starts, config, generator)
    started_s = time.process_time()
    for _ in range(_UPDATES):
        imagine(residual, within, starts, config, generator)
    chunks = _UPDATES * config.branches * config.chunks
    return {"branch_chunks_per_s_core": chunks / (time.process_time() - started_s)}
