"""Every verb with every fault of its surroundings: each has to end in one line and an exit code, never in a traceback.

In process, in forked children, through `vla_rl.cli.main.main`; and some through the command line itself.
"""

import contextlib
import ctypes
import io
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile import kinds
from benchmarks.hostile.trials import spoil

_OVERRIDE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
# Verb -> its arguments around the input that has the fault, and around the output that has it.
INPUTS: dict[str, tuple[str, ...]] = {
    "demo": ("--resume", "{}"),
    "train": ("--resume", "{}"),
    "eval": ("{}",),
    "rollout": ("{}", "--robot", "mock"),
    "robot": ("check", "{}", "--robot", "mock"),
    "corrector": ("{}",),
    "imagine": ("rollout", "{}"),
    "record": ("vla_rl/PegInsert-v0", "--with", "expert", "--limits", "{}", "--out", "{scratch}/recorded"),
    "play": ("--world", "{}"),
    "export": ("{}", "--out", "{scratch}/exported"),
    "serve": ("{}", "--port", "0"),
    "report": ("{}",),
    "finetune": ("--data", "{}", "--out", "{scratch}/tuned"),
    "label": ("{}",),
    "edit": ("{}",),
    "doctor": ("{}",),
    "sign": ("{}", "--key", "{}"),
    "hub": ("push", "{}", "{scratch}/shared"),
}
OUTPUTS: dict[str, tuple[str, ...]] = {
    "demo": ("--config", "tiny", "--out", "{}/run"),
    "train": ("--config", "tiny", "--out", "{}/run"),
    "record": ("vla_rl/PegInsert-v0", "--with", "expert", "--episodes", "1", "--out", "{}/store"),
    "export": ("{policy}", "--out", "{}/deployment"),
    "finetune": ("--data", "{store}", "--out", "{}/run"),
    "sign": ("--new-key", "{}/key.pem"),
    "hub": ("push", "{policy}", "{}/shared"),
}


def _missing(_: Path) -> None:
    pass


def _a_file(place: Path) -> None:
    place.write_text("x")


def _empty(place: Path) -> None:
    place.mkdir()


def _unreadable(place: Path) -> None:
    place.mkdir(mode=0)


def _nested(place: Path) -> None:
    _described(place, b'{"a":' * 100_000)


def _binary(place: Path) -> None:
    _described(place, bytes(range(256)))


def _unfit(place: Path) -> None:
    _described(place, b"{}")


def _unreadable_files(place: Path) -> None:
    _unfit(place)
    for file in place.glob("*.*"):
        file.chmod(0)


def _loop(place: Path) -> None:
    place.symlink_to(place)


def _unwritable(place: Path) -> None:
    place.mkdir(mode=0o500)


def _described(place: Path, content: bytes) -> None:
    """A folder that looks like all that there is."""
    for folder in ("policies/version_0001", "episodes/episodes", "edits"):
        (place / folder).mkdir(parents=True)
    names = ("config.json", "config.yaml", "store.json", "manifest.json", "task.yaml", "summary.json", "metrics.jsonl")
    for name in (*names, "policies/version_0001/config.json", "episodes/store.json", "episodes/episodes/a.zarr.zip"):
        (place / name).write_bytes(content)


INPUT_FAULTS: dict[str, Callable[[Path], None]] = {
    "missing": _missing,
    "a file": _a_file,
    "empty": _empty,
    "unreadable": _unreadable,
    "nested": _nested,
    "binary": _binary,
    "unreadable files": _unreadable_files,
    "loop": _loop,
}
OUTPUT_FAULTS: dict[str, Callable[[Path], None]] = {"a file": _a_file, "unwritable": _unwritable, "loop": _loop}


def cells() -> Iterator[tuple[str, str, str]]:
    """(verb, where, fault) of the whole matrix."""
    for where, verbs, faults in (("input", INPUTS, INPUT_FAULTS), ("output", OUTPUTS, OUTPUT_FAULTS)):
        for verb in verbs:
            for fault in (*faults, "no more files"):
                yield verb, where, fault


