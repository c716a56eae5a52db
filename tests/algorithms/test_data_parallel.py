"""Several processes that share each gradient step do what one does."""

import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from tiny_world import make_model, tiny
from torch import nn

from vla_rl.algorithms.actor import ActorLearner
from vla_rl.algorithms.config import ActorConfig
from vla_rl.algorithms.data_parallel import Share, Team, _packed, check_gpus, team_of
from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.policies.trainable import PolicyBatch
from vla_rl.runs.config import RunConfig


class Means(nn.Module):
    """Two actions that are learnt, of which the second is asked for by text 1 alone, and one that nobody asks for."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.never = (nn.Parameter(torch.zeros(2)) for _ in range(3))

    def loss(self, batch, generator):
        del generator
        asked = batch.text[:, 0] == 1
        distance = (batch.actions[:, 0] - self.first).square().sum(-1)
        if asked.any():
            distance = distance + asked * (batch.actions[:, 0] - self.second).square().sum(-1)
        return 0.5 * distance, {"asked": float(asked.float().mean())}


@pytest.fixture(scope="module", autouse=True)
def _leave_nobody_behind():
    yield
    team_of(2, torch.device("cpu")).close()


def batch_of(texts, seed=0):
    count = len(texts)
    actions = torch.randn(count, 1, 2, generator=torch.Generator().manual_seed(seed))
    text = torch.tensor(texts)[:, None]
    return PolicyBatch({}, torch.zeros(count, 2), text, actions, torch.ones(1, 1, 1, dtype=torch.bool))


def learner_of(model, processes, **options):
    return ActorLearner(model, tiny("sft", actor={"processes": processes, **options}).actor, seed=0)


def weights_of(learner):
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


@pytest.mark.parametrize("texts", [[0, 1, 1, 0, 1], [1, 0], [0, 0, 0]])
def test_two_processes_take_the_step_of_one(texts):
    learners = [learner_of(Means(), processes, learning_rate=0.1) for processes in (1, 2)]
    weight = torch.linspace(0.5, 2.0, len(texts))
    logs = [[each.update(batch_of(texts, step), weight, step) for step in range(5)] for each in learners]
    for alone, shared in zip(*logs, strict=True):
        assert shared == pytest.approx(alone, rel=1e-5, abs=1e-6)
    for alone, shared in zip(*map(weights_of, learners), strict=True):
        torch.testing.assert_close(shared, alone)
    for learner in learners:  # no gradient is not a gradient of zero, which would have weights decay and moments age
        assert learner.model.never.grad is None
        assert (learner.model.second.grad is None) == (1 not in texts)


def test_every_row_is_in_one_share():
    batch, weight = batch_of(range(7)), torch.arange(7.0)
    shares = [Share.of(batch, weight, rank, 3) for rank in range(3)]
    assert sorted(row for share in shares for row in share.batch.text[:, 0].tolist()) == list(range(7))
    assert all(torch.equal(share.batch.text[:, 0].float(), share.weight) for share in shares)
    assert all(len(share.batch.valid) == 1 for share in shares)
    assert sum(share.fraction for share in shares) == pytest.approx(1.0)


def test_a_share_is_sent_without_the_rows_of_others():
    batch = batch_of(range(20_000))
    whole, half = (len(_packed(Share.of(batch, torch.ones(20_000), 0, processes))) for processes in (1, 2))
    assert half < 0.51 * whole


class Fragile(Means):
    """Fails where it is asked to."""

    fails = False

    def loss(self, batch, generator):
        if self.fails:
            raise ValueError("no gradient today")
        return super().loss(batch, generator)


def test_a_step_that_fails_here_leaves_nobody_waiting_in_it():
    learner = learner_of(Fragile(), 2)
    arguments = batch_of([0, 1, 1, 0]), torch.ones(4)
    learner.update(*arguments, 0)
    learner.model.fails = True
    with pytest.raises(ValueError, match="no gradient"):
        learner.update(*arguments, 1)
    learner.model.fails = False
    twin = learner_of(Fragile(), 1)
    for step in (0, 1):
        twin.update(*arguments, step)
    learner.update(*arguments, 1)
    for alone, shared in zip(weights_of(twin), weights_of(learner), strict=True):
        torch.testing.assert_close(shared, alone)


def vla_batch(model, step):
    generator = torch.Generator().manual_seed(step)
    images = {"front": torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8, generator=generator)}
    columns = [torch.randn(4, 2, generator=generator), model.tokenize(["put it in"] * 4)]
    columns += [torch.randn(4, 4, 2, generator=generator), torch.ones(4, 4, 1, dtype=torch.bool)]
    return PolicyBatch(images, *columns)


def updated(learner, steps):
    for step in steps:
        learner.update(vla_batch(learner.model, step), torch.ones(4), step)
    return learner


def test_resumed_in_the_same_bits_also_after_another_learner():
    whole = updated(learner_of(make_model(), 2), range(6))
    begun = updated(learner_of(make_model(), 2), range(3))
    state = copy.deepcopy(begun.state_dict())
    goes_on = learner_of(make_model(), 2)
    goes_on.load_state_dict(state)
    updated(goes_on, range(3, 6))
    assert all(map(torch.equal, weights_of(goes_on), weights_of(whole)))
    updated(begun, range(3, 6))  # its team has served another one meanwhile
    assert all(map(torch.equal, weights_of(begun), weights_of(whole)))


def test_adopted_weights_are_adopted_by_all():
    other = Means()
    with torch.no_grad():
        other.first += 3.0
    learners = [learner_of(Means(), processes, learning_rate=0.1) for processes in (1, 2)]
    for learner in learners:
        learner.update(batch_of([0, 1, 1, 0]), torch.ones(4), 0)
        learner.adopt(other)
        learner.update(batch_of([0, 1, 1, 0]), torch.ones(4), 1)
    for alone, shared in zip(*map(weights_of, learners), strict=True):
        torch.testing.assert_close(shared, alone)


def test_a_killed_process_is_told_of_and_the_next_step_has_a_new_one():
    learner = learner_of(Means(), 2)
    arguments = batch_of([0, 1, 1, 0]), torch.ones(4)
    learner.update(*arguments, 0)
    (member, _), *_ = team_of(2, torch.device("cpu"))._members
    os.kill(member.pid, signal.SIGKILL)
    before = weights_of(learner)
    with pytest.raises(UserError, match=r"ended with code -9.*--resume"):
        learner.update(*arguments, 1)
    assert all(map(torch.equal, before, weights_of(learner)))
    learner.update(*arguments, 1)
    assert not all(map(torch.equal, before, weights_of(learner)))


def test_nobody_outlives_a_killed_learner(tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(
        "import torch, time\n"
        "from vla_rl.algorithms.data_parallel import team_of\n"
        "if __name__ == '__main__':\n"
        "    team = team_of(2, torch.device('cpu'))\n"
        "    print(team._members[0][0].pid, flush=True)\n"
        "    time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        member = int(process.stdout.readline())
        os.kill(member, 0)
        process.kill()
    for _ in range(100):
        stat = Path(f"/proc/{member}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"process {member} is still there")


@pytest.mark.parametrize("processes", [0, -1, 65])
def test_as_many_processes_as_rows_at_most(processes):
    with pytest.raises(ConfigError, match=rf"actor.processes is {processes}.*batch_size, which is 64"):
        ActorConfig(processes=processes)


def test_the_folder_where_they_met_is_there_until_the_end(monkeypatch, tmp_path):
    """NCCL looks into it again at the first sum, long after all have joined."""
    team_of(2, torch.device("cpu")).close()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    team = Team(2, torch.device("cpu"))
    assert len(list(tmp_path.glob("*/group"))) == 1
    team.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algorithm", "refused"),
    [
        ("chunk_critic", True),
        ("residual_ppo", True),
        ("imagined_edit", False),
        ("habc", False),
    ],
)
def test_what_trains_no_policy_shares_no_batches(algorithm, refused):
    changes = [f"algorithm={algorithm}", "learning.actor.processes=2"]
    if refused:
        with pytest.raises(ConfigError, match=r"learning.actor.processes is 2; .* trains no policy"):
            load_config(RunConfig, None, changes)
    else:
        assert load_config(RunConfig, None, changes).learning.actor.processes == 2


def test_more_processes_than_gpus_are_refused_before_a_run_begins(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"supervised.actor.processes is 2, and there are 1 GPUs"):
        check_gpus("supervised.actor.processes", 2, torch.device("cuda"))
    check_gpus("supervised.actor.processes", 1, torch.device("cuda"))
    check_gpus("supervised.actor.processes", 2, torch.device("cpu"))


def test_a_gpu_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"actor.processes is 2, and there are 1 GPUs"):
        team_of(2, torch.device("cuda"))


def test_the_learner_has_the_first_gpu():
    with pytest.raises(ConfigError, match="it must be 'cuda', the first"):
        team_of(2, torch.device("cuda", 1))
