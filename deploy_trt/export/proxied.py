"""What improves a base policy, as graphs: ``prefix`` gives the features of its proxy, ``selection`` is residual and
critic. A base policy in a folder is exported into a folder beside them. Others stay where they are: on a server, or a
class on the robot's computer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deploy_trt.export.deployment import NOT_WRITTEN, flow_vla_probes, random_observations, save_deployment, text_info
from deploy_trt.export.graph import GraphSpec
from deploy_trt.export.selection import selection_spec
from deploy_trt.runtime.manifest import BASE_FOLDER, BaseInfo, Manifest, SamplerInfo, normalization_of
from deploy_trt.runtime.refresh import read_critic
from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import digest_of
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.core.types import Observation
from vla_rl.policies.base import flat_features
from vla_rl.policies.checkpoint import load_selector
from vla_rl.policies.lerobot_adapter import LeRobotModel
from vla_rl.policies.lerobot_adapter.losses import recorded
from vla_rl.policies.named import is_name


class FeaturesGraph(nn.Module):
    """Map images, normalized state and text to the features of a proxy, [1, F]."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, *inputs: Tensor) -> Tensor:
        *pictures, state, text = inputs
        images, state = self.policy.newest(dict(zip(self.policy.spec.cameras, pictures, strict=True)), state)
        return flat_features(*self.policy.net.tokens_of(images, state, text, None))


def export_proxied(
    model: Any,
    folder: Path,
    meta: Mapping[str, Any],
    precision: str = "fp32",
    unrolled: bool = False,
    observations: Sequence[Observation] = (),
    policy_folder: Path | None = None,
) -> Manifest:
    """Export proxy, residual and critic of a policy behind a proxy.

    Args:
        model: The `vla_rl.policies.proxy.ProxiedPolicy`, on the CPU.
        folder, meta, observations, policy_folder: As of `export_flow_vla`.
        precision, unrolled: Not to choose: float32, two graphs.

    Raises:
        CheckpointError: If the critic is damaged.
        UserError: If the policy has no critic, or its base policy has no exporter, or samples noise of torch alone.
    """
    del precision, unrolled
    base = model.config.base
    if policy_folder is None or (critic := read_critic(policy_folder)) is None:
        raise UserError(f"the policy has no critic that would improve {base}; use {base} itself")
    selector = load_selector(policy_folder / CRITIC_FOLDER, model)
    spec = model.spec
    manifest = Manifest(
        policy=model.config.kind,
        policy_version=int(meta.get("policy_version", 0)),
        spec=spec,
        horizon=model.horizon,
        precision="fp32",
        graphs={},
        reference={},
        weights=None,
        probes=NOT_WRITTEN,
        **normalization_of(model.statistics),
        text=text_info(model.net, folder),
        sampler=SamplerInfo("base", width=spec.action_dim, horizon=model.horizon),
        provides=(),
        selection=critic[0],
        base=BaseInfo(base, model.config.draws, model.n_obs_steps) if is_name(base) else _export_base(model, folder),
        source={"meta": dict(meta), "config": config_to_dict(model.config)},
    )
    probes = flow_vla_probes(model, observations, selector)
    inputs = {name.removeprefix("input."): torch.from_numpy(probes[name][:1]) for name in probes if "input." in name}
    prefix = GraphSpec("prefix", FeaturesGraph(model), inputs, ["features"]).export()
    return save_deployment(folder, manifest, [prefix, selection_spec(model, selector).export()], probes)


def _export_base(model: Any, folder: Path) -> BaseInfo:
    """Export a base policy in a folder. The noise that a flow of lerobot begins with is that of torch's generator."""
    from deploy_trt.export.policies import export_policy  # which exports by this module

    base, draws = model.base.model, model.config.draws
    start: tuple[tuple[float, ...], ...] = ()
    if isinstance(base, LeRobotModel) and base.policy.name != "act":
        if draws > 1 or "guidance" not in base.capabilities:  # no flow
            raise ConfigError(
                f"policy.base={model.config.base} with policy.draws={draws} samples noise of torch's generator; "
                "serve it (policy.base=openpi://HOST:PORT), or practice a flow with policy.draws=1"
            )
        observation = random_observations(model.spec, model.statistics.state)[0]
        images = {name: torch.from_numpy(image)[None] for name, image in observation.images.items()}
        noise = torch.zeros(1, model.horizon, model.spec.action_dim)
        with recorded(base.policy.model, "sample_noise") as calls:
            base.draw(images, torch.from_numpy(observation.state)[None], base.tokenize([observation.task]), noise)
        start = tuple(map(tuple, calls[0].result[0].tolist()))
    export_policy(Path(model.base.source), folder / BASE_FOLDER)
    return BaseInfo(BASE_FOLDER, draws, 1, digest_of(folder / BASE_FOLDER / "manifest.json"), start)
