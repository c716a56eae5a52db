"""Policies of lerobot, tiny and random, practice like ours: demonstrations, supervised, a round, evaluated."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.interrupted import interrupted, weights
from tests.fakes.lerobot_configs import shrink_pi, shrink_resnet, tiny_config
from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.main import main
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of lerobot, transformers and diffusers; not ours
]
KINDS = ["act", "diffusion", "smolvla", "pi0"]
SHORT = [
    "budget={demonstrations: 2, supervised_steps: 2, rounds: 1, episodes_per_round: 1, steps_per_round: 2, "
    "evaluation_episodes: 1, checkpoint_every: 1}",
    "execution={execute_ticks: 4}",
    "task={image_size: 32, difficulty: 0.0, declare: {max_episode_steps: 50}}",  # an expert just succeeds
    "learning.actor.batch_size=2",
    "supervised.actor.batch_size=2",
]


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of habc with a new policy of a kind, in this process: what shrinks pi0 reaches no worker."""
    pytest.importorskip("transformers", reason="SmolVLA and pi need the extra 'lerobot-policies'")
    pytest.importorskip("diffusers", reason="the diffusion policy needs the extra 'lerobot-policies'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        logging.disable(logging.WARNING)
        shrink_resnet(patch)
        if request.param == "pi0":
            shrink_pi(patch)
        described = tmp_path_factory.mktemp(request.param)
        tiny_config(request.param, described / "vlm")._save_pretrained(described)
        folder = tmp_path_factory.mktemp("practice") / request.param
        policy = ["policy.kind=lerobot", f"policy.folder={described}"]
        assert main(["train", "--config", "tiny", "--out", str(folder), *policy, *SHORT]) == 0
        yield folder
        logging.disable(logging.NOTSET)


def test_it_practices_on_statistics_of_the_demonstrations(run: Path) -> None:
    evaluations = json.loads((run / "summary.json").read_text())["evaluations"]
    assert [entry["label"] for entry in evaluations] == ["supervised", "round 1"]
    assert weights(run, 0) != weights(run, 1)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("viability_loss" in entry for entry in steps), "its critics learn"
    policy = find_policy(run)
    assert (policy.horizon, policy.version) == (4, 1)
    model, meta = load_model(policy.path)
    assert meta == {"policy_version": 1, "algorithm": "habc"}
    store = EpisodeStore(run / "episodes", create=False)
    shown = np.concatenate([store.read(f"demo-{number:05d}").imitation_action() for number in range(2)])
    np.testing.assert_allclose(model.statistics.action.mean, shown.mean(0), atol=1e-6)


def test_a_resumed_run_ends_in_the_same_weights(run: Path, tmp_path: Path) -> None:
    again = interrupted(run, tmp_path / "again")
    assert main(["train", "--resume", str(again)]) == 0
    assert weights(again, 1) == weights(run, 1)


@pytest.mark.parametrize("run", ["smolvla"], indirect=True)
def test_another_algorithm_starts_from_it(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "filtered"
    arguments = ["--config", str(run / "config.yaml"), "--from", str(run), "--out", str(other)]
    assert main(["train", *arguments, "algorithm=filtered_bc"]) == 0
    assert weights(other, 0) == weights(run, 0)
    assert weights(other, 1) != weights(run, 0)


@pytest.mark.parametrize("run", ["smolvla"], indirect=True)
@pytest.mark.parametrize("algorithm", ["habc", "filtered_bc"])  # filtered_bc: it imitates the successes of the run
def test_adapters_are_fine_tuned_on_its_episodes(run: Path, algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    base, tuned = run / "policies" / "version_0001", tmp_path / "tuned"
    policy = ["policy.kind=lerobot", f"policy.folder={base}", "policy.lora.rank=2"]
    short = ["steps=4", "checkpoint_every=2", "learning.actor.batch_size=2"]
    assert main(["finetune", "--data", str(run), "--algorithm", algorithm, "--out", str(tuned), *policy, *short]) == 0
    assert not (tuned / "policies" / "version_0001" / "model.safetensors").exists()
    again = interrupted(tuned, tmp_path / "again")
    assert main(["finetune", "--resume", str(again)]) == 0
    assert weights(again, 1) == weights(tuned, 1)


@pytest.mark.parametrize("run", ["smolvla"], indirect=True)
def test_adapters_are_trained_in_practice(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    policy = ["policy.kind=lerobot", f"policy.folder={run / 'policies' / 'version_0001'}", "policy.lora.rank=2"]
    assert main(["train", "--config", "tiny", "--out", str(tmp_path / "run"), *policy, *SHORT]) == 0
    assert weights(tmp_path / "run", 0) != weights(tmp_path / "run", 1)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "deployed")]) == 0


@pytest.mark.parametrize("run", ["act", "smolvla"], indirect=True)
def test_it_is_exported_and_acts_without_torch(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "deployed")]) == 0, capsys.readouterr()
    rollout = ["rollout", str(tmp_path / "deployed"), "--robot", "sim"]
    assert main(rollout) == 0
    assert "success " in capsys.readouterr().out
    assert main([*rollout, "execution.strategy=rtc"]) == 2
    assert "strategy=rtc requires gradient (a flow policy in torch" in capsys.readouterr().err
    assert ("guidance" in find_policy(tmp_path / "deployed").provides) == (run.name == "smolvla")


@pytest.mark.parametrize("run", ["act"], indirect=True)
def test_options_that_its_exporter_lacks_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(find_policy(run).path, tmp_path / "policy")
    (tmp_path / "policy" / CRITIC_FOLDER).mkdir()
    out = ["export", str(tmp_path / "policy"), "--out", str(tmp_path / "out")]
    assert main([*out, "--precision", "fp16", "--unrolled"]) == 2
    error = capsys.readouterr().err
    assert all(option in error for option in ("half_precision", "--precision", "--unrolled", "--without-critic"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("run", ["act"], indirect=True)
def test_a_critic_cannot_see_through_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(run / "config.yaml"), "--from", str(run), "--out", str(tmp_path / "run")]
    assert main(["train", *arguments, "learning.critic.backbone=policy"]) == 2
    assert "requires features" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["act", "smolvla"], indirect=True)
def test_one_that_cannot_explore_is_refused_before_it_is_trained(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "exploring"
    arguments = ["--config", str(run / "config.yaml"), "--out", str(other), "budget.rounds=0", "exploration=0.1"]
    explores = run.name == "act"
    assert main(["train", *arguments]) == (0 if explores else 2)
    assert ("exploration=0.1 requires offsets" in capsys.readouterr().err) != explores
    assert other.exists() == explores
