"""What is predicted of policies: known answers in a world that they understand, and whole runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_imagined_edit import learner
from tiny_world import MIXED, P, make_episode

from vla_rl.cli.main import main
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig
from vla_rl.policies.checkpoint import save_selector
from vla_rl.policies.folders import load_model
from vla_rl.policies.residual import Residual, ResidualConfig
from vla_rl.training.policy_ranking import predict, predict_success

pytestmark = pytest.mark.usefixtures("small_dynamics")
TINY = ["--config", "tiny", "algorithm=imagined_edit", "budget.evaluation_episodes=1", "learning.critic.chunk_ticks=8"]
TINY += ["learning.critic.hidden=[8]", "learning.dynamics.steps=5"]


def arriving(index: int):
    """The state adds up the first action; the episode succeeds once it is above 1, and fails after sixteen steps."""
    random = np.random.default_rng(index)
    action = random.normal(0, 1, (8, 2)).astype(np.float32).repeat(2, 0)
    state = np.zeros((16, 2), np.float32)
    state[:, 0] = random.normal(0, 0.3) + 0.3 * np.concatenate([[0], action[:-1, 0].cumsum()])
    arrived = np.flatnonzero(state[:, 0] > 1)
    length = arrived[0] + 1 if len(arrived) else 16
    own = {"state": state[:length], "action": action[:length]}
    episode = make_episode(f"round-{index:03d}", [P] * length, bool(len(arrived)), **own)
    episode.images["front"][:] = 0
    return episode


def going(model, way: float) -> BestOfN:
    """A policy whose first action is moved by as much."""
    residual = Residual(model, ResidualConfig(hidden=(8,), bound=2.0))
    with torch.no_grad():
        residual.net[-1].weight.zero_()
        residual.net[-1].bias.copy_(torch.tensor([way, 0.0]))
    return BestOfN(None, BestOfNConfig(num_samples=1, offset_std=0.0), residual, ticks=2)


@pytest.mark.slow
def test_policies_are_predicted_in_the_order_of_what_they_do(make_cache) -> None:
    cache = make_cache([arriving(index) for index in range(80)])
    judge = learner(cache, dynamics={"steps": 300})
    up, still, down = (predict(judge, going(judge.model, way), 100) for way in (0.8, 0.0, -0.8))
    assert up.success - 0.1 > still.success > down.success + 0.1
    assert predict(judge, None, 100).success == pytest.approx(still.success, abs=0.1)
    assert np.mean(up.worlds) == pytest.approx(up.success), "as many episodes in every world"
    assert len(up.worlds) == 5


def test_it_is_the_same_again_and_leaves_random_numbers_alone(make_cache) -> None:
    judge = learner(make_cache(MIXED))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again = predict(judge, None, 7), predict(judge, None, 7)
    assert first == again
    assert torch.equal(before, torch.get_rng_state())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    options = [*TINY, "task.env=tests.fakes.lucky:make_lucky", "takeover.enabled=false", "learning.branches.updates=1"]
    few = ["budget.steps_per_round=1", "learning.distill_steps=0", "budget.evaluate_every_round=false"]
    assert main(["train", *options, *few, "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_the_policies_of_a_run_are_ranked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["imagine", "rank", str(run), "--episodes", "6"]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if "version_" in row]
    assert main(["imagine", "rank", str(run), "--episodes", "6", "--policies", str(run)]) == 0
    newest = [row for row in capsys.readouterr().out.splitlines() if "version_" in row]
    assert newest == [row for row in rows if "version_0002" in row]
    told = [float(row.split("|")[2].strip(" %")) for row in rows]
    assert len(rows) == len(RunFolder(run).policy_versions())
    assert told == sorted(told, reverse=True)


@pytest.mark.slow
def test_a_policy_may_be_judged_at_another_length_than_is_executed(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        predict_success(run, tmp_path / "nowhere")
    model, meta = load_model(run / "policies" / "version_0002")
    model.save(tmp_path / "other", meta)
    residual = Residual(model, ResidualConfig(hidden=(8,)))
    save_selector(
        tmp_path / "other" / "critic", BestOfN(None, BestOfNConfig(num_samples=1, offset_std=0.0), residual, ticks=3)
    )
    config = (run / "config.yaml").read_text()
    assert "execute_ticks: 8" in config
    found = []
    for executed in (8, 2, 1):
        (run / "config.yaml").write_text(config.replace("execute_ticks: 8", f"execute_ticks: {executed}"))
        found.append(predict_success(run, tmp_path / "other", 6))
    (run / "config.yaml").write_text(config)
    assert found[0] != found[1], "the model knows chunks as long as those that the run executes"
    assert found[1] == found[2], "of one tick at a time the model knows two"


@pytest.mark.slow
def test_a_run_without_practice_foretells_nothing(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert main(["train", *TINY, "budget.rounds=0", "task.env=tests.fakes.lucky:make_lucky", "--out", str(new)]) == 0
    with pytest.raises(UserError, match="no episodes of a policy"):
        predict_success(new, run / "policies" / "version_0001")
