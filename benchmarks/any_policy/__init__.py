"""Base policies of any kind. With --gain: what practice makes of frozen ones. With --serve: policies on another
computer, in both directions.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.any_policy import gain
from vla_rl.core.errors import UserError

_OPENPI = "uv venv openpi && uv pip install --python openpi openpi-client openpi-server typing_extensions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gain", nargs="+", choices=list(gain.BASES), metavar="BASE", help=", ".join(gain.BASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="new rounds of a run in this call, at most")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-any-policy"), help="where run folders are kept")
    parser.add_argument("--serve", action="store_true", help="faults, fuzz, latency and load of policy servers")
    parser.add_argument("--faults", type=int, default=2000, help="number of injected faults")
    parser.add_argument("--messages", type=int, default=20_000, help="number of fuzzed messages")
    parser.add_argument("--openpi", type=Path, help=f"Python of an environment with openpi's packages: {_OPENPI}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.gain:
        measured = gain.measure(options.out, options.runs, options.gain, options.seeds, options.rounds)
        return {**_kept(options.out), **measured}
    if not options.serve:
        raise UserError("any_policy measures nothing by default; choose --serve or --gain")
    from benchmarks.any_policy import serving

    faults, fuzz = serving.faults(options.faults), serving.fuzz(options.messages)
    sound = serving.faults(0, ticks=faults["ticks"])
    found: dict[str, Any] = {
        **_kept(options.out),
        "server_faults": faults["faults"],
        "server_faults_ticks": faults["ticks"],
        "server_faults_lost_ticks": faults["lost_ticks"],
        "server_faults_held_ticks": faults["held_ticks"],
        "sound_server_ticks": sound["ticks"],
        "sound_server_lost_ticks": sound["lost_ticks"],
        "server_fuzz_messages": fuzz["messages"],
        "server_fuzz_refused": fuzz["refused"],
        "server_fuzz_crashes": fuzz["crashes"],
        "remote_action_difference": serving.same_episodes(),
        **serving.latency(),
    }
    if options.openpi is None:
        return found | {"openpi_skipped": f"no --openpi PYTHON; {_OPENPI}"}
    return found | {
        "openpi_client_ok": serving.openpi_client(options.openpi),
        "openpi_server_ok": serving.openpi_server(options.openpi),
    }


def _kept(folder: Path) -> dict[str, Any]:
    """Figures of the other parts of this benchmark."""
    file = folder / "any_policy.json"
    return json.loads(file.read_text()) if file.exists() else {}


def table(result: dict[str, Any]) -> str:
    """Markdown of a result."""
    parts = [gain.table(result["gain_cells"])] if result.get("gain_cells") else []
    return "\n\n".join([*parts, *([_of_servers(result)] if "server_faults" in result else [])])


def _of_servers(result: dict[str, Any]) -> str:
    rows = [
        ("faults of a server, every second answer", result["server_faults"]),
        (f"control ticks lost to them, of {result['server_faults_ticks']}", result["server_faults_lost_ticks"]),
        (f"the same at a server without faults, of {result['sound_server_ticks']}", result["sound_server_lost_ticks"]),
        ("control ticks that were held", result["server_faults_held_ticks"]),
        (f"crashes of {result['server_fuzz_messages']} fuzzed messages", result["server_fuzz_crashes"]),
        ("largest difference of an action, remote and in process", result["remote_action_difference"]),
        ("round trip without inference, two images of 224 x 224, ms", f"{result['wire_ms']:.1f}"),
        ("the same, 95th percentile, ms", f"{result['wire_95_ms']:.1f}"),
        ("chunks/s of eight clients", f"{result['load_chunks_per_s']:.0f}"),
    ]
    rows += [
        (name, result[name]) for name in ("openpi_client_ok", "openpi_server_ok", "openpi_skipped") if name in result
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])
