"""From logged episodes to a policy: the whole verb on tiny episodes."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.fakes.shared_steps import means
from vla_rl.cli.main import main
from vla_rl.core.types import OPERATOR, Episode, Observation, Origin, Source
from vla_rl.data.doctor import diagnose
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_policy
from vla_rl.report.sinks import read_records
from vla_rl.training import learning

ROOT = Path(__file__).parents[2]
P, H, D = Source.POLICY, Source.HUMAN, Source.DEMO
TINY = """
steps: 6
checkpoint_every: 2
policy: {horizon: 4, vision: {widths: [4], kernels: [4], strides: [2]}, expert: {width: 16, layers: 1, heads: 2}}
learning:
  actor: {batch_size: 8, warmup_steps: 2}
  critic_training: {batch_size: 8}
  advantage: {warmup_steps: 3}
  credit: {min_human_steps: 3}
"""
CHOOSING = (
    TINY.split("learning:")[0]
    + """
learning:
  actor: {batch_size: 8, warmup_steps: 2}
  critic_training: {batch_size: 8}
  critic: {chunk_ticks: 2, hidden: [16]}
"""
)
EPISODES = {
    "demo": ([D] * 6, True),
    "rescued": ([P] * 5 + [H] * 5 + [P] * 3, True),
    "failed": ([P] * 9 + [H], False),
    "held": ([P] * 4 + [Source.HOLD], True),
    "unknown": ([P] * 7, None),
}


def episode(name: str, source: list[Source], success: bool | None, env_id: str = "tiny") -> Episode:
    random = np.random.default_rng(sum(map(ord, name)))
    length, demo = len(source), source[0] == D
    action = random.normal(size=(length, 2)).astype(np.float32)
    return Episode(
        episode_id=name,
        images={"front": random.integers(0, 255, (length, 8, 8, 3), dtype=np.uint8)},
        state=random.normal(size=(length, 3)).astype(np.float32),
        action_policy=action,
        action_sent=action,
        source=np.array(source, np.uint8),
        task="put it in",
        success=success,
        terminated=True,
        origin=Origin.DEMO if demo else Origin.REAL,
        policy_version=-1 if demo else 0,
        seed=None,
        control_hz=20.0,
        env_id=env_id,
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    store = EpisodeStore(tmp_path / "logs")
    for name, (source, success) in EPISODES.items():
        store.add(episode(name, source, success))
    (tmp_path / "tiny.yaml").write_text(TINY)
    return store.path


def finetune(logs: Path, out: str, *more: str) -> int:
    config = ["--config", str(logs.parent / "tiny.yaml"), "--out", str(logs.parent / out)]
    return main(["finetune", "--data", str(logs), *config, *more])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(next((run / "policies" / "version_0001").glob("*.safetensors")))


def test_its_report_is_rebuilt_and_verbs_that_play_a_task_say_that_it_has_none(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = logs.parent / "run"
    assert finetune(logs, "run") == 0
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").exists()
    for command in (["eval", str(run)], ["train", "--resume", str(run)]):
        capsys.readouterr()
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "vla-rl finetune --resume" in line


def test_a_dry_run_says_what_each_loss_would_see(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = logs.parent / "run"
    assert finetune(logs, "run", "--dry-run") == 0
    printed = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    # As in the head of the table, without the names.
    for row in (
        "demo success 6 0 0 6 0 0 0 6 6 0 0",
        "rescued success 13 8 5 0 0 3 0 8 0 5 3",
        "failed failure 10 9 1 0 0 0 10 0 0 0 0",
        "held success 5 4 0 0 1 5 0 5 0 0 4",
        "unknown unknown 7 7 0 0 0 0 0 0 0 0 0",
        "total 3 success, 1 failure, 1 unknown 41 28 6 6 1 8 10 19 6 5 7",
    ):
        assert row in rows
    assert "algorithm habc, critics of efficiency and viability; credit rule 'paper'" in printed
    assert "warning: 1 of 5 episodes have no outcome" in printed
    assert "warning: 1 human steps are too few in a row" in printed
    assert f"label them with: vla-rl label {run / 'episodes'}" in printed
    assert not (run / "policies").exists()
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize(
    ("chosen", "algorithm", "warning"),
    [
        (["demo", "held"], "habc", "no labeled failures of a policy"),
        (["demo", "failed"], "habc", "no labeled successes"),
        (["failed"], "habc", "nothing that the actor may imitate"),
        (["demo"], "filtered_bc", "imitated are demonstrations only, "),
        (["demo", "failed"], "filtered_bc", "imitated are demonstrations only, "),
    ],
)
def test_what_is_missing_is_warned_of(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str], chosen: list[str], algorithm: str, warning: str
) -> None:
    store = EpisodeStore(tmp_path / "chosen")
    for name in chosen:
        store.add(episode(name, *EPISODES[name]))
    arguments = ["--algorithm", algorithm, "--dry-run", "--config", str(tmp_path / "tiny.yaml")]
    assert main(["finetune", "--data", str(store.path), "--out", str(tmp_path / "run"), *arguments]) == 0
    assert f"warning: {warning}" in capsys.readouterr().out


def chosen_logs(tmp_path: Path, *names: str) -> list[str]:
    """The arguments that fine-tune on some of the episodes."""
    store = EpisodeStore(tmp_path / "chosen")
    for name in names:
        store.add(episode(name, *EPISODES[name]))
    config = ["--config", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "run")]
    return ["finetune", "--data", str(store.path), *config]


@pytest.mark.parametrize("names", [["failed"], ["unknown"]])
def test_a_new_policy_that_nothing_teaches_is_not_made(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    assert main(chosen_logs(tmp_path, *names)) == 2
    assert "would stay random" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("policies/*/config.json"))


def test_what_the_dry_run_warns_of_is_said_again(tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(chosen_logs(tmp_path, "demo", "held")) == 0
    assert "no labeled failures" in caplog.text


def test_demonstrations_that_failed_are_warned_of(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = chosen_logs(tmp_path, "demo", "held")
    EpisodeStore(tmp_path / "chosen").label("demo", False)
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "warning: 1 demonstrations are labeled failures and are imitated all the same" in said
    assert "no labeled failures of a policy" in said


@pytest.mark.slow
def test_outcomes_that_come_later_are_learnt_from(tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A critic without them is refused before its first step, so that the run can go on with them."""
    asked = [*chosen_logs(tmp_path, "unknown"), "--algorithm", "chunk_critic", "learning.distill_steps=2"]
    (tmp_path / "tiny.yaml").write_text(CHOOSING)
    store = EpisodeStore(tmp_path / "chosen")
    store.add(replace(episode("demo", *EPISODES["demo"]), success=None))
    assert main(asked) == 2
    assert "all outcomes are alike" in caplog.text
    taken = EpisodeStore(tmp_path / "run" / "episodes")
    taken.label("unknown", False)
    taken.label("demo", True)
    assert main(["finetune", "--resume", str(tmp_path / "run")]) == 0
    (critic,) = (tmp_path / "run" / "policies" / "version_0001" / "critic").glob("*.safetensors")
    assert safetensors.torch.load_file(critic)["mean"].any(), "it has learnt"


