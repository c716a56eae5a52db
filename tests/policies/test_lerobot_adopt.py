"""Policies that lerobot trained, with its own processors beside them: here they plan what they plan there."""

import contextlib
import json
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.fakes import lerobot_tiny
from vla_rl.acting.policy_folder import find_policy
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.flow_sampling import flow_noise
from vla_rl.core.types import Observation
from vla_rl.policies.folders import load_policy
from vla_rl.policies.lerobot_adapter.adopt import adopt
from vla_rl.policies.lerobot_adapter.folder import check_interface, read_config
from vla_rl.policies.lerobot_adapter.model import IMAGENET

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SEED = 7


def vector(size: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(size)
    mean, std = torch.randn(size, generator=random), torch.rand(size, generator=random) + 0.5
    ranges = {"min": mean - 3 * std, "max": mean + 3 * std, "q01": mean - 2 * std, "q99": mean + 2 * std}
    return {"mean": mean, "std": std, **ranges, "count": torch.tensor([100])}


def save(kind: str, folder: Path, images: Any = IMAGENET, **options: Any) -> tuple[Any, Any, Any]:
    """As lerobot-train saves a policy."""
    from lerobot.policies.factory import make_pre_post_processors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder.mkdir(parents=True, exist_ok=True)
        vlm = folder.parent / "vlm"
        vlm.mkdir()
        policy = lerobot_tiny.make(kind, vlm, **options)
        pictures = {name: torch.tensor(values)[:, None, None] for name, values in images.items()}
        spec = lerobot_tiny.SPEC
        stats = {f"observation.images.{camera}": pictures for camera in spec.cameras}
        stats |= {"observation.state": vector(spec.state_dim), "action": vector(spec.action_dim)}
        processors = make_pre_post_processors(policy.config, dataset_stats=stats)
        for part in (policy, *processors):
            part.save_pretrained(folder)
    return policy, *processors


def observation(seed: int, past: tuple[Observation, ...] = ()) -> Observation:
    random, spec = np.random.default_rng(seed), lerobot_tiny.SPEC
    images = {camera: random.integers(0, 256, (*spec.image_size, 3), dtype=np.uint8) for camera in spec.cameras}
    return Observation(images, random.normal(size=spec.state_dim).astype(np.float32), "push block", seed, past=past)


def planned_by_lerobot(
    policy: Any, preprocess: Any, postprocess: Any, seen: Observation, **noise: torch.Tensor
) -> np.ndarray:
    several = [*seen.past, seen]
    batch: dict[str, Any] = {
        f"observation.images.{camera}": torch.stack([torch.from_numpy(each.images[camera]) for each in several])
        .movedim(-1, 1)
        .float()[None]
        / 255
        for camera in seen.images
    }
    batch["observation.state"] = torch.stack([torch.from_numpy(each.state) for each in several])[None]
    if policy.config.observation_delta_indices is None:
        batch = {name: rows[:, 0] for name, rows in batch.items()}
    policy.reset()
    torch.manual_seed(SEED)
    with torch.no_grad():
        actions = policy.predict_action_chunk(preprocess({**batch, "task": [seen.task]}), **noise)
    found: np.ndarray = postprocess(actions)[0].numpy()
    return found


@pytest.mark.parametrize(("kind", "several"), [("act", 1), ("diffusion", 1), ("diffusion", 2)])
def test_it_plans_what_it_plans_in_lerobot(
    kind: str, several: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"n_obs_steps": several, "n_action_steps": 7} if kind == "diffusion" else {}
    theirs = save(kind, tmp_path / "theirs", **options)
    adopt(tmp_path / "theirs", 30, discrete_dims=(1,)).save(tmp_path / "ours")
    policy: Any = load_policy(tmp_path / "ours")
    assert (policy.model.spec.control_hz, policy.model.statistics.discrete_dims) == (30, (1,))

    @contextlib.contextmanager
    def seeded(_: int) -> Iterator[None]:
        torch.manual_seed(SEED)
        yield

    monkeypatch.setattr(policy.model, "_seeded", seeded)
    for seed in (1, 2):
        seen = observation(seed, tuple(observation(seed + 10) for _ in range(several - 1)))
        np.testing.assert_allclose(policy.infer(seen).actions, planned_by_lerobot(*theirs, seen), atol=1e-5)


def test_a_flow_plans_what_it_plans_in_lerobot(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="SmolVLA needs the extra 'vlm'")
    theirs = save("smolvla", tmp_path / "theirs")
    adopt(tmp_path / "theirs", 30).save(tmp_path / "ours")
    policy, seen, config = load_policy(tmp_path / "ours"), observation(3), theirs[0].config
    policy.reset(5)
    noise = torch.from_numpy(flow_noise(5, seen.tick, config.chunk_size, config.max_action_dim))[None]
    expected = planned_by_lerobot(*theirs, seen, noise=noise)
    np.testing.assert_allclose(policy.infer(seen).actions, expected, atol=1e-5)


def test_the_command_adopts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("act", tmp_path / "theirs")
    for load in (load_policy, find_policy):
        with pytest.raises(CheckpointError, match=r"python -m vla_rl\.policies\.lerobot_adapter"):
            load(tmp_path / "theirs")
    arguments = ["adapter", str(tmp_path / "theirs"), str(tmp_path / "ours"), "30"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_module("vla_rl.policies.lerobot_adapter", run_name="__main__")
    assert load_policy(tmp_path / "ours").infer(observation(1)).actions.shape == (6, 2)
    monkeypatch.setattr(sys, "argv", arguments[:-1])
    with pytest.raises(SystemExit, match="CONTROL_HZ"):
        runpy.run_module("vla_rl.policies.lerobot_adapter", run_name="__main__")


def test_images_of_another_scale_are_refused(tmp_path: Path) -> None:
    save("act", tmp_path / "theirs", images={**IMAGENET, "mean": (0.5, 0.5, 0.5)})
    with pytest.raises(CheckpointError, match=r"camera 'front' is normalized by mean \[0.5"):
        adopt(tmp_path / "theirs", 30)


def test_images_of_another_range_are_refused(tmp_path: Path) -> None:
    from lerobot.configs import NormalizationMode

    ranges = {"STATE": NormalizationMode.MEAN_STD, "ACTION": NormalizationMode.MEAN_STD}
    options = {"normalization_mapping": {**ranges, "VISUAL": NormalizationMode.MIN_MAX}}
    save("act", tmp_path / "theirs", images={**IMAGENET, "max": (0.5, 0.5, 0.5)}, **options)
    with pytest.raises(CheckpointError, match=r"camera 'front' is normalized by max \[0.5"):
        adopt(tmp_path / "theirs", 30)


def test_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    save("act", tmp_path / "theirs")
    file = tmp_path / "theirs" / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    for step in content["steps"]:
        if step["registry_name"] == "normalizer_processor":
            step["state_file"] = "../elsewhere.safetensors"
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot be adopted"):
        adopt(tmp_path / "theirs", 30)
    file.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        adopt(tmp_path / "theirs", 30)


def rename(steps: list[Any]) -> None:
    steps[0]["config"]["rename_map"] = {"observation.images.wrist": "observation.images.front"}


def add_step(steps: list[Any]) -> None:
    steps.insert(1, {"registry_name": "image_crop_resize_processor", "config": {"resize_size": [32, 32]}})


def add_foreign_step(steps: list[Any]) -> None:
    steps.append({"class": "elsewhere.Rotated", "config": {}})


def drop_batch(steps: list[Any]) -> None:
    del steps[1]


def reverse(steps: list[Any]) -> None:
    steps[:2] = steps[1::-1]


def normalize_otherwise(steps: list[Any]) -> None:
    (step,) = (each for each in steps if each["registry_name"].endswith("normalizer_processor"))
    step["config"]["norm_map"]["ACTION"] = "MIN_MAX"


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("policy_preprocessor.json", rename, r"rename_map of the step 'rename_observations_processor' is \{'obs"),
        ("policy_preprocessor.json", add_step, r"does not give such a policy the steps \['image_crop_resize"),
        ("policy_postprocessor.json", add_foreign_step, r"the steps \['elsewhere.Rotated'\]"),
        ("policy_preprocessor.json", drop_batch, r"it lacks the steps \['to_batch_processor'\]"),
        ("policy_preprocessor.json", reverse, "its steps have the order"),
        ("policy_postprocessor.json", normalize_otherwise, "norm_map of the step 'unnormalizer_processor'"),
    ],
)
def test_what_a_processor_does_beside_is_not_dropped(
    name: str, change: Callable[[list[Any]], None], complaint: str, tmp_path: Path
) -> None:
    save("act", tmp_path / "theirs")
    file = tmp_path / "theirs" / name
    content = json.loads(file.read_text())
    change(content["steps"])
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=complaint):
        adopt(tmp_path / "theirs", 30)


