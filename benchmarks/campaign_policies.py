"""Small policies for the campaign's robot that have learnt nothing, one for every execution strategy."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign_wave import CAMERA, HORIZON, HZ, JOINTS, PICTURE, wave_spec
from vla_rl.core.cache_keys import cache_key, code_digest
from vla_rl.core.registry import names
from vla_rl.core.types import Episode, Origin, Source

_PREFIX = 4
_KINDS: dict[str, dict[str, Any]] = {
    "training_time_prefix": {"prefix_max": _PREFIX},
    "xiaomi": {"prefix_max": _PREFIX, "prefix_law": "xiaomi"},
    "vlash": {"future_state_max": _PREFIX},
}


def policies_for_strategies(folder: Path) -> dict[str, str]:
    """Execution strategy -> folder of a policy that supports it, for every strategy that is registered."""
    own = folder / cache_key(code_digest(__name__, "vla_rl.policies"))
    return {name: str(_policy(own / name, name)) for name in names("strategies")}


def _policy(folder: Path, strategy: str) -> Path:
    import torch

    from vla_rl.core.normalization import Statistics
    from vla_rl.policies.corrector import FOLDER
    from vla_rl.policies.corrector_training import CorrectorConfig, train_corrector
    from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig

    if (folder / "config.json").exists():
        return folder
    vision = VisionConfig(widths=(4,), kernels=(4,), strides=(4,))
    expert = ExpertConfig(width=16, actions_per_token=1 if strategy == "xiaomi" else 4)
    config = FlowVLAConfig(vision=vision, expert=expert, horizon=HORIZON, **_KINDS.get(strategy, {}))
    vectors = np.random.default_rng(0).uniform(-0.5, 0.5, (50, len(JOINTS))).astype(np.float32)
    torch.manual_seed(0)
    model = FlowVLA(config, wave_spec(), Statistics.from_arrays(vectors, vectors))
    if strategy == "a2c2":
        head, _ = train_corrector(model, [_episode(number) for number in range(3)], CorrectorConfig(steps=5), seed=0)
        head.save(folder / FOLDER)
    model.save(folder, {"policy_version": 0})
    return folder


def _episode(number: int, length: int = 24) -> Episode:
    random = np.random.default_rng(number)
    state = random.uniform(-0.5, 0.5, (length, len(JOINTS))).astype(np.float32)
    images = {CAMERA: random.integers(0, 256, (length, PICTURE, PICTURE, 3), dtype=np.uint8)}
    source = np.full(length, Source.HUMAN, np.uint8)
    return Episode(
        f"shown-{number}",
        images,
        state,
        state,
        state,
        source,
        seed=None,
        control_hz=HZ,
        env_id="campaign",
        task="",
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
    )
