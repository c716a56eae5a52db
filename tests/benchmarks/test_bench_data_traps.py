"""Every trap of `benchmarks.data_traps` is met: the right value, or a refusal that names its remedy."""

from pathlib import Path

import pytest

from benchmarks import data_traps
from benchmarks.data_traps.traps import TRAPS, SilentlyWrong, Trap, expect, meet
from vla_rl.core.errors import UserError

data_traps.load()


@pytest.mark.slow
@pytest.mark.parametrize("found", TRAPS, ids=lambda found: f"{found.kind}: {found.input}"[:90])
def test_trap_is_met(found: Trap, tmp_path: Path) -> None:
    outcome = meet(found, tmp_path)
    assert outcome.verdict in ("right", "refused"), outcome


def _refuses(folder: Path) -> str:
    raise UserError("the input is odd; set option=1")


def _is_wrong(folder: Path) -> str:
    expect(False, "0.27 counted as a success")
    return "unreached"


def _breaks(folder: Path) -> str:
    raise KeyError("column")


@pytest.mark.parametrize(
    ("function", "remedy", "verdict"),
    [
        (_refuses, "option=1", "refused"),
        (_refuses, "option=2", "refused without remedy"),
        (_refuses, "", "refused without remedy"),
        (_is_wrong, "", "silently wrong"),
        (_breaks, "", "traceback"),
    ],
)
def test_verdict(function, remedy: str, verdict: str, tmp_path: Path) -> None:
    assert meet(Trap("kind", "input", remedy, function), tmp_path).verdict == verdict
    assert SilentlyWrong not in UserError.__mro__
