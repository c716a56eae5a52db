"""Whatever is done to a file, its reader refuses it in one line or reads what was meant. The nightly size of this is
``python -m benchmarks hostile``.
"""

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.hostile.kinds import KINDS
from benchmarks.hostile.trials import judge, spoil
from vla_rl.core.json_files import DEEPEST, check_seal, parse_json, sealed

pytest.importorskip("onnxscript", reason="exporting needs the extra 'trt'")


# These two are made by an export, and by lerobot.
_SLOW = ("deployment", "lerobot dataset")
_PARAMS = [pytest.param(kind, marks=[pytest.mark.slow] * (kind in _SLOW)) for kind in sorted(KINDS)]


@pytest.fixture(scope="module", params=_PARAMS)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """A kind, a whole folder of it, and what its reader makes of that."""
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param].make(folder / "whole")
    shutil.copytree(folder / "whole", folder / "copy")
    return request.param, folder / "whole", KINDS[request.param].read(folder / "copy")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_spoilt_file_is_refused_or_means_the_same(
    example: tuple[str, Path, str], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    name, whole, expected = example
    folder = tmp_path_factory.mktemp("spoilt")
    copy = Path(shutil.copytree(whole, folder / "copy"))
    mutation = spoil(KINDS[name], copy, random.Random(seed), folder / "executed")
    outcome, detail, growth_mb = judge(KINDS[name], copy, expected)
    assert outcome in ("refused", "without meaning"), f"{mutation}: {detail}"
    assert not (folder / "executed").exists(), mutation
    assert growth_mb < 500, mutation
    shutil.rmtree(folder)


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(allow_nan=False),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_what_is_sealed_is_what_was_meant(value: object) -> None:
    if value in (float("inf"), float("-inf")) or "inf" in repr(value):
        return
    content = sealed({"value": value, 3: "keys become text"})
    check_seal(content)
    with pytest.raises(ValueError, match="not the one"):
        check_seal({**content, "more": 1})


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', "[1e999]", "NaN", "1" * 21, "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "[" * 10**6, "\udcff"],
)
def test_json_is_strict(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text.encode("utf-8", "surrogateescape"))