def test_two_statistics_of_one_policy_are_compared(tmp_path: Path) -> None:
    save("act", tmp_path / "theirs")
    (file,) = (tmp_path / "theirs").glob("policy_postprocessor_step_*unnormalizer*.safetensors")
    rows = load_file(file)
    save_file({**rows, "action.mean": rows["action.mean"] + 1}, file)
    with pytest.raises(CheckpointError, match=r"different statistics: \['action.mean'\]"):
        adopt(tmp_path / "theirs", 30)


def test_older_processors_lack_steps_that_do_nothing(tmp_path: Path) -> None:
    """lerobot of before relative actions wrote no such steps."""
    pytest.importorskip("transformers", reason="SmolVLA needs the extra 'vlm'")
    save("smolvla", tmp_path / "theirs")
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        file = tmp_path / "theirs" / name
        content = json.loads(file.read_text())
        content["steps"] = [each for each in content["steps"] if "enabled" not in each["config"]]
        file.write_text(json.dumps(content))
    adopt(tmp_path / "theirs", 30)


def test_relative_actions_are_refused(tmp_path: Path) -> None:
    save("act", tmp_path / "theirs")
    config = read_config(tmp_path / "theirs", lerobot_tiny.SPEC)
    config.use_relative_actions = True
    with pytest.raises(UserError, match="relative to the state"):
        check_interface(config, lerobot_tiny.SPEC)