def run_cell(verb: str, where: str, fault: str) -> dict[str, Any]:
    """One cell of the matrix: ``code``, ``one_line``, and ``told`` where it is more than one."""
    with tempfile.TemporaryDirectory(prefix="vla-rl-verbs-") as name:
        scratch = Path(name)
        place = scratch / "place"
        {**INPUT_FAULTS, **OUTPUT_FAULTS, "no more files": _unfit if where == "input" else _empty}[fault](place)
        known = {"scratch": scratch, "policy": scratch / "policy", "store": scratch / "store"}
        if where == "output" and verb in ("export", "hub"):
            kinds.make_policy(known["policy"])
        if where == "output" and verb == "finetune":
            kinds.make_store(known["store"])
        template = (INPUTS if where == "input" else OUTPUTS)[verb]
        arguments = [part.format(place, **known) for part in template]
        code, told = _in_child([verb, *arguments], no_more_files=fault == "no more files")
        if place.exists() and not place.is_symlink():
            place.chmod(0o700)
    errors = [line for line in told.splitlines() if line.startswith("vla-rl: ")]
    fine = code in (0, 1, 2) and len(errors) == (code == 2) and "Traceback" not in told and "internal error" not in told
    shown = "" if fine else re.sub(r"(/[\w.+-]+)+/", "", told)[-600:]  # without the folders of this machine
    return {"verb": verb, "fault": f"{where}: {fault}", "code": code, "told": shown, "one_line": fine}


def _in_child(argv: list[str], no_more_files: bool) -> tuple[int, str]:
    """The exit code and standard error of a verb, in a forked child without the power to override permissions."""
    from vla_rl.cli.main import main

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code, told = 99, io.StringIO()
        os.chdir(Path(argv[1]).parent if Path(argv[1]).is_absolute() else tempfile.gettempdir())
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            effective_capabilities(lambda sets: sets & ~_OVERRIDE)
            if no_more_files:
                open_now = len(os.listdir("/proc/self/fd")) - 1  # listing them takes one
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_now, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            try:
                code = main(argv)
            except SystemExit as error:
                code = int(error.code or 0)
            except BaseException as error:
                told.write(f"Traceback: {error!r}")
        os.write(writing, told.getvalue()[-4000:].encode(errors="replace"))
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as stream:
        told_text = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told_text


def effective_capabilities(change: Callable[[int], int]) -> int:
    """Change the effective capabilities of this thread; gives those before. Root can put some aside for itself alone,
    and take them back.
    """

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    libc, header, sets = ctypes.CDLL(None), Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(ctypes.byref(header), sets)
    before = sets[0]
    sets[0] = change(before)
    libc.capset(ctypes.byref(header), sets)
    return before


def run_commands(block: int, trials: int) -> dict[str, Any]:
    """Mutated episodes, labels and settings through the command line: `doctor` and `label`, processes of their own. A
    trial counts like those in process.
    """
    kind = kinds.KINDS["episode"]
    found: dict[str, Any] = {"kind": "command line", "trials": 0, "tracebacks": 0, "failures": []}
    with tempfile.TemporaryDirectory(prefix="vla-rl-commands-") as name:
        scratch = Path(name)
        kind.make(scratch / "whole")
        for number in range(trials):
            chance = random.Random(f"command {block} {number}")
            copy = Path(shutil.copytree(scratch / "whole", scratch / "copy"))
            mutation = spoil(
                chance.choice((kind, kinds.KINDS["label and settings"])), copy, chance, scratch / "executed"
            )
            verb = chance.choice((["doctor", str(copy)], ["label", str(copy), "--ids", "e0", "--as", "success"]))
            command = [sys.executable, "-m", "vla_rl.cli.main", *verb]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            found["trials"] += 1
            if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or (scratch / "executed").exists():
                found["tracebacks"] += 1
                found["failures"].append({"mutation": mutation, "verb": verb[0], "told": done.stderr.splitlines()[-1:]})
            shutil.rmtree(copy)
    return found
