"""Signatures of policies, deployments and world models: a robot may refuse what its owner did not sign.

A signature is Ed25519 over the digests of the descriptions in a folder and its direct subfolders (a critic, a
corrector). Each description holds the digests of all that it describes. It lies beside them in ``signature.json``. Whom
a robot trusts stands in the environment variable `TRUSTED`, which every process of a rollout or node inherits; without
it nothing is asked.
"""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.files import write_atomic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

TRUSTED = "VLA_RL_TRUSTED_KEYS"
"""Public keys in PEM files, separated as in PATH."""
SIGNATURE = "signature.json"
DESCRIPTIONS = ("manifest.json", "vla_rl.json", "config.json")


def make_key(file: Path) -> Path:
    """Make a private key in a new file that only its owner may read, and return the public one's, ``.pub``, beside it.

    Raises:
        UserError: if a file is there already, or the library is missing.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, public = Ed25519PrivateKey.generate(), file.with_suffix(".pub")
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UserError(f"{file} exists; a key is never replaced, give another name") from error
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    pem = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    write_atomic(public, pem)
    return public


def sign(folder: Path, key_file: Path) -> None:
    """Sign a policy, a deployment or a world model, and the critic and corrector in it.

    Raises:
        UserError: if there is nothing to sign, or the key cannot be read.
    """
    key = _private_key(key_file)
    parts = [part for part in (folder, *sorted(folder.iterdir())) if part.is_dir() and _statement(part) != b"{}"]
    if folder not in parts:
        raise UserError(f"{folder} holds no policy and no deployment; name a version in policies/, or an export")
    for part in parts:
        signature = base64.b64encode(key.sign(_statement(part))).decode()
        write_atomic(part / SIGNATURE, json.dumps({"ed25519": signature}).encode())


def check_trusted(folder: Path) -> None:
    """Refuse a folder without a valid signature of a key in `TRUSTED`; where that is not set, all are accepted.

    Raises:
        CheckpointError: if it is not signed, or was changed since.
        UserError: if a key cannot be read.
    """
    names = [name for name in os.environ.get(TRUSTED, "").split(os.pathsep) if name]
    if not names:
        return None
    from cryptography.exceptions import InvalidSignature

    keys = [_public_key(Path(name)) for name in names]
    try:
        signature = base64.b64decode(json.loads((folder / SIGNATURE).read_bytes())["ed25519"], validate=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder} is not signed, and {TRUSTED} asks for it; sign it: vla-rl sign") from error
    for key in keys:
        try:
            return key.verify(signature, _statement(folder))
        except InvalidSignature:
            continue
    raise CheckpointError(f"{folder} was changed, or signed by a key that {TRUSTED} does not name; it is not used")


def _statement(folder: Path) -> bytes:
    """Return what is signed: path -> digest of every description, so that none can be changed, added or taken away."""
    files = [place / name for place in (folder, *sorted(folder.glob("*/"))) for name in DESCRIPTIONS]
    digests = {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()
    }
    return json.dumps(digests, sort_keys=True).encode()


def _private_key(file: Path) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(file.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("it is no Ed25519 key; make one: vla-rl sign --new-key FILE")
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read a private key from {file}: {error}") from error
    return key


def _public_key(file: Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("it is no Ed25519 key")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read a public key from {file}, which {TRUSTED} names: {error}") from error
    return key
