"""The scripts of examples/, at test size."""

import runpy
from pathlib import Path
from typing import Any

import pytest

import vla_rl as vla
from vla_rl.data.lerobot_export import export_lerobot

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "scripts"


def call(name: str, *arguments: Any, **settings: Any) -> None:
    runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"](*arguments, **settings)


@pytest.fixture(autouse=True)
def in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_a_script_has_forty_lines_at_most(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= 40


@pytest.mark.slow
def test_a_policy_is_trained_saved_and_acts_on_a_robot(capsys: pytest.CaptureFixture[str]) -> None:
    call("train_from_demonstrations", episodes=1, steps=2, evaluated=2)
    assert "success" in capsys.readouterr().out
    call("act_on_a_robot", "policies/peg", seconds=0.5)
    told = capsys.readouterr().out
    assert "commands at 20 Hz, from version 0" in told
    assert "largest step" in told


@pytest.mark.slow
def test_an_own_task_is_practiced_evaluated_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    brief = {"budget.steps_per_round": 2, "budget.evaluation_episodes": 2, "algorithm": "filtered_bc"}
    call("practice_alone", rounds=1, steps=2, episodes=2, **brief)
    told = capsys.readouterr().out
    assert "round 1: " in told
    assert vla.load_policy("runs/dot-deployment").spec.action_dim == 2


@pytest.mark.slow
def test_a_dataset_of_lerobot_is_learned_from(capsys: pytest.CaptureFixture[str]) -> None:
    env = vla.make_env("vla_rl/PegInsert-v0", image_size=32)
    export_lerobot(vla.collect_demonstrations(env, 1), Path("dataset"))
    call("finetune_from_lerobot", "dataset", steps=2, batch_size=4)
    assert "1 episodes: 1 successes, 0 failures" in capsys.readouterr().out
    assert (Path("policies/my_arm") / "config.json").exists()
