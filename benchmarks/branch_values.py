"""What the value of a branch says of its outcome, with learnt dynamics and with true ones.

From real steps of the policy's own episodes the same offsets are tried in both worlds. One learned value scores the
branch after each of its chunks. The policy then continues in the simulator, without offsets, to the end, which is the
outcome. Within groups of one start all that differs between branches is what was tried.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import outcomes
from benchmarks.cells import Cells
from benchmarks.ladder import TrueDynamics
from benchmarks.runs import Cell
from benchmarks.statistics import bootstrap_interval
from vla_rl.algorithms.imagined_edit import ImaginedEdit
from vla_rl.algorithms.model_rollouts import ACTION_STD, Imagination, Starts
from vla_rl.algorithms.sampling import torch_generator
from vla_rl.core.errors import UserError
from vla_rl.training.practice import learner_of_run

CHUNKS = 3
GROUPS, DRAWS = 64, 8


def open_cells(out: Path) -> Cells:
    """The seeds that have been measured."""
    return Cells(out / "branch-values", {"groups": GROUPS, "draws": DRAWS, "chunks": CHUNKS})


def measure_seeds(cells: Cells, out: Path, runs: Path, seeds: list[int]) -> None:
    """Measure each seed in its run of the ladder with true dynamics; what has been measured stays."""
    folder = runs / outcomes.open_cells(out).digest
    for seed in seeds:
        run = folder / Cell(outcomes.TASKS[0], seed, "ladder-true_dynamics").name
        cells.once(str(seed), functools.partial(measure, run, GROUPS, DRAWS))


def keys(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What imagination.json gets of the cells: means over seeds; nothing of none."""
    if not found:
        return {}

    def mean(name: str) -> float:
        return float(np.mean([cell["learnt"][name] for cell in found]))

    return {"outcome_auc_branches": mean("auc"), "agreement_within_starts": mean("agreement"), "branch_values": found}


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: what values of branches say, over seeds."""
    rows = [
        "| value of a branch against its outcome | correlation within starts after 1, 2, 3 chunks | pairs in order | "
        "area under the curve |",
        "|---|---|---|---|",
    ]
    for name in ("learnt", "true"):
        every = [cell[name] for cell in found]
        within = ", ".join(f"{number:.2f}" for number in np.mean([each["within"] for each in every], 0))
        agreement, auc = (np.mean([each[key] for each in every]) for key in ("agreement", "auc"))
        rows.append(f"| {name} dynamics | {within} | {agreement:.2f} | {auc:.2f} |")
    return "\n".join(rows)


def measure(run: Path, groups: int, draws: int) -> dict[str, Any]:
    """Branches of one round's world, from a run of `TrueDynamics`.

    Args:
        run: its folder.
        groups: starts.
        draws: branches from each.

    Returns:
        ``learnt`` and ``true``, each with ``within``, the correlation of value and outcome within groups by chunk, and
        its interval over groups. Each also has ``auc`` over all branches after the last chunk, and ``agreement``, the
        share of ordered pairs from one start with different outcomes. Further ``success`` of all and ``mixed`` groups.
    """
    torch.set_num_threads(1)
    learner, config, _ = learner_of_run(run)
    if not isinstance(learner, TrueDynamics):
        raise UserError(f"{run} practiced with {config.algorithm}; expected a run of the ladder with true dynamics")
    fitted = learner.fit_world(torch_generator(config.seed, "branch values", 0))
    chosen = torch.randint(len(fitted.starts.tick), (groups,), generator=torch_generator(config.seed, "starts", 0))
    chosen = chosen.repeat_interleave(draws)
    starts = Starts(fitted.starts.observations.at(chosen), fitted.starts.tick[chosen], fitted.starts.fold[chosen])
    residual, tried = learner.residual, torch_generator(config.seed, "tried", 0)
    offset = torch.randn(len(starts.tick), len(residual.moved), generator=tried) * residual.moved
    offset = residual.raw(ACTION_STD * offset)[:, None]
    values = {}
    for name, kind in (("learnt", ImaginedEdit), ("true", TrueDynamics)):
        within = kind.imagination(learner, fitted, torch_generator(config.seed, "noise", 0))
        values[name], state, won = _branch(within, starts, offset)
    outcome = _play_on(within, state, starts.tick + CHUNKS * within.chunk_ticks, won)
    grouped = outcome.reshape(groups, draws)
    found: dict[str, Any] = {
        name: _agreement(value.reshape(CHUNKS, groups, draws), grouped) for name, value in values.items()
    }
    mixed = (grouped.min(1) < grouped.max(1)).sum()
    return {**found, "groups": groups, "draws": draws, "success": float(outcome.mean()), "mixed": int(mixed)}


@torch.no_grad()
def _branch(within: Imagination, starts: Starts, offset: Tensor) -> tuple[NDArray[np.float64], Any, Tensor]:
    """The values [CHUNKS, B] after each chunk, the state after the last, and whether each has succeeded."""
    tick, won, values = starts.tick, torch.zeros(len(starts.tick), dtype=torch.bool), []
    state = within.world.encode(starts.observations, torch.arange(len(won)) % within.world.members)
    for _ in range(CHUNKS):
        state, success, _ = within.world.predict(state, within.draw(within.see(state)) + offset)
        chance = torch.where(won, 1.0, success)
        won, tick = chance > 0.5, tick + within.chunk_ticks
        values.append(chance + (1 - chance) * within.value(within.see(state), tick, starts.fold))
    return torch.stack(values).double().numpy(), state, won


@torch.no_grad()
def _play_on(within: Imagination, state: Any, tick: Tensor, won: Tensor) -> NDArray[np.float64]:
    """The outcomes, 1 or 0, [B], where the policy goes on to the end."""
    won, alive = won.clone(), torch.arange(len(won))
    while True:
        kept = ~won[alive] & (tick[alive] < within.last_tick)
        alive = alive[kept]
        if not len(alive):
            return won.double().numpy()
        state = type(state)(*(None if part is None else part[kept] for part in state))
        state, success, _ = within.world.predict(state, within.draw(within.see(state)))
        won[alive], tick = success > 0.5, tick + within.chunk_ticks


def _agreement(value: NDArray[np.float64], outcome: NDArray[np.float64]) -> dict[str, Any]:
    """Compare values [CHUNKS, G, K] with outcomes [G, K] (`measure`)."""
    last = value[-1]
    groups = np.stack([*value, outcome], -1)  # [G, K, CHUNKS + 1]
    intervals = [bootstrap_interval(groups, functools.partial(_within_after, chunk), seed=0) for chunk in range(CHUNKS)]
    return {
        "within": [_within_after(chunk, groups) for chunk in range(CHUNKS)],
        "intervals": intervals,
        "auc": _ordered(last.reshape(1, -1), outcome.reshape(1, -1)),
        "agreement": _ordered(last, outcome),
    }


def _within_after(chunk: int, groups: NDArray[np.float64]) -> float:
    """The correlation of a chunk's value and the outcome without each group's means, of [G, K, CHUNKS + 1]."""
    rows = (groups - groups.mean(1, keepdims=True)).reshape(-1, CHUNKS + 1)
    return float(np.corrcoef(rows[:, chunk], rows[:, -1])[0, 1])


def _ordered(value: NDArray[np.float64], outcome: NDArray[np.float64]) -> float:
    """Of all pairs in a row [G, K] with different outcomes, the share in which the success has the higher value."""
    better = (outcome[:, :, None] > outcome[:, None, :]).astype(float)
    right = (value[:, :, None] > value[:, None, :]) + 0.5 * (value[:, :, None] == value[:, None, :])
    return float((better * right).sum() / max(better.sum(), 1.0))
