"""Folders of weights: ``config.json``, which carries the digest over all of itself, and the one safetensors file that
it names by its digest. Policies, critics, correctors and world models are written and read here. Never pickle.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_rl.core.errors import CheckpointError
from vla_rl.core.files import digest_of, write_atomic
from vla_rl.core.json_files import check_seal, read_bytes, read_json, write_sealed
from vla_rl.core.validation import plain_name

POLICY_FORMAT = "vla-rl-policy"
POLICY_VERSION = 2
CRITIC_FOLDER = "critic"
"""Where the critic that chooses for a policy lies, in the policy's folder."""
CORRECTOR_FOLDER = "corrector"
"""Where the residual head of a policy lies, in the folder of the policy or of its deployment."""
CRITIC_FORMAT = "vla-rl-chunk-critic"
CRITIC_VERSION = 2
RESIDUAL = "residual."
"""Before the names of the residual's weights, which lie among the critic's."""


CHOOSES = "chooses"
"""What a policy's description says of itself: whether a critic or an edit lay in its folder when it was written."""


def critic_of(policy: Path) -> Path | None:
    """Return where the critic in a policy's folder lies, or None; CheckpointError if it has had one."""
    folder = policy / CRITIC_FOLDER
    if folder.is_dir():
        return folder
    try:
        lost = read_json(policy / "config.json")[CHOOSES] is True
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not one of ours, or damaged: its reader says what is wrong
    if lost:
        raise CheckpointError(
            f"{policy} has lost its {CRITIC_FOLDER}/, which chooses for it; copy the whole folder anew"
        )
    return None


def write_weights(folder: Path, stem: str, content: bytes, description: Mapping[str, Any]) -> None:
    """Write weights and what they are: ``STEM-DIGEST.safetensors``, then ``config.json``, which names it. A folder that
    is overwritten is the old content or the new, never a mix; the old weights go last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:16]}.safetensors"
    write_atomic(folder / name, content)
    write_sealed(folder / "config.json", {**description, "weights": name, "sha256": digest})
    for stale in folder.glob(f"{stem}-*.safetensors"):
        if stale.name != name:
            stale.unlink()


def read_weights(folder: Path, wanted: str, version: int) -> tuple[dict[str, Any], bytes]:
    """Return the description and the content of the weights that `write_weights` wrote, both verified.

    Raises:
        CheckpointError: if it is missing, damaged, of another format or version, or not signed by a trusted key.
    """
    from vla_rl.core.signing import check_trusted

    file = folder / "config.json"
    try:
        about = read_json(file)
    except OSError as error:
        pickles = sorted(path.name for pattern in ("*.pt", "*.pth", "*.bin", "*.pkl") for path in folder.glob(pattern))
        hint = f"; {pickles[0]} is a pickle and is never opened" if pickles else ""
        reason = f"cannot read {file.name} ({error.strerror}){hint}"
        raise CheckpointError(f"{folder} holds no {wanted}: {reason}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}; copy the folder anew") from error
    if not isinstance(about, dict) or about.get("format") != wanted:
        raise CheckpointError(f"{file} is not the config of a {wanted}; point at a version in a run's policies/")
    if (found := about.get("format_version")) != version:
        raise CheckpointError(f"{file} has format version {found!r}, this program reads {version}; make it anew")
    try:
        check_seal(about)
        name = plain_name(about.get("weights"))
        if not name.endswith(".safetensors"):
            raise ValueError(f"it names the weights {name!r}; only a .safetensors file is read")
        content = read_bytes(folder / name)
    except OSError as error:
        raise CheckpointError(f"cannot read the weights in {folder}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}; copy the folder anew") from error
    if hashlib.sha256(content).hexdigest() != about.get("sha256"):
        raise CheckpointError(f"{folder / name} is damaged: its digest is not the one in config.json; copy it anew")
    check_trusted(folder)
    return about, content


def weights_in(policy: Path) -> list[str]:
    """Return the digests of the weight files of a policy itself, without what chooses for it."""
    return sorted(digest_of(file) for file in policy.glob("*.safetensors"))


def is_lerobots(description: Any) -> bool:
    """Return whether a config.json describes a policy of lerobot's."""
    return isinstance(description, dict) and "type" in description and "format" not in description


def not_adopted(folder: Path) -> CheckpointError:
    """Return the error for a folder that lerobot wrote alone, where a policy of ours is expected."""
    return CheckpointError(
        f"{folder} is lerobot's alone: it lacks the rate of its data. Adopt it: python -m "
        f"vla_rl.policies.lerobot_adapter {folder} OUT CONTROL_HZ. Or fine-tune it: vla-rl finetune --policy {folder}"
    )
