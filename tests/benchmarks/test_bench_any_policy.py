"""The benchmark of remote policies, at a small size."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="needs the extra serve")

import vla_rl as vla
from benchmarks import any_policy
from benchmarks.any_policy import decision, distillation, gain, serving, waits
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig


@pytest.mark.slow
def test_faults_reach_the_robot_and_cost_no_tick() -> None:
    found = serving.faults(5, duration_s=2.0)
    assert found["faults"] >= 5
    assert found["ticks"] >= 190
    assert found["lost_ticks"] <= 3  # the machine of the tests has other work


def test_the_fuzz_meets_both_parsers_and_the_policy_behind_them() -> None:
    found = serving.fuzz(400)
    assert found["messages"] >= 400
    assert found["crashes"] == 0
    assert 0.1 < found["refused"] / found["messages"] < 0.95, "some messages have to be right"


@pytest.mark.slow
def test_a_policy_behind_a_server_acts_as_it_does_here() -> None:
    assert serving.same_episodes(episodes=1) == 0


def test_nothing_is_measured_unasked(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    any_policy.add_arguments(parser)
    with pytest.raises(UserError, match="--serve"):
        any_policy.run(argparse.Namespace(**vars(parser.parse_args([])), out=tmp_path))


def test_gains_are_summed_up_by_base_policy(tmp_path: Path) -> None:
    def cell(base: str, seed: int, *success: float, unchanged: int = 1) -> dict[str, Any]:
        entries = [{"success": share, "episodes": 200, "proxy_unexplained": 0.02} for share in success]
        return {"base": base, "seed": seed, "supervised": entries[0], "practiced": entries[1:]} | {
            "base_unchanged": unchanged,
            "measured": {"cpu": "a processor", "commit": "abc"},
        }

    cells = [cell("deterministic", 0, 0.5, 0.7, 0.8, 0.9), cell("deterministic", 1, 0.6, 0.6, 0.7, 0.8, unchanged=0)]
    found = gain.summary(cells)
    assert found["gain_450_points_deterministic"] == pytest.approx(30)
    assert (found["gain_450_deterministic_seeds"], found["base_unchanged_deterministic"]) == (2, 0)
    assert not [name for name in found if "act" in name and "unchanged" in name]
    told = any_policy.of_gain({**found, "measured": {"gain": {"command": "python -m benchmarks any_policy --gain x"}}})
    assert "| deterministic | 1 | 60% [53, 67] | 60%" in told
    assert "--gain x`" in told


def test_delays_are_compared_with_the_same_seeds_and_harm_is_counted() -> None:
    def cell(base: str, seed: int, *success: float) -> dict[str, Any]:
        entries = [{"success": share, "episodes": 200} for share in success]
        return {"base": base, "seed": seed, "supervised": entries[0], "practiced": entries[1:], "base_unchanged": 1}

    prompt = [cell("deterministic", 0, 0.5, 0.8, 0.8, 0.8), cell("deterministic", 1, 0.5, 0.4, 0.6, 1.0)]
    found = gain.summary([*prompt, cell("delay_4", 1, 0.4, 0.29, 0.35, 0.9)])
    assert found["delay_4_success_ratio"] == pytest.approx(0.9)
    assert "delay_8_success_ratio" not in found
    assert found["never_worse"] == 2, "40 % [33, 47] after 50 %, and 29 % [23, 36] after 40 %; 35 % [29, 42] is not"
    assert "delay_4_success_ratio" not in gain.summary([prompt[0], cell("delay_4", 1, 0.4, 0.5, 0.6, 0.9)])


def test_an_opaque_policy_is_compared_with_its_native_runs_of_the_same_seeds() -> None:
    cells = [
        {"base": "flow_opaque", "seed": seed, "supervised": entry, "practiced": [entry], "base_unchanged": 1}
        for seed, entry in enumerate([{"success": 0.9, "episodes": 200}, {"success": 0.8, "episodes": 200}])
    ]
    native = [{"seed": seed, "practised": {"success": success}} for seed, success in ((0, 0.92), (1, 0.86), (2, 0.1))]
    assert gain.summary(cells, native)["gap_to_native_points"] == pytest.approx(4)
    assert "gap_to_native_points" not in gain.summary(cells, native[1:])


def test_imagination_is_compared_after_one_round_of_the_same_seeds() -> None:
    def cell(base: str, seed: int, success: float) -> dict[str, Any]:
        entries = [{"success": share, "episodes": 200, "proxy_unexplained": 0.02} for share in (0.5, success)]
        return {"base": base, "seed": seed, "supervised": entries[0], "practiced": entries[1:], "base_unchanged": 1}

    cells = [cell("imagined", 0, 0.7), cell("imagined", 1, 0.9), cell("unimagined", 1, 0.8)]
    found = gain.summary(cells)
    assert found["works_with_black_box_points"] == pytest.approx(10)
    assert found["gain_150_points_imagined"] == pytest.approx(30)
    assert "works_with_black_box_points" not in gain.summary(cells[:1])
    of_act = [cell("imagined_act", 0, 0.5), cell("unimagined_act", 0, 0.54)]
    assert gain.summary([*cells, *of_act])["works_with_black_box_points"] == pytest.approx((10 - 4) / 2)
    told = gain.table([{**each, "measured": {"cpu": "a processor", "commit": "abc"}} for each in cells])
    widths = {line.count("|") for line in told.splitlines() if line.startswith("|")}
    assert widths == {8}, "a row has a cell for each round, also where there was only one"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "planned"), [("act", 16), ("diffusion", 15)])
def test_policies_of_lerobot_are_described(tmp_path: Path, kind: str, planned: int) -> None:
    folder = gain._described(kind, tmp_path / kind)
    spec = PolicySpec("own", ("front",), (64, 64), 4, 4)
    assert LeRobotModel.planned(LeRobotPolicyConfig(folder=str(folder)), spec) == planned


@pytest.mark.slow
def test_a_slow_remote_base_policy_acts_and_its_waits_are_counted() -> None:
    slow, prompt, fast = waits.measure(30)
    assert slow["first_plan_ticks"] >= 2, "80 ms are more than a tick of 50 ms"
    assert fast["first_plan_ticks"] >= 4, "and four of 20 ms"
    for row in (slow, prompt, fast):
        assert row["first_plan_ticks"] + row["ticks"] + row["lost_ticks"] >= 30
        assert row["waits"] == row["lost_ticks"] + row["held_ticks"]


def test_a_part_keeps_the_figures_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = {"command": "old", "server_faults": 7, "waits": 9, "measured": {"serve": {"commit": "abc"}}}
    (tmp_path / "any_policy.json").write_text(json.dumps(earlier))
    row = {"base": "far", "hz": 20, "ticks": 30, "lost_ticks": 0, "held_ticks": 0, "first_plan_ticks": 3, "waits": 0}
    monkeypatch.setattr(waits, "measure", lambda ticks: [row])
    parser = argparse.ArgumentParser()
    any_policy.add_arguments(parser)
    found = any_policy.run(argparse.Namespace(**vars(parser.parse_args(["--waits", "30"])), out=tmp_path))
    assert (found["server_faults"], found["waits"], found["measured"]["serve"]["commit"]) == (7, 0, "abc")
    assert "command" not in found, "that of this call"
    assert "| far | 20 | 30 | 0 | 0 | 3 |" in any_policy.of_waits(found)
    assert found["measured"]["waits"]["cpu"] in any_policy.of_waits(found)


@pytest.mark.slow
def test_a_run_is_distilled_anew_round_by_round(tmp_path: Path) -> None:
    env, policy = vla.make_env("vla_rl/PegInsert-v0"), f"{waits.__name__}:Delayed"
    brief = {"budget.steps_per_round": 3, "budget.evaluation_episodes": 1, "policy.asks_per_round": 20}
    brief |= {"learning.distill_steps": 2, "learning.actor.batch_size": 8, "learning.td.updates": 2}
    demonstrations = vla.collect_demonstrations(env, 1)
    run = tmp_path / "run"
    practice = vla.Practice(
        policy, env, demonstrations=demonstrations, episodes_per_round=2, out=str(run), settings=brief
    )
    assert len([*practice.rounds(2)]) == 2
    fresh, same, whole = distillation.measure(run, steps=3)
    assert fresh["frames"] < same["frames"] == whole["frames"]
    assert (fresh["steps"], same["steps"], whole["steps"]) == (3, 3, 3), "none is good after three steps"
    assert all(row["base_asked"] <= 20 and row["unexplained"] > 0 for row in (fresh, same, whole))


@pytest.mark.slow
def test_the_graphs_decide_as_torch_does_and_both_are_timed() -> None:
    pytest.importorskip("onnxscript", reason="exporting needs the extra 'trt'")
    found = decision.measure(3)
    assert found["max_difference"] < 1e-4
    assert all(found[f"{how}_{part}_ms"] > 0 for how in ("torch", "ort") for part in ("encode", "decide"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lerobot, peft and transformers; not ours
def test_smolvla_goes_through_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    pytest.importorskip("transformers", reason="SmolVLA needs the extra 'lerobot-policies'")
    from benchmarks.any_policy import smolvla

    small = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    monkeypatch.setattr(smolvla, "_TEXT", smolvla._TEXT | small | {"head_dim": 32, "vocab_size": 64})
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setattr(smolvla, "_VISION", smolvla._VISION | small)
    found = smolvla.measure(1)
    assert found["served"]
    assert found["base_asked"] > 20
    assert found["adapters_mb"] < found["weights_mb"]
    origin = {"cpu": "a processor", "commit": "abc", "command": "this"}
    table = any_policy.of_smolvla({"smolvla": found, "measured": {"smolvla": origin}})
    assert table.count("\n| ") == len(found["rows"]) == 7
