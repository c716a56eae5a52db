"""Base policies of any kind. Every option measures one part and keeps the figures of the others. With --gain: what
practice makes of frozen ones. With --serve: policies on another computer, in both directions.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.any_policy import gain
from benchmarks.cells import commit
from vla_rl.core.errors import UserError
from vla_rl.training.machine import describe_machine

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
    parser.add_argument("--waits", type=int, metavar="TICKS", help="ticks in real time with a slow remote base policy")
    parser.add_argument("--decide", type=int, metavar="COUNT", help="decisions that are timed beside the base policy")
    parser.add_argument(
        "--smolvla", type=int, metavar="EPISODES", help="SmolVLA at full size, with EPISODES for its proxy"
    )
    parser.add_argument("--distill", type=Path, metavar="RUN", help="distill anew in two rounds of a run of --gain")


def run(options: argparse.Namespace) -> dict[str, Any]:
    name = next((name for name in _PARTS if getattr(options, name)), None)
    if name is None:
        raise UserError(f"any_policy measures nothing by default; choose --{', --'.join(_PARTS)}")
    file = options.out / "any_policy.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    found = {key: value for key, value in kept.items() if key not in ("command", "machine")}
    found |= _PARTS[name](options)
    origin = {"command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), "commit": commit()}
    found["measured"] = {**kept.get("measured", {}), name: {**origin, "cpu": describe_machine()["cpu"]}}
    return found


def _gain(options: argparse.Namespace) -> dict[str, Any]:
    return gain.measure(options.out, options.runs, options.gain, options.seeds, options.rounds)


def _serve(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_policy import serving

    faults, fuzz = serving.faults(options.faults), serving.fuzz(options.messages)
    sound = serving.faults(0, ticks=faults["ticks"])
    found: dict[str, Any] = {
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


def _waits(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_policy import waits

    rows = waits.measure(options.waits)
    return {"waits": rows[0]["waits"], "waits_ticks": rows[0]["ticks"], "waits_rows": rows}


def _distill(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_policy import distillation

    first, second, whole = rows = distillation.measure(options.distill)
    ratios = {"distill_s_ratio": second["cpu_s"] / whole["cpu_s"], "distill_s_first": first["cpu_s"] / whole["cpu_s"]}
    return {**ratios, "distill_rows": rows}


def _decide(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_policy import decision

    found = decision.measure(options.decide)
    return {"proxy_encode_ms": found["ort_encode_ms"], "decide_ms": found["ort_decide_ms"], "decision": found}


def _smolvla(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_policy import smolvla

    found = smolvla.measure(options.smolvla)
    return {"smolvla_runs": int(found["served"]), "smolvla": found}


_PARTS = {"gain": _gain, "serve": _serve, "waits": _waits, "decide": _decide, "distill": _distill, "smolvla": _smolvla}


def table(result: dict[str, Any]) -> str:
    """Markdown of all parts that have been measured."""
    tables = {
        "gain": of_gain,
        "waits": of_waits,
        "decide": of_decision,
        "distill": of_distillation,
        "serve": of_servers,
        "smolvla": of_smolvla,
    }
    return "\n\n".join(tables[name](result) for name in tables if name in result.get("measured", {}))


def of_gain(result: dict[str, Any]) -> str:
    """Markdown: what practice makes of frozen base policies."""
    command = f"Command: `{result['measured']['gain']['command']}`."
    return f"{gain.table(result['gain_cells'])} {command}"


def of_waits(result: dict[str, Any]) -> str:
    """Markdown: ticks at which the robot waited for a slow remote base policy."""
    columns = "base policy | control rate, Hz | ticks | lost | held | ticks before the first plan"
    lines = [f"| {columns} |", "|---|---|---|---|---|---|"]
    for row in result["waits_rows"]:
        counts = (row[name] for name in ("base", "hz", "ticks", "lost_ticks", "held_ticks", "first_plan_ticks"))
        lines.append(f"| {' | '.join(map(str, counts))} |")
    return "\n".join([*lines, "", _origin(result, "waits")])


def of_decision(result: dict[str, Any]) -> str:
    """Markdown: what is computed beside the base policy."""
    found, lines = result["decision"], ["| | torch, ms | ONNX Runtime, ms |", "|---|---|---|"]
    for part, words in (("encode", "proxy: features of an observation"), ("decide", "residual and critic")):
        lines.append(f"| {words} | {found[f'torch_{part}_ms']:.2f} | {found[f'ort_{part}_ms']:.2f} |")
    described = (
        f"Median CPU time of one thread over {found['decisions']} decisions among {found['candidates']} candidates."
    )
    gap = f"Largest difference of values and actions: {found['max_difference']:.1e}."
    return "\n".join([*lines, "", f"{described} {gap} {_origin(result, 'decide')}"])


def of_distillation(result: dict[str, Any]) -> str:
    """Markdown: what distillation costs, round by round."""
    lines = ["| proxy | observations | gradient steps | CPU seconds | unexplained |", "|---|---|---|---|---|"]
    for row in result["distill_rows"]:
        numbers = f"{row['frames']} | {row['steps']} | {row['cpu_s']:.0f} | {100 * row['unexplained']:.1f} %"
        lines.append(f"| {row['proxy']} | {numbers} |")
    return "\n".join([*lines, "", _origin(result, "distill")])


def of_smolvla(result: dict[str, Any]) -> str:
    """Markdown: a policy of 450 million weights, step by step."""
    found = result["smolvla"]
    lines = ["| step | CPU seconds | peak memory, GB |", "|---|---|---|"]
    lines += [f"| {row['step']} | {row['cpu_s']:.0f} | {row['peak_gb']:.1f} |" for row in found["rows"]]
    proxy = f"{found['base_asked'] + found['base_known']:.0f} observations for the proxy"
    sizes = f"{found['weights_mb']:.0f} MB of weights, {found['adapters_mb']:.1f} MB of adapters"
    described = f"{found['parameters'] / 1e6:.0f} million weights; {sizes}; {proxy}."
    return "\n".join([*lines, "", f"{described} {_origin(result, 'smolvla')}"])


def of_servers(result: dict[str, Any]) -> str:
    """Markdown: faults, fuzz, latency and load of policy servers."""
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
    lines = ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    return "\n".join([*lines, "", _origin(result, "serve")])


def _origin(result: dict[str, Any], part: str) -> str:
    measured = result["measured"][part]
    return f"{measured['cpu']}, commit {measured['commit']}. Command: `{measured['command']}`."
