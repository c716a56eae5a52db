"""The benchmark of remote policies, at a small size."""

import argparse
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="needs the extra serve")

from benchmarks import any_policy
from benchmarks.any_policy import serving
from vla_rl.core.errors import UserError


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


def test_a_policy_behind_a_server_acts_as_it_does_here() -> None:
    assert serving.same_episodes(episodes=1) == 0


def test_nothing_is_measured_unasked(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    any_policy.add_arguments(parser)
    with pytest.raises(UserError, match="--serve"):
        any_policy.run(argparse.Namespace(**vars(parser.parse_args([])), out=tmp_path))
