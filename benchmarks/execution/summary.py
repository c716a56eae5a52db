"""The figures of the execution benchmark from its cells, and their tables."""

from collections.abc import Sequence
from typing import Any

from benchmarks.cells import origin
from benchmarks.execution.grid import DELAYS, OTHER_DELAY, POLICY_OF
from benchmarks.runs import short_name
from vla_rl.report.statistics import wilson_interval

Found = dict[str, Any]
_NOT_RIVALS = ("sync", "naive")
_TIMINGS = {
    "host": (
        "tick_us_median",
        "tick_us_p99",
        "tick_us_median_without_jerk_limits",
        "lerobot_us_median",
        "lerobot_rtc_us_median",
        "tick_vs_lerobot",
        "tick_vs_lerobot_rtc",
    ),
    "corrector": ("corrector_us_median", "corrector_us_p99"),
    "jitter": (
        "period_p99_process_vs_thread",
        "jitter_p99_process_vs_thread",
        "jitter_p99_ms_process",
        "jitter_p99_ms_thread",
        "period_p99_ms_process",
        "period_p99_ms_thread",
        "jitter_p999_process_vs_thread",
        "jitter_p999_ms_process",
        "jitter_p999_ms_thread",
    ),
}


def summarize(cells: Sequence[Found]) -> Found:
    """Everything that is known; figures whose cells are missing are left out."""
    result: Found = {"cells": [cell for cell in cells if cell["kind"] == "success"]}
    result["measured"] = [{"measured": cell["measured"]} for cell in cells]
    for cell in cells:
        for name in _TIMINGS.get(cell["kind"], ()):
            if name in cell:
                result[name] = cell[name]
    for kind, count, failed in (
        ("faults", "trials", "failed"),
        ("alignment", "ticks", "misaligned"),
    ):
        found = [cell for cell in cells if cell["kind"] == kind]
        if found:
            prefix = "fault_trials" if kind == "faults" else "alignment_ticks"
            result[prefix] = sum(cell[count] for cell in found)
            result[f"{prefix}_failed"] = sum(cell[failed] for cell in found)
    return {**result, **_comparison(result["cells"])}


def _comparison(cells: Sequence[Found]) -> Found:
    """The asynchronous strategy that is best over all delays of at least 2 on the default task, and its margins."""
    rates = _rates(cells)
    late = [delay for delay in DELAYS if delay >= 2]
    complete = [name for name in POLICY_OF if name not in _NOT_RIVALS and all((name, delay) in rates for delay in late)]
    if not complete:
        return {}
    best = max(complete, key=lambda name: sum(rates[name, delay] for delay in late))
    found: Found = {"best_strategy": best}
    if all(("naive", delay) in rates for delay in late):
        margins = {str(delay): 100 * (rates[best, delay] - rates["naive", delay]) for delay in late}
        found["best_minus_naive_points"] = margins
        found["best_above_naive_at_every_delay"] = all(margin > 0 for margin in margins.values())
    if ("sync", OTHER_DELAY) in rates:
        early = [
            delay for delay in DELAYS if delay <= OTHER_DELAY and ("sync", delay) in rates and (best, delay) in rates
        ]
        found["best_minus_sync_points"] = {
            str(delay): 100 * (rates[best, delay] - rates["sync", delay]) for delay in early
        }
        found["best_minus_sync_points_d4"] = 100 * (rates[best, OTHER_DELAY] - rates["sync", OTHER_DELAY])
        per_minute = {cell["strategy"]: _per_minute(cell) for cell in _of_default_task(cells, OTHER_DELAY)}
        if per_minute["sync"]:
            found["throughput_ratio_d4"] = per_minute[best] / per_minute["sync"]
    return found


def _default_task(cells: Sequence[Found]) -> str | None:
    """The task that was measured at more delays than one."""
    return next((cell["task"] for cell in cells if cell["delay_ticks"] != OTHER_DELAY), None)


def _of_default_task(cells: Sequence[Found], delay: int) -> list[Found]:
    task = _default_task(cells)
    return [cell for cell in cells if cell["task"] == task and cell["delay_ticks"] == delay]


def _rates(cells: Sequence[Found]) -> dict[tuple[str, int], float]:
    """(strategy, delay) -> success rate on the default task."""
    task = _default_task(cells)
    return {
        (cell["strategy"], cell["delay_ticks"]): cell["successes"] / cell["episodes"]
        for cell in cells
        if cell["task"] == task
    }


def _per_minute(cell: Found) -> float:
    """Successes per minute of simulated time."""
    return float(60 * cell["successes"] / cell["simulated_s"])


