"""Run folders of earlier versions are read, and go on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.supervisor import SupervisorConfig
from tests.fakes.interrupted import interrupted, weights
from tests.fakes.resealed import resealed
from vla_rl.cli.main import main
from vla_rl.core.config import config_to_dict, load_config, read_yaml
from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.core.outside import SEAL
from vla_rl.policies.folders import load_model
from vla_rl.runs.config import RunConfig
from vla_rl.runs.config_files import config_file
from vla_rl.runs.finetune import FinetuneConfig
from vla_rl.training.run_folder import RunFolder


def test_the_scripted_supervisor_had_a_section_of_its_own(tmp_path: Path) -> None:
    raw = config_to_dict(RunConfig())
    raw["takeover"] = {"enabled": False, "corrector": {"rescue_probability": 0.2, "reaction_s": [0.1, 0.3]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    takeover = RunFolder.open(tmp_path, RunConfig)[1].takeover
    assert (takeover.enabled, takeover.supervisor) == (False, "scripted")
    assert takeover.options == SupervisorConfig(rescue_probability=0.2, reaction_s=(0.1, 0.3))


@pytest.mark.parametrize("config", [None, "alone"])
def test_a_config_of_today_stays_as_it_is(config: str | None) -> None:
    raw = config_to_dict(load_config(RunConfig, config_file(config)) if config else RunConfig())
    assert RunConfig.upgrade(raw) == raw


def test_a_run_that_taught_its_policy_nothing_goes_on_so(tmp_path: Path) -> None:
    raw = config_to_dict(load_config(RunConfig, config_file("alone")))
    assert raw["learning"].pop("teach_steps") > 0
    del raw["learning"]["mixture"]
    assert RunFolder.open(folder_of(raw, tmp_path), RunConfig)[1].learning.teach_steps == 0


DATA = Path(__file__).parent / "data"
"""The config.yaml of runs of commit 62b636b, in which every algorithm had the options of all."""
FULL_PRECISION = ["supervised.actor.precision=float32", "learning.actor.precision=float32"]
CHANGED_SINCE = {"demo": ["environments_per_worker=1", "budget.evaluation_pictures=every"]}


def of_now(name: str) -> RunConfig:
    """The config of that name, but for what it says differently since."""
    return load_config(RunConfig, config_file(name), [*FULL_PRECISION, *CHANGED_SINCE.get(name, [])])


def folder_of(raw: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    return folder


def rewrite_policy(file: Path, config: dict[str, Any]) -> None:
    description = json.loads(file.read_text())
    description.pop(SEAL, None)  # policies of then had none
    file.write_text(json.dumps({**description, "format_version": 1, "config": config}))


def changed(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *sections, option = path.split(".")
    section = raw
    for name in sections:
        section = section[name]
    assert section[option] != value
    section[option] = value
    return raw


@pytest.mark.parametrize("name", ["tiny", "demo", "algorithms"])
def test_a_run_of_then_has_the_config_of_now(name: str, tmp_path: Path) -> None:
    shutil.copy(DATA / f"{name}-62b636b.yaml", tmp_path / "config.yaml")
    assert RunFolder.open(tmp_path, RunConfig)[1] == of_now(name)


@pytest.mark.parametrize("algorithm", ["sft", "bc", "hg_dagger", "awr", "threshold", "recap", "no_ve"])
def test_options_of_other_algorithms_go_without_a_word(algorithm: str, tmp_path: Path) -> None:
    raw = changed(read_yaml(DATA / "demo-62b636b.yaml"), "algorithm", algorithm)
    unread = {"awr": "recap.positive_fraction", "recap": "awr.temperature"}.get(algorithm, "awr.temperature")
    raw = changed(raw, f"learning.{unread}", 0.7)
    raw = changed(raw, "supervised.critic_training.balanced", True)
    config = RunFolder.open(folder_of(raw, tmp_path), RunConfig)[1]
    assert config.learning.actor == of_now("demo").learning.actor
    if algorithm == "threshold":
        assert config.learning.advantage.advantage_horizon == 6
    if algorithm == "no_ve":
        assert not hasattr(config.learning.critic, "efficiency_unit_steps")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("learning.actor.weight_decay", 0.1),
        ("learning.critic_training.balanced", True),
        ("learning.critic_training.replay_ratio.adaptive", True),
        ("learning.critic_training.random_shift", 1),
        ("learning.critic.vision.keypoints", 12),
        ("learning.next_latent.weight", 0.1),
        ("supervised.mixture.episodes_equal", True),
        ("policy.state_noise", 0.1),
        ("takeover.corrector.fumble_m", 0.1),
    ],
)
def test_what_the_program_cannot_do_any_more_is_refused_by_name(path: str, value: Any, tmp_path: Path) -> None:
    raw = changed(read_yaml(DATA / "tiny-62b636b.yaml"), path, value)
    now = path.replace("corrector", "options")
    with pytest.raises(ConfigError, match=f"made with {now}={value}; this version has no such option"):
        RunFolder.open(folder_of(raw, tmp_path), RunConfig)


def test_options_of_imagination_matter_to_those_who_imagine(tmp_path: Path) -> None:
    raw = changed(read_yaml(DATA / "tiny-62b636b.yaml"), "imagination.flow_noise", 0.1)
    assert RunFolder.open(folder_of(raw, tmp_path), RunConfig)[1].imagination.coevolution.mode == "off"
    raw = changed(raw, "imagination.coevolution.mode", "once")
    with pytest.raises(ConfigError, match=r"imagination\.flow_noise=0\.1"):
        RunFolder.open(folder_of(raw, tmp_path), RunConfig)


def test_group_updates_in_imagination_are_gone_and_their_options_with_them(tmp_path: Path) -> None:
    raw = changed(read_yaml(DATA / "tiny-62b636b.yaml"), "imagination.coevolution.mode", "once")
    with pytest.raises(ConfigError, match=r"imagination\.starts\.keyframe_fraction=0\.3; this version has no such"):
        RunFolder.open(folder_of(raw, tmp_path), RunConfig)
    raw = changed(raw, "imagination.starts.keyframe_fraction", 0.0)
    raw = changed(raw, "imagination.group.learning_rate", 1e-5)
    raw["imagination"]["group"]["mask_after_success"] = False
    RunFolder.open(folder_of(raw, tmp_path), RunConfig)  # none was made: nothing read them
    raw = changed(raw, "imagination.group_updates", 4)
    with pytest.raises(ConfigError, match=r"made with imagination\.group.*; this version has no such option"):
        RunFolder.open(folder_of(raw, tmp_path), RunConfig)


def test_what_never_was_an_option_is_refused_as_ever(tmp_path: Path) -> None:
    raw = read_yaml(DATA / "tiny-62b636b.yaml")
    raw["learning"]["actor"]["learning_rat"] = 1
    with pytest.raises(ConfigError, match="Did you mean 'learning_rate'"):
        RunFolder.open(folder_of(raw, tmp_path), RunConfig)


def test_a_fine_tuning_of_then_is_read(tmp_path: Path) -> None:
    then = read_yaml(DATA / "tiny-62b636b.yaml")
    raw = config_to_dict(FinetuneConfig()) | {"learning": then["learning"], "policy": then["policy"]}
    config = RunFolder.open(folder_of(raw, tmp_path), FinetuneConfig)[1]
    assert config.learning.advantage.warmup_steps == 4


@pytest.mark.slow
def test_a_run_of_then_goes_on(tmp_path: Path) -> None:
    """With a checkpoint that calls the counter of critic steps by its older name, and policies with all the options."""
    whole = tmp_path / "whole"
    assert main(["train", "--config", "tiny", "--out", str(whole)]) == 0
    again = interrupted(whole, tmp_path / "again")
    shutil.copy(DATA / "tiny-62b636b.yaml", again / "config.yaml")
    then = read_yaml(DATA / "tiny-62b636b.yaml")["policy"]
    for file in again.glob("policies/*/config.json"):
        rewrite_policy(file, then)
    summary = json.loads((again / "summary.json").read_text())
    summary.pop("played", None)  # nothing noted then which policy played an episode
    (again / "summary.json").write_text(json.dumps(summary))
    for file in again.glob("checkpoints/*/*.json"):
        file.write_text(resealed(json.loads(file.read_text().replace("critic_steps", "replay_ratio"))))
    assert main(["train", "--resume", str(again)]) == 0
    assert weights(again, 2) == weights(whole, 2)
    file = again / "policies" / "version_0000" / "config.json"
    rewrite_policy(file, {**then, "regression_weight": 0.5})
    with pytest.raises(CheckpointError, match=r"regression_weight=0\.5; this version has no such option"):
        load_model(file.parent)
