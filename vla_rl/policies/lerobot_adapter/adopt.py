"""A folder that lerobot trained, as a base policy here: its weights and its normalization stay as they were.

Interface and statistics stand in files beside the weights. They are read as JSON and safetensors; nothing that these
files name is executed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from vla_rl.core.errors import CheckpointError, one_line
from vla_rl.core.json_files import read_json
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.validation import plain_name
from vla_rl.policies.lerobot_adapter.folder import IMAGE_PREFIX, STATE
from vla_rl.policies.lerobot_adapter.model import IMAGENET, STATISTICS, LeRobotModel

_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_NOT_COMPARED = (
    "device",
    "features",
    "tokenizer_name",
)  # options of steps that differ between machines, or are in config.json
_NO_LIMIT = 1e6  # of a normalized input: lerobot has none


def adopt(
    folder: Path | str, control_hz: float, *, delta_dims: Sequence[int] = (), discrete_dims: Sequence[int] = ()
) -> LeRobotModel:
    """Load a policy that lerobot trained and saved with its processors.

    Args:
        folder: Of lerobot's ``pretrained_model``.
        control_hz: Rate of the data that it was trained on; lerobot's folder does not contain it.
        delta_dims: Action dimensions that are steps, not targets.
        discrete_dims: Action dimensions that are discrete (grippers).

    Returns:
        Policy that plans what it plans in lerobot. `LeRobotModel.save` writes it for `vla_rl.load_policy`.

    Raises:
        CheckpointError: If a file is missing or damaged. If images are normalized in a way that is not ImageNet's, or
            a processor is not the one that lerobot makes for such a policy.
    """
    folder = Path(folder)
    try:
        raw = read_json(folder / "config.json")
        before, after = (read_json(folder / name)["steps"] for name in _PROCESSORS)
        step, found = _normalization(folder, before, "normalizer_processor")
        _, undone = _normalization(folder, after, "unnormalizer_processor")
        if differing := [name for name, rows in undone.items() if not np.array_equal(rows, found.get(name, rows))]:
            raise ValueError(f"its two processors normalize by different statistics: {differing}")
        inputs, actions = raw["input_features"], raw["output_features"]["action"]["shape"]
        cameras = {name.removeprefix(IMAGE_PREFIX): each["shape"] for name, each in inputs.items() if name != STATE}
        sizes = {tuple(shape[1:]) for shape in cameras.values()}
        if len(sizes) > 1:
            raise ValueError(f"its cameras have the sizes {sorted(sizes)}; only cameras of one size can act here")
        if (mode := step["config"]["norm_map"].get("VISUAL", "IDENTITY")) != "IDENTITY":
            _check_images(found, cameras, ("min", "max") if mode == "MIN_MAX" else ("mean", "std"))
        spec = PolicySpec(
            str(raw["type"]),
            tuple(cameras),
            next(iter(sizes), (64, 64)),
            int(inputs[STATE]["shape"][0]),
            int(actions[0]),
            control_hz,
            tuple(delta_dims),
        )
        uses_quantiles = "QUANTILE" in str(step["config"]["norm_map"])
        state, action = (_vector(found, name, uses_quantiles) for name in (STATE, "action"))
        statistics = Statistics(state, action, tuple(discrete_dims))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error.filename} is missing; lerobot 0.4 and later writes it beside the weights"
        ) from error
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} cannot be adopted: {one_line(error)}; fine-tune it here instead") from error
    model = LeRobotModel._read(folder, spec, statistics, pretrained=True).eval()
    for name, theirs, ours in zip(_PROCESSORS, (before, after), (model.preprocess, model.postprocess), strict=True):
        if lost := _lost(theirs, json.loads(json.dumps(ours.get_config()))["steps"]):
            raise CheckpointError(f"{folder / name}: {lost}; fine-tune it here instead")
    return model


def _normalization(
    folder: Path, steps: Sequence[Mapping[str, Any]], name: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the step of a processor that normalizes, or undoes it, and its statistics."""
    (step,) = (each for each in steps if _name(each) == name)
    return step, load_file(folder / plain_name(step["state_file"]))


def _lost(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> str:
    """Return what the steps of a saved processor do that those made here do not, or the reverse; empty: nothing."""
    made = {_name(step): step["config"] for step in ours}
    saved = [_name(step) for step in theirs]
    if unknown := [name for name in saved if name not in made]:
        return f"lerobot does not give such a policy the steps {unknown}"
    if missing := [name for name, config in made.items() if name not in saved and config.get("enabled", True)]:
        return f"it lacks the steps {missing}"
    if saved != [name for name in made if name in saved]:
        return f"its steps have the order {saved}, expected {[*made]}"
    for step in theirs:
        name = _name(step)
        for option, value in step.get("config", {}).items():
            if option not in _NOT_COMPARED and value != made[name].get(option):
                return f"{option} of the step {name!r} is {value!r}, expected {made[name].get(option)!r}"
    return ""


def _name(step: Mapping[str, Any]) -> str:
    return str(step.get("registry_name") or step["class"])


def _vector(found: Mapping[str, Any], name: str, uses_quantiles: bool) -> VectorStatistics:
    rows = {}
    for ours, theirs in STATISTICS.items():
        if theirs.startswith("q") and f"{name}.{theirs}" not in found and not uses_quantiles:
            theirs = "min" if theirs == "q01" else "max"  # datasets of older versions have no quantiles
        rows[ours] = tuple(map(float, found[f"{name}.{theirs}"]))
    size = len(rows["mean"])
    return VectorStatistics(**rows, floor=(0.0,) * size, limit=(_NO_LIMIT,) * size)


def _check_images(found: Mapping[str, Any], cameras: Mapping[str, Any], names: Sequence[str]) -> None:
    for camera in cameras:
        for name in names:
            values = np.asarray(found[f"{IMAGE_PREFIX}{camera}.{name}"]).ravel()
            if values.shape != (3,) or np.abs(values - IMAGENET[name]).max() > 1e-3:
                raise ValueError(
                    f"camera {camera!r} is normalized by {name} {values.tolist()}, expected {IMAGENET[name]}"
                )
