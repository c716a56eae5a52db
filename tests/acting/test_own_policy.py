"""Somebody else's policy, from a folder on the path: trained, practiced by a worker, resumed, evaluated,
and on a robot.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.interrupted import interrupted, weights
from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.policies.folders import load_model

pytestmark = pytest.mark.slow
OWN = Path(__file__).parents[1] / "fakes" / "own_policy"
SHORT = [
    "budget={demonstrations: 2, supervised_steps: 4, rounds: 1, episodes_per_round: 2, steps_per_round: 4, "
    "evaluation_episodes: 2, checkpoint_every: 2}",
    "policy={kind: 'chunk_mlp:ChunkMLP', hidden: 16}",
    "task.declare.max_episode_steps=60",
    "workers=1",
]


@pytest.fixture(scope="module", autouse=True)
def on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(OWN)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of habc whose worker, a process of its own, knows the policy from the path alone."""
    folder = tmp_path_factory.mktemp("own") / "run"
    assert main(["train", "--config", "tiny", "--out", str(folder), *SHORT]) == 0
    return folder


def test_it_practices(run: Path) -> None:
    evaluations = json.loads((run / "summary.json").read_text())["evaluations"]
    assert [entry["label"] for entry in evaluations] == ["supervised", "round 1"]
    assert weights(run, 0) != weights(run, 1)
    policy = find_policy(run)
    assert (policy.horizon, policy.version, policy.spec.action_dim) == (8, 1, 8)


def test_another_algorithm_starts_from_it(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "filtered"
    arguments = ["--config", "tiny", "--from", str(run), "--out", str(other), *SHORT, "algorithm=filtered_bc"]
    assert main(["train", *arguments, "workers=0"]) == 0
    assert weights(other, 0) == weights(run, 0)
    assert weights(other, 1) != weights(run, 0)


def test_a_resumed_run_ends_in_the_same_weights(run: Path, tmp_path: Path) -> None:
    again = interrupted(run, tmp_path / "again")
    assert main(["train", "--resume", str(again)]) == 0
    assert weights(again, 1) == weights(run, 1)


def test_it_is_evaluated_and_acts_in_the_inference_process(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert "version 1: " in capsys.readouterr().out
    assert main(["rollout", str(run), "--robot", "sim", "--realtime"]) == 0
    assert "success " in capsys.readouterr().out


def test_what_it_cannot_do_is_said_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "deployed")]) == 2
    error = capsys.readouterr().err
    assert "the export of policy.kind=chunk_mlp:ChunkMLP requires flow_graphs (policy.kind=flow_vla and" in error
    assert "What fits: vla-rl rollout" in error
    assert main(["corrector", str(run)]) == 2
    assert "needs a policy of kind 'flow_vla'" in capsys.readouterr().err
    out = ["train", "--config", "tiny", "--out", str(tmp_path / "run"), *SHORT]
    assert main([*out, "algorithm=recap"]) == 2
    assert "algorithm=recap requires indicator" in capsys.readouterr().err
    assert main([*out, "policy.pixel=4"]) == 2
    assert "unknown key 'policy.pixel'. Did you mean 'pixels'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(OWN)])
    monkeypatch.delitem(sys.modules, "chunk_mlp")
    with pytest.raises(UserError, match="'chunk_mlp:ChunkMLP' cannot be imported"):
        load_model(find_policy(run).path)
