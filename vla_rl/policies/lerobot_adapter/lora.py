"""Adapters of low rank for the layers of a large policy (LoRA, arXiv 2106.09685), by the package peft.

    y = W x + (alpha / rank) B A x

The weights W stay frozen, so that they are neither averaged nor saved: a folder holds A and B, in peft's format.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, UserError, one_line
from vla_rl.core.files import digest_of
from vla_rl.core.validation import check_ranges

WEIGHTS = "model.safetensors"  # of a whole policy
_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraConfig:
    """Adapters in place of all weights.

    Attributes:
        rank: Rank of the adapters. 0: all weights of the policy are trained.
        alpha: Scale of the adapters, as a multiple of 1 / rank.
        targets: Regular expression of the names of layers with an adapter. Empty: the layers that lerobot has chosen
            for SmolVLA, pi0 and pi0.5.
    """

    rank: int = 0
    alpha: int = 16
    targets: str = ""

    def __post_init__(self) -> None:
        check_ranges(self, "policy.lora", rank=">= 0", alpha=">= 1")


class Added(NamedTuple):
    """What is added to which policy: its folder, and the digest of its weights."""

    config: LoraConfig
    base: Path
    digest: str

    @classmethod
    def to(cls, base: Path, config: LoraConfig) -> Self:
        """Choose a folder with trained weights.

        Raises:
            CheckpointError: If it has none.
        """
        if not (base / WEIGHTS).is_file():
            raise CheckpointError(f"{base} has no {WEIGHTS}; policy.lora.rank needs a trained policy")
        return cls(config, base, digest_of(base / WEIGHTS))

    def check(self, folder: Path) -> None:
        """Raise CheckpointError unless the policy is there, as it was when the adapters in a folder were trained."""
        weights = self.base / WEIGHTS
        if not weights.is_file() or digest_of(weights) != self.digest:
            raise CheckpointError(
                f"{folder} holds adapters of {weights}, which is missing or has changed; bring it back, or copy a "
                "merged policy (docs/lerobot.md)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"config": config_to_dict(self.config), "base": str(self.base), "digest": self.digest}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        return cls(config_from_dict(LoraConfig, raw["config"]), Path(raw["base"]), raw["digest"])


def is_adapter(name: str) -> bool:
    """Return whether a weight of this name belongs to an adapter."""
    return ".lora_" in name


def merged(policy: Any) -> Any:
    """Return a copy without adapters, whose layers compute the same."""
    policy = copy.deepcopy(policy)
    for name, layer in list(policy.named_modules()):
        if hasattr(layer, "lora_A"):
            layer.merge()
            policy.set_submodule(name, layer.get_base_layer())
    del policy.peft_config
    policy.config.use_peft = False
    return policy


class Adapters:
    """Adapters of a policy, and their files, which lerobot and peft read as well.

    They do not change the policy's chunks before they are trained. Its own weights are frozen.

    Args:
        policy: Policy of lerobot.
        added: Size and places of the adapters, and the folder of the policy.

    Raises:
        UserError: If peft is not installed, or no layer has a name of ``targets``.
    """

    def __init__(self, policy: Any, added: Added) -> None:
        self.policy, self.added, config = policy, added, added.config
        try:
            import peft
        except ImportError as error:
            raise UserError("policy.lora.rank needs the package peft; install vla-rl[lora]") from error
        targets = config.targets or (policy._get_default_peft_targets() or {}).get("target_modules")
        if not targets:
            raise UserError(f"policy.lora.targets is empty, and lerobot has no default for {policy.name}; name layers")
        try:
            peft.inject_adapter_in_model(
                peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets), policy
            )
        except ValueError as error:
            raise UserError(f"policy.lora.targets={targets}: {one_line(error)}") from error
        policy.config.use_peft = True
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()  # peft takes the precision of W, in which small steps get lost

    def save_pretrained(self, folder: Path) -> None:
        """Write config and adapters into a folder."""
        self.policy.config.save_pretrained(folder)
        description = copy.copy(self.policy.peft_config["default"])
        description.base_model_name_or_path = str(self.added.base)
        description.save_pretrained(str(folder))
        save_file({name: weight.cpu().contiguous() for name, weight in self._weights().items()}, folder / _WEIGHTS)

    def load(self, folder: Path) -> None:
        """Load the adapters of a folder."""
        own, found = self._weights(), load_file(folder / _WEIGHTS)
        if own.keys() != found.keys():
            raise UserError(f"{_WEIGHTS} is of other layers than {next(iter(own))}")
        for name, weight in own.items():
            weight.copy_(found[name])

    def _weights(self) -> dict[str, Tensor]:
        """Adapters by the names that they have in peft's files."""
        every = self.policy.state_dict().items()
        return {
            f"base_model.model.{name.replace('.default', '')}": weight for name, weight in every if is_adapter(name)
        }
