"""The scripts of examples/, at test size."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import vla_rl as vla
from tests.fakes.lerobot_configs import shrink_resnet
from tests.policies.lerobot_programs import write_policy
from vla_rl.acting.policy_folder import find_policy
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


BRIEF_PROXY = {
    "budget.steps_per_round": 3,
    "budget.evaluation_episodes": 2,
    "learning.distill_steps": 2,
    "learning.actor.batch_size": 8,
    "learning.td.updates": 2,
    "policy.net.vision.widths": [8, 16],
    "policy.net.expert.width": 32,
    "policy.net.expert.layers": 1,
}


@pytest.mark.slow
def test_a_class_improves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    call("improve_own_policy", rounds=1, episodes=3, **BRIEF_PROXY)
    assert "round 1: " in capsys.readouterr().out
    assert vla.load_policy("runs/reaching").infer(vla.make_env("own_task:DotEnv").observe()).actions.shape == (16, 2)


@pytest.mark.slow
def test_a_policy_that_lerobot_trained_improves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink_resnet(monkeypatch)
    write_policy("act", Path("trained"), 64, 8)
    export_lerobot(vla.collect_demonstrations(vla.make_env("vla_rl/PegInsert-v0"), 1), Path("dataset"))
    of_act = {"learning.critic.chunk_ticks": 4, "execution.execute_ticks": 4}  # its chunks have four actions
    call("improve_lerobot_policy", "trained", "dataset", rounds=1, episodes=2, **BRIEF_PROXY, **of_act)
    assert "unexplained" in capsys.readouterr().out


@pytest.mark.slow
def test_a_policy_on_a_server_improves(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("websockets", reason="needs the extra serve")
    from benchmarks.any_policy.faults import in_thread
    from vla_rl.acting.serve import PolicyServer

    env = vla.make_env("vla_rl/PegInsert-v0")
    vla.FlowVLA.from_data(vla.collect_demonstrations(env, 1), robot=env).save("served")
    with in_thread(PolicyServer(find_policy("served"))) as url:
        few = {"policy.asks_per_round": 20, "budget.evaluation_episodes": 1}
        call("improve_remote_policy", url, rounds=1, episodes=2, **BRIEF_PROXY | few)
    found = re.search(r"(\d+) further chunks of the server", capsys.readouterr().out)
    assert found
    assert 0 < int(found[1]) <= 20
