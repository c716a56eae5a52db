"""A policy folder names its kind."""

import json
from pathlib import Path

import pytest
from tiny_policy import make_model, make_observation

from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_model, load_policy, policy_class
from vla_rl.policies.lerobot_adapter import LeRobotModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model(discrete_dims=(1,)).save(tmp_path / "policy", {"policy_version": 3})
    return tmp_path / "policy"


def test_kinds_are_found_by_name() -> None:
    assert policy_class("flow_vla") is FlowVLA
    assert policy_class("lerobot") is LeRobotModel
    assert policy_class("vla_rl.policies.flow_vla:FlowVLA") is FlowVLA
    with pytest.raises(ConfigError, match="Did you mean 'flow_vla'"):
        policy_class("flow_vl")
    with pytest.raises(ConfigError, match="is no subclass of"):
        policy_class("json:loads")


def test_a_folder_cannot_name_what_is_no_policy(folder: Path) -> None:
    file = folder / "config.json"
    description = json.loads(file.read_text())
    description["config"]["kind"] = "shutil:rmtree"
    file.write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="is no subclass of"):
        load_model(folder)


def test_a_policy_acts_as_the_model_that_was_saved(folder: Path) -> None:
    policy = load_policy(folder)
    assert isinstance(policy, FlowVLAPolicy)
    chunk, expected = (one.infer(make_observation()) for one in (policy, FlowVLAPolicy(make_model(discrete_dims=(1,)))))
    assert chunk.policy_version == 3
    assert (chunk.actions == expected.actions).all()
    with pytest.raises(CheckpointError, match="holds no vla-rl-policy"):
        load_policy(folder.parent)
