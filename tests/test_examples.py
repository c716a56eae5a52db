"""The example of every public class and function, beyond those of `import vla_rl`, runs."""

import asyncio
import doctest
import functools
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import vla_rl as vla
from benchmarks.docs_public import examples, public, without_example
from benchmarks.house import PACKAGES
from tests.fakes.lerobot_configs import tiny_config
from tests.test_api import BRIEF, Dot
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.serve import PolicyServer

SLOW = ("deploy_trt", "vla_rl.policies.lerobot")
# The longest one that a name begins with is its room. Collecting tests imports none of them.
ROOMS = {*SLOW, *PACKAGES, *(f"vla_rl.{file.parent.name}" for file in Path(vla.__file__).parent.glob("*/__init__.py"))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A folder with a practiced run, and what examples use beside the names of their module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("examples"))
        env = vla.make_env(Dot)
        demos = vla.collect_demonstrations(env, 3, expert=lambda dot: dot.goal, out="datasets/dot")
        policy = vla.FlowVLA.from_data(demos)
        list(
            vla.Practice(
                policy, env, episodes_per_round=3, demonstrations=demos, out="runs/dot", settings=BRIEF
            ).rounds(1)
        )
        names = {"np": np, "Path": Path, "replace": replace, "gymnasium": gymnasium, "vla": vla}
        yield names | {"env": env, "demos": demos, "policy": policy, "Dot": Dot}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server of the practiced policy."""
    server, over = PolicyServer(find_policy(Path("runs/dot"))), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run("127.0.0.1", 0, over.is_set)))
    thread.start()
    while not server.port:
        over.wait(0.02)
    yield f"openpi://127.0.0.1:{server.port}"
    over.set()
    thread.join()


@functools.cache
def prepare(room: str) -> None:
    """Make what examples of a room presuppose, in the working directory."""
    if room == "deploy_trt":
        from deploy_trt.export import export_flow_vla

        export_flow_vla(
            vla.FlowVLA.from_data(vla.load_episodes("datasets/dot")), Path("deployments/flow"), {"policy_version": 3}
        )
    if room == "vla_rl.policies.lerobot":
        tiny_config("act", Path()).save_pretrained(Path("models/act"))


def test_every_public_class_and_function_has_an_example() -> None:
    assert without_example() == []
    assert {"vla_rl.api.train", "vla_rl.core.protocols.Robot", "deploy_trt.runtime.loading.load_deployed"} <= set(
        public()
    )


@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=pytest.mark.slow) if room in SLOW else room for room in sorted(ROOMS)]
)
def test_examples_of_a_room_run(place: dict[str, Any], request: pytest.FixtureRequest, room: str) -> None:
    if room in SLOW:
        prepare(room)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    runner = doctest.DocTestRunner(optionflags=flags)
    elsewhere = [getattr(vla, name) for name in vla.__all__]
    for name, each in public().items():
        if each in elsewhere or max(filter(name.startswith, ROOMS), key=len) != room:
            continue
        names = {**vars(sys.modules[each.__module__]), **place}
        texts = examples(each)
        if any("address" in text for text in texts):
            names["address"] = request.getfixturevalue("address")
        for text in texts:
            runner.run(doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0))
    assert runner.summarize(verbose=False).failed == 0
