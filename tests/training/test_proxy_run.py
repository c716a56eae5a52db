"""Whole runs in which a frozen base policy improves behind a proxy."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import vla_rl as vla
from tests.fakes.interrupted import interrupted, weights
from tests.fakes.lerobot_configs import shrink_resnet, tiny_config
from vla_rl.acting.policy_folder import find_policy
from vla_rl.algorithms.imagined_edit import ImaginedEdit
from vla_rl.cli.main import main
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_policy
from vla_rl.policies.proxy.base import open_base
from vla_rl.report.sinks import read_records
from vla_rl.training.practice import learner_of_run

OPTIONS = [
    "--config",
    "tiny",
    "task.env=tests.fakes.lucky:make_lucky",
    "takeover.enabled=false",
    "exploration=0.1",
    "execution.execute_ticks=6",
    "budget.evaluation_episodes=1",
    "budget.evaluate_every_round=false",
]
LEARNING = [
    "algorithm=imagined_edit",
    "learning.distill_steps=3",
    "learning.critic.hidden=[16]",
    "learning.dynamics.steps=2",
    "learning.value.steps=2",
    "learning.branches.updates=1",
    "learning.branches.branches=8",
    "policy.net.vision.widths=[8,16]",
    "policy.net.expert.width=32",
    "policy.net.expert.layers=1",
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends with a supervised policy."""
    run = tmp_path_factory.mktemp("start")
    assert main(["train", *OPTIONS, "algorithm=sft", "budget.rounds=0", "--out", str(run / "run")]) == 0
    return run / "run"


_SMALL = [each for each in LEARNING if each.startswith(("policy.", "learning.critic", "learning.distill"))]
OFF_POLICY = ["algorithm=residual_td", "learning.td.updates=4", *_SMALL]


def practice(base: str, start: Path, out: Path, *options: str, learning: Sequence[str] = LEARNING) -> Path:
    """Practice with a frozen base policy on the demonstrations of a run."""
    of_task = [f"task.demonstrations={start / 'episodes'}", "budget.demonstrations=0"]
    of_policy = ["policy.kind=proxy", f"policy.base={base}"]
    assert main(["train", *OPTIONS, *of_task, *of_policy, *learning, *options, "--out", str(out)]) == 0
    return out


def logged(run: Path, name: str) -> list[float]:
    return [record[name] for record in read_records(run / "metrics.jsonl") if name in record]


@pytest.mark.slow
def test_a_residual_of_a_frozen_policy_learns_off_policy(start: Path, tmp_path: Path) -> None:
    base = start / "policies" / "version_0000"
    before = cache_key(base)
    run = practice(str(base), start, tmp_path / "run", learning=OFF_POLICY)
    assert cache_key(base) == before
    assert logged(run, "residual_gain")
    selector = load_policy(find_policy(run).path).selector
    assert selector.config.num_samples == 1, "the residual acts alone"
    assert selector.residual.corrects