def as_markdown(result: Found) -> str:
    """Markdown: what must hold, success against the delay, motion at a delay of 4, other tasks."""
    parts = [_required(result)]
    if result["cells"]:
        parts += [_success(result), _motion(result), _others(result)]
    machine = f"{origin(result['measured'])} Command: `{result['command']}`."
    return "\n\n".join([*filter(None, parts), machine])


def _required(result: Found) -> str:
    wanted = [
        ("best_minus_sync_points_d4", "success of the best asynchronous strategy minus sync's, d = 4, points", "≥ -3"),
        ("throughput_ratio_d4", "its successes per minute of simulated time over sync's, d = 4", "≥ 1.15"),
        ("best_above_naive_at_every_delay", "it is above naive at every d ≥ 2", "yes"),
        ("tick_us_median", "a tick of executor and gate, µs, median", "≤ 50"),
        ("tick_vs_lerobot", "the same over lerobot's host path with its default engine", "≤ 0.2"),
        ("tick_vs_lerobot_rtc", "the same over lerobot's host path with its real-time-chunking engine", "reported"),
        ("corrector_us_median", "what the residual head of a2c2 adds to a tick, µs, median", "reported"),
        (
            "period_p99_process_vs_thread",
            "99th percentile of the period, inference in a process over in a thread",
            "≤ 0.85",
        ),
        ("jitter_p99_process_vs_thread", "the same of the period's distance from 20 ms", "≤ 0.85"),
        ("jitter_p999_process_vs_thread", "and its 99.9th percentile", "reported"),
        ("fault_trials_failed", f"fault trials that failed, of {result.get('fault_trials', 0):,}", "0"),
        ("alignment_ticks_failed", f"misaligned ticks, of {result.get('alignment_ticks', 0):,}", "0"),
    ]
    rows = [f"| {what} | {limit} | {_shown(result.get(name))} |" for name, what, limit in wanted]
    best = f"Best asynchronous strategy: {result['best_strategy']}." if "best_strategy" in result else ""
    return "\n".join(["| figure | required | measured |", "|---|---|---|", *rows, "", best]).strip()


def _shown(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"**{value:g}**" if isinstance(value, int) else f"**{value:.2f}**"


def _success(result: Found) -> str:
    task = _default_task(result["cells"])
    delays = sorted({cell["delay_ticks"] for cell in result["cells"] if cell["task"] == task})
    if task is None:
        return ""
    columns = ["trained as", "episodes a cell", *(f"d = {delay}" for delay in delays)]
    rows = [f"| success on {short_name(task)} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for strategy in POLICY_OF:
        found = {
            cell["delay_ticks"]: cell
            for cell in result["cells"]
            if cell["task"] == task and cell["strategy"] == strategy
        }
        if found:
            cells = " | ".join(_rate(found[delay]) if delay in found else "" for delay in delays)
            episodes = " to ".join(map(str, sorted({cell["episodes"] for cell in found.values()})))
            rows.append(f"| {strategy} | {POLICY_OF[strategy]} | {episodes} | {cells} |")
    return "\n".join(rows)


def _rate(cell: Found) -> str:
    low, high = wilson_interval(cell["successes"], cell["episodes"])
    return f"{cell['successes'] / cell['episodes']:.1%} [{100 * low:.0f}, {100 * high:.0f}]"


def _motion(result: Found) -> str:
    found = {cell["strategy"]: cell for cell in _of_default_task(result["cells"], OTHER_DELAY)}
    rows = [
        f"| at d = {OTHER_DELAY} | successes a minute | seam jumps | jumps within chunks | jerk, m/s³ |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {_per_minute(cell):.2f} | {cell['seam_ratio']:.1f} | {cell['within_ratio']:.1f} "
        f"| {cell['jerk_rms']:.0f} |"
        for name in POLICY_OF
        if (cell := found.get(name))
    ]
    note = (
        "Successes per minute of simulated time. Jumps of the planned action from tick to tick, 99th percentile over "
        "the median within chunks. Jerk: root mean square of the sent command's third derivative."
    )
    return "\n".join([*rows, "", note]) if found else ""


def _others(result: Found) -> str:
    default = _default_task(result["cells"])
    tasks = sorted({cell["task"] for cell in result["cells"]} - {default})
    if not tasks:
        return ""
    rows = [
        f"| success at d = {OTHER_DELAY} | " + " | ".join(map(short_name, tasks)) + " |",
        "|---|" + "---|" * len(tasks),
    ]
    found = {(cell["task"], cell["strategy"]): cell for cell in result["cells"] if cell["task"] in tasks}
    for name in POLICY_OF:
        cells = " | ".join(_rate(found[task, name]) if (task, name) in found else "" for task in tasks)
        rows.append(f"| {name} | {cells} |")
    return "\n".join(rows)
