"""Fixtures for tests of lerobot's own programs."""

import importlib
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from lerobot_programs import DIMS, REPOSITORY, SIZE, TASK, documented

PLUGINS = ("lerobot_policy_vla_rl", "lerobot_env_vla_rl")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, the plug-ins discoverable; afterwards the signals that lerobot takes over."""
    folder = tmp_path_factory.mktemp("lerobot")
    signals = {number: signal.getsignal(number) for number in SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        for name in PLUGINS:
            plugin = REPOSITORY / "plugins" / name
            assert f'name = "{name}"' in (plugin / "pyproject.toml").read_text()
            metadata = folder / f"{name}-0.1.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
            patch.syspath_prepend(str(plugin))
        patch.syspath_prepend(str(folder))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)
        yield folder
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture
def lerobot(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a program of lerobot's with arguments."""

    def run(program: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        importlib.import_module(f"lerobot.scripts.{program.replace('-', '_')}").main()

    return run


@pytest.fixture(scope="module")
def ours(workplace: Path) -> Path:
    """A tiny policy of ours for ``TASK``, made lerobot's by the documented command."""
    import torch
    from tiny_policy import TINY

    from vla_rl.core.normalization import Statistics
    from vla_rl.core.policy_spec import PolicySpec
    from vla_rl.policies.flow_vla import FlowVLA, FlowVLAConfig

    spec = PolicySpec(TASK, ("front", "top"), (SIZE, SIZE), DIMS, DIMS)
    random = np.random.default_rng(0)
    statistics = Statistics.from_arrays(random.normal(size=(64, DIMS)), random.normal(size=(64, DIMS)), (3, 7))
    torch.manual_seed(0)
    arguments = documented("python", "lerobot_policy_vla_rl")
    FlowVLA(FlowVLAConfig(**TINY), spec, statistics).save(workplace / arguments[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=False)
    return workplace / arguments[3]