@pytest.mark.slow
def test_a_frozen_policy_practices_and_goes_on_as_if_never_interrupted(start: Path, tmp_path: Path) -> None:
    base = start / "policies" / "version_0000"
    before = cache_key(base)
    run = practice(str(base), start, tmp_path / "run")
    assert cache_key(base) == before
    store = EpisodeStore(run / "episodes")
    lengths = [len(store.read(name)) for name in store.ids()]
    planned = sum(-(-len(store.read(name)) // 6) for name in store.ids() if name.startswith("round"))
    assert 0 < logged(run, "base_known")[-1] >= planned - len(lengths)
    assert sum({*logged(run, "base_asked")}) < sum(lengths)
    assert all(np.isfinite(logged(run, "proxy_unexplained")))

    again = interrupted(run, tmp_path / "again")
    assert main(["train", "--resume", str(again)]) == 0
    assert weights(again, 2) == weights(run, 2)
    (critic,), (same,) = (each.glob("policies/version_0002/critic/*.safetensors") for each in (run, again))
    assert critic.read_bytes() == same.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_a_policy_of_lerobots_practices_from_python(
    kind: str, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shrink_resnet(monkeypatch)
    act = make_lerobots(kind, start, tmp_path / "act")
    env = vla.make_env("tests.fakes.lucky:make_lucky", image_size=32)
    settings: dict[str, Any] = {
        name: yaml.safe_load(value) for name, value in (option.split("=") for option in LEARNING[1:])
    }
    settings |= {"learning.critic.chunk_ticks": 4, "execution.execute_ticks": 4, "learning.actor.batch_size": 8}
    settings |= {"budget.steps_per_round": 5, "budget.evaluation_episodes": 1, "policy.asks_per_round": 20}
    practice = vla.Practice(
        act,
        env,
        algorithm="imagined_edit",
        episodes_per_round=4,
        demonstrations=start / "episodes",
        out=tmp_path / "run",
        settings=settings,
    )
    before = cache_key(act)
    (result,) = practice.rounds(1)
    assert cache_key(act) == before
    assert result.metrics["base_known"] > 0
    assert result.metrics["imagined_stopped"] == 1, "three gradient steps make no proxy"
    assert "nothing is imagined in round 1: the proxy leaves" in caplog.text
    first: Any = load_policy(tmp_path / "run" / "policies" / "version_0000")
    bare: Any = load_policy(act)
    observation = next(iter(EpisodeStore(start / "episodes")))
    past, seen = (
        Observation({name: image[tick] for name, image in observation.images.items()}, observation.state[tick], "", 3)
        for tick in (2, 3)
    )
    seen = replace(seen, past=(past,)) if kind == "diffusion" else seen
    if kind == "act":
        np.testing.assert_allclose(first.infer(seen).actions, bare.infer(seen).actions, rtol=1e-6)
    else:
        assert first.infer(seen).actions.shape == bare.infer(seen).actions.shape == (7, 8)


def make_lerobots(kind: str, start: Path, folder: Path) -> Path:
    """A tiny, random policy of lerobot's for the task, with the statistics of a run; diffusion reads a past."""
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    from vla_rl.policies.lerobot_adapter import LeRobotModel
    from vla_rl.policies.lerobot_adapter.folder import check_interface

    spec, statistics = EpisodeStore(start / "episodes").summary()
    config: Any = tiny_config(kind, folder)
    if kind == "diffusion":
        config.n_obs_steps, config.horizon, config.n_action_steps = 2, 8, 7
    check_interface(config, spec)
    LeRobotModel({"act": ACTPolicy, "diffusion": DiffusionPolicy}[kind](config), spec, statistics).save(folder)
    return folder


class Slow:
    """A policy of one's own that holds still. It is asked while others act, so it may be slow."""

    version = 0
    horizon = 16
    provides = frozenset({"prefix"})

    def __init__(self) -> None:
        self.spec = vla.make_env("tests.fakes.lucky:make_lucky", image_size=32).spec

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        hold = observation.state[: self.spec.action_dim]
        drift = 0.01 * np.arange(self.horizon, dtype=np.float32)[:, None]
        return ActionChunk(hold + drift * hold, observation.tick, 0, 0)


@pytest.mark.slow
def test_a_class_that_takes_longer_than_a_chunk_lasts_practices_while_it_plans(start: Path, tmp_path: Path) -> None:
    assert open_base(str(start)) is open_base(str(start / "policies" / "version_0000")), "a run stands for its policy"
    options = ("latency.typical=4", "execution.strategy=naive", "policy.asks_per_round=5", "budget.rounds=1")
    run = practice(f"{__name__}:Slow", start, tmp_path / "run", *options)
    assert logged(run, "base_asked")[-1] <= 5
    assert logged(run, "base_known")[-1] > 0
    before = open_base(f"{__name__}:Slow").asked
    learner, _, _ = learner_of_run(run)
    assert isinstance(learner, ImaginedEdit)
    rows = learner.every_row()
    assert open_base(f"{__name__}:Slow").asked == before, "looking into a run asks nothing"
    assert rows.isfinite().all()


def test_what_would_train_the_proxy_instead_is_refused(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["algorithm=habc", "policy.kind=proxy", f"policy.base={start / 'policies' / 'version_0000'}"]
    assert main(["train", *OPTIONS, *options, "--out", str(tmp_path / "run")]) == 2
    assert "algorithm=habc trains the policy itself" in capsys.readouterr().err


class Diverged(Slow):
    """Plans numbers that are not finite."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.full((self.horizon, self.spec.action_dim), np.nan), observation.tick, 0, 0)


def test_a_base_that_plans_no_numbers_is_refused_before_anything_is_played(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, episodes = f"{__name__}:Diverged", start / "episodes"
    options = ["policy.kind=proxy", f"policy.base={base}", f"task.demonstrations={episodes}", *OFF_POLICY]
    assert main(["train", *OPTIONS, *options, "--out", str(tmp_path / "run")]) == 2
    assert f"policy.base={base} planned actions that are not finite numbers" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    env = vla.make_env("tests.fakes.lucky:make_lucky", image_size=32)
    with pytest.raises(UserError, match="not finite numbers"):
        vla.Practice(base, env, demonstrations=episodes, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_another_base_policy_under_the_same_name_is_refused(start: Path, tmp_path: Path) -> None:
    base = start / "policies" / "version_0000"
    run = practice(str(base), start, tmp_path / "run", "budget.rounds=0")
    (run / "base_chunks").mkdir(exist_ok=True)
    (run / "base_chunks" / "base.txt").write_text("another\n")
    with pytest.raises(UserError, match=re.escape(f"{run} practices with another base policy")):
        load_policy(run / "policies" / "version_0000")
