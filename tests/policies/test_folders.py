"""Whose a folder is stands in it; folders from when there was one kind of policy are still read."""

import json
from pathlib import Path

import pytest
import torch
from tiny_policy import SPEC, make_model, make_observation

from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.core.outside import SEAL
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_model, load_policy, policy_class
from vla_rl.policies.lerobot_adapter import LeRobotModel
from vla_rl.runs.policy_folder import find_policy


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


def test_a_folder_without_a_kind_is_the_built_in_policys(folder: Path) -> None:
    """As they were written before policies had kinds: another format, and no kind and no horizon of their own."""
    kept, _ = load_model(folder)
    file = folder / "config.json"
    description = json.loads(file.read_text()) | {"format": "vla-rl-flow-policy", "format_version": 1}
    del description["horizon"], description["config"]["kind"], description[SEAL]
    file.write_text(json.dumps(description))
    model, meta = load_model(folder, SPEC)
    assert isinstance(model, FlowVLA)
    assert meta == {"policy_version": 3}
    assert all(torch.equal(tensor, kept.state_dict()[name]) for name, tensor in model.state_dict().items())
    found = find_policy(folder)
    assert (found.horizon, found.version, found.discrete_dims) == (8, 3, (1,))


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
