"""Checkpoints: what goes in comes out, and damage never goes unnoticed or executed."""

import functools
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.training.checkpoint import load_checkpoint, load_newest_checkpoint, save_checkpoint
from vla_rl.training.learning import LearningRun


def trained_state() -> dict[str, object]:
    """The state of a real optimizer: nested, with integer keys and tensors that share memory."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "again": model.weight,
        "optimizer": optimizer.state_dict(),
        "name": "habc",
        "none": None,
    }


def assert_equal(left: object, right: object) -> None:
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        assert torch.equal(left, right)
        assert left.dtype == right.dtype
    elif isinstance(left, dict):
        assert isinstance(right, dict)
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert isinstance(right, list)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


def test_what_goes_in_comes_out_bit_by_bit(tmp_path: Path) -> None:
    state = trained_state()
    save_checkpoint(tmp_path, 7, state)
    step, loaded = load_newest_checkpoint(tmp_path) or (0, {})
    assert step == 7
    assert_equal(state, loaded)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"x": torch.tensor(step)}, keep=2)
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["step_00000002", "step_00000010"]


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_checkpoint(tmp_path, 1, {"x": torch.tensor(1)})
    newest = save_checkpoint(tmp_path, 2, {"x": torch.tensor(2)})
    file = newest / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    step, state = load_newest_checkpoint(tmp_path) or (0, {})
    assert (step, int(state["x"])) == (1, 1)
    assert "step_00000002" in caplog.text


def test_nothing_readable_is_an_error_and_nothing_there_is_none(tmp_path: Path) -> None:
    assert load_newest_checkpoint(tmp_path) is None
    (save_checkpoint(tmp_path, 1, {}) / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        load_newest_checkpoint(tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("exploded"),))  # type: ignore[return-value]


def test_a_planted_pickle_is_refused_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = save_checkpoint(tmp_path / "checkpoints", 1, {"x": torch.tensor(1)})
    (checkpoint / "tensors.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="step_00000001"):
        load_checkpoint(checkpoint)
    assert not (tmp_path / "exploded").exists()


def test_what_a_checkpoint_cannot_hold_is_named_with_its_place(tmp_path: Path) -> None:
    state = {"critics": {"mean": np.zeros(2)}}
    with pytest.raises(CheckpointError, match=r"state_dict\(\) holds a ndarray at /?critics/mean; .*torch\.from_numpy"):
        save_checkpoint(tmp_path, 1, state)
    assert not any(tmp_path.glob("step_*"))


@pytest.mark.parametrize("name", ["actor_loss", "viability_loss", "critic_gradient_norm", "edit_gradient_norm"])
def test_what_is_no_number_any_more_is_not_saved(name: str, tmp_path: Path) -> None:
    run = SimpleNamespace(folder=RunFolder(tmp_path))
    stage = SimpleNamespace(name="practice 1")
    refuse = functools.partial(LearningRun._refuse_divergence, run, stage=stage, done=7)
    refuse({name: 1.0, "steps_per_s": float("nan")})
    with pytest.raises(UserError, match=f"diverged, at gradient step 7 {name} is nan"):
        refuse({name: float("nan")})


def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {"x": torch.tensor(1)})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vla_rl.training.checkpoint.fsync_path", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, {"x": torch.tensor(2)})
    assert [folder.name for folder in tmp_path.iterdir()] == ["step_00000001"]


def test_a_disk_that_is_full_for_the_tensors_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:  # the writer of safetensors has an error of its own
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(CheckpointError, match=r"No space left.*what is saved is safe"):
        save_checkpoint(tmp_path, 2, {"x": torch.tensor(2)})
    assert list(tmp_path.iterdir()) == []
