"""A folder that lerobot trained, as a base policy here: its weights and its normalization stay as they were.

Interface and statistics stand in files beside the weights. They are read as JSON and safetensors; nothing that these
files name is executed.
"""

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
        CheckpointError: If a file is missing or damaged, or images are normalized in a way that is not ImageNet's.
    """
    folder = Path(folder)
    try:
        raw = read_json(folder / "config.json")
        steps = read_json(folder / "policy_preprocessor.json")["steps"]
        (step,) = (each for each in steps if each["registry_name"] == "normalizer_processor")
        found = load_file(folder / plain_name(step["state_file"]))
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
    return LeRobotModel._read(folder, spec, statistics, pretrained=True).eval()


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
