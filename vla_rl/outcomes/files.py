"""What a detector's folder says of it, and what its networks' answers amount to. Threading law: no torch."""

from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError
from vla_rl.core.files import digest_of
from vla_rl.core.json_files import read_json
from vla_rl.core.types import Float32Array
from vla_rl.outcomes.detector import Judgment

VERSION = 2
_SURE = 0.9  # Every network's least probability of a success. A false success costs practice more than a question.


def judgment_of(members: Float32Array, novelty: float) -> Judgment:
    """Return what the probabilities of the members [M] and the novelty of a window amount to.

    A failure needs all members below 0.5, a success all of them above ``_SURE``.
    """
    probability = float(members.mean())
    if not novelty <= 1:  # also if it is not a number
        return Judgment(None, probability, "unlike every known window")
    if members.max() > 0.5 and members.min() <= _SURE:
        disagree = members.min() <= 0.5
        return Judgment(None, probability, "the networks disagree" if disagree else "the networks are not sure enough")
    return Judgment(probability > 0.5, probability)


def check_folder(folder: Path, other: str) -> None:
    """Refuse to write a detector over the other kind, saved or exported: ``other`` is the name of that kind's file."""
    if (folder / other).exists():
        raise UserError(f"{folder} holds another kind of detector, {other}; move it away, or name another folder")


def read_about(folder: Path, weights: str) -> dict[str, Any]:
    """Return what a detector's folder says of it.

    Args:
        folder: Folder of the detector.
        weights: Name of the file whose digest the folder keeps.

    Raises:
        UserError: If the detector is missing, damaged, or of another version.
    """
    try:
        about: dict[str, Any] = read_json(folder / "detector.json")
        version = about["version"]
        if version == VERSION and digest_of(folder / weights) != about["weights"]:
            raise ValueError(f"{weights} is not what was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} holds no whole detector with {weights} ({error}); fit or export one") from error
    if version != VERSION:
        raise UserError(f"{folder} has version {version!r}, this program reads {VERSION}; fit the detector anew")
    return about
