"""Every verb takes settings the same way, shows its defaults, and names the nearest option for a misspelt one."""

import argparse

import pytest

from vla_rl.cli.main import VERBS, main, make_parser


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_description_and_shows_its_default(verb: str) -> None:
    parser = make_parser(verb)
    shown = " ".join(parser.format_help().split())
    for action in parser._actions:
        assert action.help, f"{action.dest} has no description"
        if action.option_strings and action.default not in (None, False, "", argparse.SUPPRESS, []):
            assert "default" in action.help or f"(default: {action.default})" in shown


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["rollout", "runs/x", "--robot", "mock", "--epsiodes", "3"], "Did you mean '--episodes'?"),
        (["train", "--confg", "demo"], "Did you mean '--config'?"),
        (["rollout", "runs/x", "--robot", "mock", "--latency.typical=4"], "without dashes: latency.typical=4"),
        (["train", "--budget.rounds", "3"], "without dashes: budget.rounds=VALUE"),
        (["rollout", "runs/x"], "required: --robot"),
    ],
)
def test_an_unknown_option(command: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize("verb", ["train", "rollout", "robot", "record", "finetune", "imagine", "corrector", "task"])
def test_settings_are_written_bare(verb: str) -> None:
    needed = {"rollout": ["runs/x", "--robot", "mock"], "robot": ["check", "runs/x", "--robot", "mock"]}
    needed |= {
        "record": ["--out", "x"],
        "imagine": ["train", "runs/x"],
        "corrector": ["runs/x"],
        "task": ["check", "x"],
    }
    parser = make_parser(verb)
    before = parser.parse_intermixed_args(needed.get(verb, []))
    after = parser.parse_intermixed_args([*needed.get(verb, []), "execution.strategy=rtc"])
    taken = before.overrides == [] and after.overrides == ["execution.strategy=rtc"]
    assert taken or (verb == "record" and after.task == "execution.strategy=rtc")


def test_verifying_an_export_needs_no_backend() -> None:
    assert make_parser("export").parse_intermixed_args(["runs/x", "--verify"]).verify == "ort-cpu"