@pytest.mark.parametrize(("ood_penalty", "warned"), [(0, False), (1000, True)])
def test_it_is_said_how_often_a_critic_leaves_the_policy_as_it_is(
    ood_penalty: int, warned: bool, tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [*chosen_logs(tmp_path, "demo", "failed"), "--algorithm", "chunk_critic", "learning.distill_steps=2"]
    (tmp_path / "tiny.yaml").write_text(CHOOSING)
    assert main([*asked, f"learning.best_of_n.ood_penalty={ood_penalty}", "learning.best_of_n.offset_std=1000"]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (kept,) = [record["kept_first"] for record in map(json.loads, lines) if record["kind"] == "choice"]
    assert (kept == 1.0) == warned
    assert ("it hardly changes what the policy does" in caplog.text) == warned


def test_the_critic_of_chunks_says_whose_steps_help(tmp_path: Path, logs: Path) -> None:
    asked = [*chosen_logs(tmp_path, "failed"), "--algorithm", "chunk_critic", "learning.distill_steps=2"]
    (tmp_path / "tiny.yaml").write_text(CHOOSING)
    shown = episode("shown", [D] * 12, True)
    EpisodeStore(tmp_path / "chosen").add(replace(shown, extras={f"{OPERATOR}ann": np.ones(12, np.uint8)}))
    assert main(asked) == 0
    (found,) = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if record["kind"] == "operators"]
    assert {name for name in found if "/" in name} == {
        f"ann/{figure}" for figure in ("demonstrations", "takeovers", "steps", "person_steps", "value_rise")
    }
    assert "mean rise of the value" in (tmp_path / "run" / "report.html").read_text()


def test_robots_of_different_sizes_share_a_policy_or_are_told_why_not(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wide(name: str, **other: object) -> Episode:
        small = episode(name, [D] * 6, True, "two arms")
        state, action = (
            np.pad(column, ((0, 0), (0, 2)), constant_values=9) for column in (small.state, small.action_sent)
        )
        return replace(small, state=state, action_policy=action, action_sent=action, **other)

    arguments = [*chosen_logs(tmp_path, "demo"), "--algorithm", "sft"]
    store = EpisodeStore(tmp_path / "chosen")
    store.add(wide("wide"))
    assert main(arguments) == 0
    policy = load_policy(tmp_path / "run" / "policies" / "version_0001")
    assert policy.model.spec.sizes == ((3, 2), (5, 4))
    image = {"front": np.zeros((8, 8, 3), np.uint8)}
    for state, action in ((3, 2), (5, 4)):
        chunk = policy.infer(Observation(image, np.zeros(state, np.float32), "put it in", 0))
        assert chunk.actions.shape[1] == action
    start = str(tmp_path / "run" / "policies" / "version_0001")
    again = ["finetune", "--data", str(store.path), "--policy", start, "--out", str(tmp_path / "again"), "--dry-run"]
    assert main([*again, "--algorithm", "sft"]) == 0
    store.add(wide("slow", control_hz=10.0))
    assert main([*arguments[:-3], str(tmp_path / "other"), "--algorithm", "sft"]) == 2
    assert "their control_hz are 20.0 and 10.0; train one for each" in capsys.readouterr().err
    rates = EpisodeStore(tmp_path / "rates")
    for name in ("slow", "wide"):
        rates.add(store.read(name))
    assert main(["finetune", "--data", str(rates.path), "--out", str(tmp_path / "rated")]) == 2
    assert "what is of two arms cannot share a policy: their control_hz are" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_very_same_weights(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finetune(logs, "whole") == 0
    real = learning.save_checkpoint

    def killed(directory: Path, step: int, *arguments: object) -> None:
        if step == 4:
            raise KeyboardInterrupt
        real(directory, step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(learning, "save_checkpoint", killed)
        assert finetune(logs, "cut") == 130
    cut = logs.parent / "cut"
    logs.rename(logs.with_name("moved"))  # a run needs nothing but its own folder
    damaged = next((cut / "cache").glob("g*/state.bin"))
    content = bytearray(damaged.read_bytes())
    content[60] ^= 1
    damaged.write_bytes(content)
    assert main(["finetune", "--resume", str(cut)]) == 0
    whole, resumed = weights(logs.parent / "whole"), weights(cut)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (cut / "report.html").exists()
    assert json.loads((cut / "summary.json").read_text())["finished"]
    assert diagnose(cut / "episodes") == []


def test_a_policy_is_fine_tuned_and_not_replaced(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune(logs, "first", "--algorithm", "sft") == 0
    start = logs.parent / "first" / "policies" / "version_0001"
    assert finetune(logs, "second", "--policy", str(start), "steps=1", "learning.actor.learning_rate=1e-9") == 0
    before, after = FlowVLA.load(start)[0], FlowVLA.load(logs.parent / "second" / "policies" / "version_0001")[0]
    assert after.statistics == before.statistics
    for name, tensor in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], tensor, atol=1e-4, rtol=0)
    FlowVLAPolicy(after)
    assert finetune(logs, "third", "--policy", str(logs.parent / "first")) == 2
    assert "did you mean" in capsys.readouterr().err


def test_several_sources_are_one_set_of_data(logs: Path, tmp_path: Path) -> None:
    other = EpisodeStore(tmp_path / "run2" / "episodes")
    other.add(episode("demo", [D] * 4, True))  # the same id, another episode
    other.add(episode("failed", *EPISODES["failed"]))  # the very same episode
    assert finetune(logs, "run", "--dry-run", "--algorithm", "sft") == 0
    arguments = ["--config", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "both"), "--dry-run"]
    assert main(["finetune", "--data", str(logs), str(tmp_path / "run2"), *arguments]) == 0
    both = EpisodeStore(tmp_path / "both" / "episodes")
    assert both.ids() == sorted([*EPISODES, "demo.2"])
    assert len(both.read("demo.2")) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "{logs}/nothing"], "there is no"),
        (["--data", "{logs}/episodes"], "is no episode store"),
        ([], "--data is missing"),
        (["--data", "{logs}", "--algorithm", "hab"], "Did you mean 'habc'"),
        (["--data", "{logs}", "steps=0"], "steps is 0; expected >= 1"),
        (["--data", "{logs}", "policy.horizn=4"], "Did you mean|unknown key"),
        (["--data", "{logs}", "--algorithm", "chunk_critic"], "trains no policy: name one that it starts from"),
        (["--data", "{logs}", "--algorithm", "residual_ppo"], "trains no policy: name one that it starts from"),
        (["--resume", "{logs}", "--seed", "1"], "leave seed out"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(
    logs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    out = [] if "--resume" in arguments else ["--out", str(logs.parent / "run")]
    assert main(["finetune", *(part.format(logs=logs) for part in arguments), *out]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(message, error)


def test_a_policy_of_another_robot_is_refused(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune(logs, "first", "steps=1") == 0
    store = EpisodeStore(tmp_path / "other")
    wide = episode("wide", [D] * 5, True)
    object.__setattr__(wide, "state", np.zeros((5, 7), np.float32))
    store.add(wide)
    start = str(tmp_path / "first" / "policies" / "version_0001")
    assert main(["finetune", "--data", str(store.path), "--policy", start, "--out", str(tmp_path / "second")]) == 2
    assert "sizes [(3, 2)]; the data is of [(7, 2)]" in capsys.readouterr().err
    assert (
        main(
            [
                "finetune",
                "--data",
                str(logs),
                "--policy",
                start,
                "--out",
                str(tmp_path / "second"),
                "--algorithm",
                "recap",
            ]
        )
        == 2
    )
    assert "policy.indicator=true" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()


def test_a_refused_run_takes_nothing_of_another_folder_with_it(logs: Path, tmp_path: Path) -> None:
    """What copying alone can tell: an episode whose content is not what was written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    damaged = logs / "episodes" / "held.zarr.zip"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert finetune(logs, "run") == 2
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lerobot's imports
def test_a_policy_of_lerobots_is_fine_tuned(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lerobot.policies.act.configuration_act import ACTConfig

    from vla_rl.policies.folders import load_policy

    small = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    config = ACTConfig(chunk_size=4, n_action_steps=4, latent_dim=4, pretrained_backbone_weights=None, **small)
    (tmp_path / "act").mkdir()
    config._save_pretrained(tmp_path / "act")
    assert finetune(logs, "run", "--policy", str(tmp_path / "act"), "steps=4") == 0
    policy = load_policy(tmp_path / "run" / "policies" / "version_0001")
    assert (policy.version, type(policy).__name__) == (1, "ActingPolicy")


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one_and_the_first_alone_writes(logs: Path) -> None:
    config, out = str(logs.parent / "tiny.yaml"), str(logs.parent / "run")
    arguments = ["finetune", "--data", str(logs), "--config", config, "--out", out]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "tests.fakes.shared_steps", str(logs.parent), *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    ranks = [safetensors.torch.load_file(logs.parent / f"{rank}.safetensors") for rank in (0, 1)]
    assert all(torch.equal(weight, ranks[1][name]) for name, weight in ranks[0].items())
    for name, weight in means().items():
        torch.testing.assert_close(ranks[0][f"means.{name}"], weight)
    assert all(torch.equal(weight, ranks[0][name]) for name, weight in weights(logs.parent / "run").items())
    assert read_records(logs.parent / "run" / "metrics.jsonl")[-1]["step"] == 6


def test_practice_in_several_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "one", "RANK": "0", "WORLD_SIZE": "2"}.items():  # as torchrun does
        monkeypatch.setenv(name, value)
    assert main(["train", "--config", "tiny", "--out", str(tmp_path / "run")]) == 2
    assert "torchrun started 2 processes. Only finetune shares its batches" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
