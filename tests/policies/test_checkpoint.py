"""Checkpoints: what is saved is what is loaded, to the bit; whatever is wrong with a folder is said in one line, and
nothing in it runs.
"""

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tiny_policy import SPEC, make_batch, make_model, make_observation

from tests.fakes.resealed import resealed
from vla_rl.core import json_files
from vla_rl.core.errors import CheckpointError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_model

EXECUTED: list[str] = []


class Bomb:
    """Unpickling this leaves a mark."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return EXECUTED.append, ("executed",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model(indicator=True, discrete_dims=(1,)).save(tmp_path / "policy", {"policy_version": 7})
    return tmp_path / "policy"


def edit(folder: Path, change: Callable[[dict], None]) -> None:
    file = folder / "config.json"
    description = json.loads(file.read_text())
    change(description)
    file.write_text(resealed(description))


def replace_weights(folder: Path, content: bytes) -> None:
    """New weights with a correct digest: only their content is wrong."""
    name = json.loads((folder / "config.json").read_text())["weights"]
    (folder / name).write_bytes(content)
    edit(folder, lambda data: data.update(sha256=hashlib.sha256(content).hexdigest()))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    name = json.loads((folder / "config.json").read_text())["weights"]
    return safetensors.torch.load((folder / name).read_bytes())


def test_round_trip_is_exact(tmp_path: Path) -> None:
    model = make_model(discrete_dims=(1,))
    model.save(tmp_path / "policy", {"policy_version": 3, "note": "x"})
    loaded, meta = load_model(tmp_path / "policy", expected=SPEC)
    assert meta == {"policy_version": 3, "note": "x"}
    assert (loaded.config, loaded.spec, loaded.statistics) == (model.config, model.spec, model.statistics)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    chunk = FlowVLAPolicy(model).infer(make_observation())
    assert (FlowVLAPolicy(loaded).infer(make_observation()).actions == chunk.actions).all()
    assert not loaded.training


def test_saving_again_replaces_the_policy(folder: Path) -> None:
    model = make_model(seed=5)
    model.save(folder)
    assert len(list(folder.glob("*.safetensors"))) == 1
    loaded, meta = FlowVLA.load(folder)
    assert meta == {}
    assert torch.equal(loaded.state_token.weight, model.state_token.weight)


def test_a_crash_while_saving_leaves_the_old_policy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights_of(folder)
    real, calls = json_files.write_atomic, []

    def crash_at_the_pointer(file: Path, content: bytes) -> None:
        calls.append(file.name)
        if file.name == "config.json":
            raise OSError(28, "No space left on device")
        real(file, content)

    monkeypatch.setattr(json_files, "write_atomic", crash_at_the_pointer)
    with pytest.raises(OSError, match="No space"):
        make_model(seed=9, indicator=True).save(folder)
    assert calls[-1] == "config.json"
    loaded, meta = FlowVLA.load(folder)
    assert meta == {"policy_version": 7}
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_bytes(b""),
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{"),
        lambda folder: (folder / "config.json").write_text("[1, 2]"),
        lambda folder: (folder / "config.json").write_text('{"format": "act"}'),
        lambda folder: edit(folder, lambda data: data.update(format_version=99)),
        lambda folder: edit(folder, lambda data: data.pop("spec")),
        lambda folder: edit(folder, lambda data: data["config"].update(widht=3)),
        lambda folder: edit(folder, lambda data: data["config"]["expert"].update(width="wide")),
        lambda folder: edit(folder, lambda data: data["statistics"]["state"]["mean"].pop()),
        lambda folder: edit(folder, lambda data: data["spec"].update(state_dim=4)),
        lambda folder: edit(folder, lambda data: data["config"]["expert"].update(width=64)),
        lambda folder: edit(folder, lambda data: data.update(weights="../other/model.safetensors")),
        lambda folder: edit(folder, lambda data: data.update(weights="pytorch_model.bin")),
        lambda folder: edit(folder, lambda data: data.update(weights="absent.safetensors")),
        lambda folder: edit(folder, lambda data: data.update(meta=[1])),
        lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"cut"),
        lambda folder: replace_weights(folder, pickle.dumps(Bomb())),
        lambda folder: replace_weights(folder, b""),
        lambda folder: replace_weights(
            folder,
            safetensors.torch.save({name: t for name, t in weights_of(folder).items() if "action_out" not in name}),
        ),
        lambda folder: replace_weights(folder, safetensors.torch.save(weights_of(folder) | {"extra": torch.ones(2)})),
        lambda folder: replace_weights(
            folder, safetensors.torch.save({name: t.double() for name, t in weights_of(folder).items()})
        ),
        lambda folder: replace_weights(
            folder, safetensors.torch.save({name: t * float("nan") for name, t in weights_of(folder).items()})
        ),
    ],
)
def test_a_wrong_folder_gives_one_line(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        FlowVLA.load(folder)
    assert "\n" not in str(caught.value)
    assert not EXECUTED


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    file = next(folder.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="digest"):
        FlowVLA.load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "policy.pkl"])
def test_planted_pickles_are_named_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=name):
        FlowVLA.load(tmp_path)
    assert not EXECUTED


@pytest.mark.parametrize(
    "expected",
    [
        PolicySpec("other", ("front", "top"), (16, 16), 3, 2),
        PolicySpec("toy", ("front", "wrist"), (16, 16), 3, 2),
        PolicySpec("toy", ("front", "top"), (16, 16), 3, 7),
        PolicySpec("toy", ("front", "top"), (64, 64), 3, 2),
    ],
)
def test_a_policy_for_another_robot_is_refused(folder: Path, expected: PolicySpec) -> None:
    with pytest.raises(CheckpointError, match="trained with"):
        load_model(folder, expected)


def test_the_loss_still_runs_after_loading(folder: Path) -> None:
    model, _ = FlowVLA.load(folder)
    per_sample, _ = model.loss(make_batch(model), torch.Generator().manual_seed(0))
    per_sample.mean().backward()
