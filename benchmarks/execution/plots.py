"""Pictures of the execution benchmark, as SVG beside its results."""

from pathlib import Path
from typing import Any

from benchmarks.execution.grid import OTHER_DELAY, POLICY_OF
from benchmarks.pictures.plotting import save_svg
from benchmarks.runs import short_name
from vla_rl.report.statistics import wilson_interval

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MARKS = "osD^v<>PX"


def draw(result: dict[str, Any], folder: Path) -> None:
    """Draw ``execution-success.svg`` and ``execution-motion.svg``; a picture whose cells are missing stays
    unchanged."""
    import matplotlib

    matplotlib.use("svg")
    delays = {cell["delay_ticks"] for cell in result["cells"]}
    with matplotlib.rc_context(_STYLE):
        if len(delays) > 1:
            save_svg(_success(result["cells"]), folder / "execution-success.svg")
        if OTHER_DELAY in delays:
            save_svg(_motion(result["cells"]), folder / "execution-motion.svg")


def _success(cells: list[dict[str, Any]]) -> Any:
    """Success with its Wilson interval against the delay, a line per strategy."""
    from matplotlib.figure import Figure

    task = next(cell["task"] for cell in cells if cell["delay_ticks"] != OTHER_DELAY)
    figure = Figure((7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, strategy in enumerate(POLICY_OF):
        found = [cell for cell in cells if cell["task"] == task and cell["strategy"] == strategy]
        if not found:
            continue
        found.sort(key=lambda cell: cell["delay_ticks"])
        x = [cell["delay_ticks"] + 0.05 * (index - len(POLICY_OF) / 2) for cell in found]
        rates = [cell["successes"] / cell["episodes"] for cell in found]
        bounds = [wilson_interval(cell["successes"], cell["episodes"]) for cell in found]
        low = [rate - bound[0] for rate, bound in zip(rates, bounds, strict=True)]
        high = [bound[1] - rate for rate, bound in zip(rates, bounds, strict=True)]
        look: dict[str, Any] = {"color": "black", "linestyle": "--"} if strategy == "sync" else {"color": f"C{index}"}
        axes.errorbar(x, rates, (low, high), label=strategy, marker=_MARKS[index], markersize=5, elinewidth=0.8, **look)
    axes.set_xlabel("delay of inference, ticks of 50 ms")
    axes.set_ylabel(f"success on {short_name(task)}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _motion(cells: list[dict[str, Any]]) -> Any:
    """Throughput, seam jumps and jerk of every strategy at a delay of 4, as bars."""
    from matplotlib.figure import Figure

    task = next((cell["task"] for cell in cells if cell["delay_ticks"] != OTHER_DELAY), cells[0]["task"])
    found = {cell["strategy"]: cell for cell in cells if cell["task"] == task and cell["delay_ticks"] == OTHER_DELAY}
    names = [name for name in POLICY_OF if name in found][::-1]
    measures = {
        "successes per minute\nof simulated time": [
            60 * found[name]["successes"] / found[name]["simulated_s"] for name in names
        ],
        "seam jumps: p99\nover median within chunks": [found[name]["seam_ratio"] for name in names],
        "jerk of the command,\nm/s³": [found[name]["jerk_rms"] for name in names],
    }
    figure = Figure((9.0, 3.4), layout="constrained")
    for axes, (label, values) in zip(figure.subplots(1, 3, sharey=True), measures.items(), strict=True):
        bars = axes.barh(names, values, color=["0.35" if name == "sync" else "C0" for name in names])
        axes.bar_label(bars, fmt="{:.3g}", padding=3, fontsize=8)
        axes.set_xlabel(label, fontsize=9)
        axes.margins(x=0.18)
    figure.suptitle(f"{short_name(task)}, delay of {OTHER_DELAY} ticks")
    return figure
