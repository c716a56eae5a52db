"""Messages that are almost right, for both parsers: the client's of answers and metadata, the server's of requests."""

from typing import Any

import msgpack
from hypothesis import strategies as st

_ND, _NP = b"__ndarray__", b"__npgeneric__"
_SOUND = [
    {_ND: True, b"data": bytes(16 * 16 * 3), b"dtype": "|u1", b"shape": [16, 16, 3]},
    {_ND: True, b"data": bytes(12), b"dtype": "<f4", b"shape": [3]},
    {_ND: True, b"data": b"\xff" * 12, b"dtype": "<f4", b"shape": [3]},  # not a number
    {_ND: True, b"data": bytes(64), b"dtype": "<f4", b"shape": [8, 2]},
    {_ND: True, b"data": bytes(24), b"dtype": ">f8", b"shape": [3]},
    {_NP: True, b"data": 3, b"dtype": "<i8"},
]
_LIES: dict[bytes, list[Any]] = {
    b"data": [b"", bytes(7), "text", -1, 2**63, 1e300, None],
    b"dtype": ["|O", "O", "<c8", "<U3", "<f4,<i4", "|i1", "<f2", "", 7, None],
    b"shape": [[], [-1], [2**40, 2**40], [2**62, 0], [1] * 40, ["3"], [3.0], "3", None],
    _ND: [False, None],
    _NP: [True],
}
_LIE = st.sampled_from([(field, value) for field, values in _LIES.items() for value in values])
_LYING = st.tuples(st.sampled_from(_SOUND), _LIE).map(lambda pair: {**pair[0], pair[1][0]: pair[1][1]})
_ARRAY = st.sampled_from(_SOUND) | _LYING
_OURS = ("vla_rl", "seed", "tick", "episode", "committed", "previous", "delay_ticks", "exact_gradient")
_SENT = ("observation/front", "observation/top", "observation/state", "prompt", "actions", "server_timing")
_DECLARED = ("spec", "keys", "horizon", "provides", "cameras", "state_dim", "action_dim", "image_size", "env_id")
_KEY = st.sampled_from([*_OURS, *_SENT, *_DECLARED, "infer_ms", "sent_ns", "", b"x", "a.b"])
_LEAF = st.sampled_from([None, True, 0, -1, 3, 2**40, 2**64 - 1, 0.5, float("nan"), "", "text", b"bytes"]) | _ARRAY
_VALUE = st.recursive(_LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=3))
_COUNT = st.integers(0, 9) | _LEAF
_ACTIONS = st.just(_SOUND[3]) | _ARRAY
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("seed", "tick", "episode", "delay_ticks", "infer_ms", "sent_ns"), _COUNT),
        **dict.fromkeys(("committed", "previous"), _ACTIONS),
        "exact_gradient": _LEAF,
    },
)
_LIKELY = st.fixed_dictionaries(
    {
        "observation/front": st.just(_SOUND[0]),
        "observation/top": st.just(_SOUND[0]) | _ARRAY,
        "observation/state": st.just(_SOUND[1]) | _ARRAY,
        "actions": _ACTIONS,
    },
    optional={"prompt": st.just("push") | _LEAF, "vla_rl": _OPTIONS | _LEAF, "server_timing": _OPTIONS | _LEAF},
).map(msgpack.packb)
_PACKED = (st.dictionaries(_KEY, _VALUE, max_size=5) | _VALUE).map(msgpack.packb)
_CUT = st.tuples(_LIKELY | _PACKED, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
_KINDS = (_LIKELY, _LIKELY, _LIKELY, _PACKED, _CUT, st.binary(max_size=200))
MESSAGES: st.SearchStrategy[bytes] = st.sampled_from(_KINDS).flatmap(lambda kind: kind)
"""Packed mappings that hold much of what a message should, cut ones, and noise."""
