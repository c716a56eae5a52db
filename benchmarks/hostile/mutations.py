"""What can be wrong with a file, from a seed: every mutation gives other bytes, and may give another meaning."""

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, float("nan"), float("-inf"), "", "../../x", "/etc/passwd", "a\x00b", "\x1b[2J\nx",
    "x" * 5000, [], {}, [[]], {"": {}}, [1.0], "__import__('os').system('true')",
)  # fmt: skip


class Bomb:
    """Unpickling it leaves a mark: the file whose path stands in it is made."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.mark), "w"))


def mutate(content: bytes, others: Sequence[bytes], chance: random.Random, mark: Path) -> tuple[str, bytes]:
    """One mutation.

    Args:
        content: of the file.
        others: contents of its neighbors, to be swapped in.
        chance: decides.
        mark: the file that appears if anything is executed.

    Returns:
        its name, and the new content.
    """
    mutations: list[Callable[[], bytes]] = [
        lambda: truncated(content, chance),
        lambda: flipped(content, chance),
        lambda: overwritten(content, chance),
        lambda: chance.choice(others) if others else b"",
        lambda: pickle.dumps(Bomb(mark)),
        lambda: b"",
    ]
    names = ["truncated", "flipped", "overwritten", "swapped", "pickle", "empty"]
    weights = [4.0, 4.0, 2.0, 1.0, 0.2, 0.2]
    if content[:1] in (b"{", b"["):
        mutations += [lambda: changed_json(content, chance), lambda: changed_digit(content, chance)]
        mutations += [lambda: nested(content, chance)]
        names, weights = [*names, "json value", "digit", "nested"], [*weights, 8.0, 8.0, 1.0]
    elif content[:2] == b"PK":
        mutations += [lambda: repacked(content, chance), lambda: lying_zip(content, chance)]
        names, weights = [*names, "repacked", "lying size"], [*weights, 8.0, 4.0]
    elif content[8:9] == b"{":
        mutations.append(lambda: lying_header(content, chance))
        names, weights = [*names, "lying size"], [*weights, 4.0]
    chosen = chance.choices(range(len(names)), weights)[0]
    return names[chosen], mutations[chosen]()


def truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(max(len(content), 1))]


def flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 8)) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwritten(content: bytes, chance: random.Random) -> bytes:
    start, length = chance.randrange(max(len(content), 1)), chance.randint(1, 64)
    return content[:start] + chance.randbytes(length) + content[start + length :]


def changed_digit(content: bytes, chance: random.Random) -> bytes:
    places = [index for index, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return truncated(content, chance)
    place = chance.choice(places)
    return content[:place] + str((int(chr(content[place])) + chance.randint(1, 9)) % 10).encode() + content[place + 1 :]


def changed_json(content: bytes, chance: random.Random) -> bytes:
    """A value replaced, taken away or added, anywhere in it."""
    try:
        tree = json.loads(content)
    except ValueError:
        return truncated(content, chance)
    node, key = _any_place(tree, chance)
    if node is None:
        return json.dumps(chance.choice(HOSTILE_VALUES)).encode()
    match chance.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[f"{key}_"] = node[key]
        case 2 if isinstance(node[key], int | float) and not isinstance(node[key], bool):
            node[key] = node[key] * chance.choice((-1, 0, 10, 1e6, 1e30)) + chance.choice((0, 1))
        case _:
            node[key] = chance.choice(HOSTILE_VALUES)
    return json.dumps(tree).encode()


def _any_place(tree: Any, chance: random.Random) -> tuple[Any, Any]:
    """A container and a key or an index in it, every value as likely as another; None for a lone value."""
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            waiting.append(value)
    return chance.choice(places) if places else (None, None)


def nested(content: bytes, chance: random.Random) -> bytes:
    """A value replaced by brackets in brackets, from more than is meant to more than a parser can take."""
    depth = chance.choice((70, 900, 50_000, 500_000))
    opened, closed = chance.choice((("[", "]"), ('{"a":', "}")))
    bomb = opened * depth + "0" + closed * depth
    place = content.find(b":", chance.randrange(max(len(content), 1))) + 1
    return content[:place] + bomb.encode() + b"," + content[place:] if place else bomb.encode()


def lying_header(content: bytes, chance: random.Random) -> bytes:
    """A safetensors file whose header claims other sizes than there are."""
    length = int.from_bytes(content[:8], "little")
    if chance.random() < 0.3:
        return struct.pack("<Q", chance.choice((0, length - 1, length + 1, 2**31, 2**63))) + content[8:]
    header = changed_digit(content[8 : 8 + length], chance)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def repacked(content: bytes, chance: random.Random) -> bytes:
    """Return a valid zip with one member mutated, which no CRC shows."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(sorted(members))
    change = changed_json if members[name][:1] == b"{" else chance.choice((flipped, truncated, overwritten))
    members[name] = change(members[name], chance)
    if chance.random() < 0.1:
        del members[name]
    packing = zipfile.ZIP_DEFLATED if chance.random() < 0.1 else zipfile.ZIP_STORED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as archive:
        for each, part in members.items():
            archive.writestr(each, part)
    return out.getvalue()


def lying_zip(content: bytes, chance: random.Random) -> bytes:
    """Shapes and pieces of an array that claim gigabytes, or a directory that does."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    arrays = [name for name in members if name.endswith("zarr.json") and b'"shape"' in members[name]]
    if not arrays or chance.random() < 0.2:
        place = content.rfind(b"PK\x01\x02") + 20  # sizes of the last member in the directory
        return content[:place] + struct.pack("<II", 2**31, 2**31) + content[place + 8 :]
    for name in arrays if chance.random() < 0.5 else [chance.choice(arrays)]:
        tree = json.loads(members[name])
        tree["shape"][0] = chance.choice((10**6, 10**9, 2**62))
        if chance.random() < 0.5:
            tree["chunk_grid"]["configuration"]["chunk_shape"][0] = tree["shape"][0]
        members[name] = json.dumps(tree).encode()
    if chance.random() < 0.5 and "zarr.json" in members:
        tree = json.loads(members["zarr.json"])
        tree.get("attributes", {}).get("episode", {})["length"] = 10**6
        members["zarr.json"] = json.dumps(tree).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, part in members.items():
            archive.writestr(each, part)
    return out.getvalue()


def hostile_yaml(content: bytes, chance: random.Random, mark: Path) -> tuple[str, bytes]:
    """A nonsensical config, always to be refused."""
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    bombs: dict[str, bytes] = {
        "python tag": f"x: !!python/object/apply:builtins.open ['{mark}', w]\n".encode(),
        "nested": b"[" * chance.choice((100, 3000, 200_000)),
        "aliases": laughs.encode(),
        "no text": chance.randbytes(200) + b"\xff\xfe",
        "another key": content + f"\nkey{chance.randrange(10**6)}: 1\n".encode(),
        "no mapping": b"- 1\n- 2\n",
        "not finite": b"seed: .nan\n",
        "too large": b"seed: " + b"9" * chance.choice((30, 6000)) + b"\n",
        "bad date": b"seed: 2026-99-99\n",
        "pickle": pickle.dumps(Bomb(mark)),
    }
    name = chance.choice(sorted(bombs))
    return name, bombs[name]
