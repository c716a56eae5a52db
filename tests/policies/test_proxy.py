"""A frozen base policy behind a proxy: what each of the two does, and what is kept of the base policy's chunks."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policy import SPEC, TINY, make_model, make_observation

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.base import draw_from_flat, example_row
from vla_rl.policies.flow_vla import FlowVLAConfig
from vla_rl.policies.folders import load_policy
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig
from vla_rl.policies.proxy.base import BaseChunks, FrozenBase

NET = FlowVLAConfig(**TINY | {"horizon": 16})


class Remembering:
    """A policy of one's own that reads two observations, and plans five actions: the state, and the one before it."""

    version, horizon, n_obs_steps = 3, 5, 2
    spec = PolicySpec("own", ("front",), (160, 200), state_dim=2, action_dim=2)

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        assert observation.task == "push the block"
        (before,) = observation.past
        chunk = np.stack([observation.state, before.state, *[observation.state] * 2])  # one fewer than it may
        return ActionChunk(chunk, observation.tick, 0, self.version)


class Stepping:
    """A policy of one's own whose first number is a step, with chunks that are longer than a proxy plans."""

    version, horizon = 0, 20
    spec = PolicySpec("own", ("front",), (32, 32), state_dim=2, action_dim=2, delta_dims=(0,))

    def reset(self, seed: int) -> None:
        del seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        return ActionChunk(np.ones((20, 2), np.float32), observation.tick, 0, self.version)


def statistics(spec: PolicySpec) -> Statistics:
    rng = np.random.default_rng(0)
    return Statistics.from_arrays(rng.normal(size=(9, spec.state_dim)), rng.normal(size=(9, spec.action_dim)))


def proxied(base: Path | str, spec: PolicySpec = SPEC, draws: int = 1, seed: int = 0) -> ProxiedPolicy:
    torch.manual_seed(seed)
    return ProxiedPolicy(ProxyConfig(base=str(base), draws=draws, net=NET), spec, statistics(spec)).eval()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make_model(seed=5).save(tmp_path / "base")
    return tmp_path / "base"


def test_the_base_plans_and_the_proxy_has_all_weights(base: Path, tmp_path: Path) -> None:
    model, bare = proxied(base, draws=9), load_policy(base)
    observation = make_observation(seed=1, tick=7)
    np.testing.assert_array_equal(model.acting().infer(observation).actions, bare.infer(observation).actions)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in model.net.parameters())
    assert not any(name.startswith("base") for name in model.state_dict())
    assert copy.deepcopy(model).base is model.base

    seen = example_row(model)[None]
    noise = torch.randn(1, model.horizon, 2)
    torch.testing.assert_close(
        draw_from_flat(model, seen, noise)[0], draw_from_flat(model.net, seen, noise)[0], msg="imagined by the proxy"
    )
    model.acting(version=4).save(tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert isinstance(again, ActingPolicy)
    assert again.version == 4
    np.testing.assert_array_equal(again.infer(observation).actions, bare.infer(observation).actions)


@pytest.mark.parametrize(("draws", "different"), [(1, 1), (3, 3), (9, 5)])
def test_as_many_chunks_are_asked_for_as_may_be(base: Path, draws: int, different: int) -> None:
    model = proxied(base, draws=draws)
    observation = make_observation()
    inputs = model.acting()._inputs(observation)
    before = model.base.asked
    chunks = model.draw_several(*inputs, torch.randn(1, 5, model.horizon, 2))
    assert model.base.asked - before == different
    assert len(torch.unique(chunks[0], dim=0)) == different
    if draws == 1:
        others = model.draw_several(*inputs, torch.randn(1, 2, model.horizon, 2))
        torch.testing.assert_close(others[0, 0], chunks[0, 0], msg="it is deterministic")


def test_a_class_with_a_past_and_large_pictures_has_a_proxy() -> None:
    model = proxied(f"{__name__}:Remembering", Remembering.spec)
    assert (model.horizon, model.net.horizon, model.n_obs_steps) == (5, 4, 2)
    assert model.net.spec.image_size == (80, 100)
    acting = model.acting()
    image = {"front": np.random.default_rng(0).integers(0, 255, (160, 200, 3), dtype=np.uint8)}
    first, second = (Observation(image, np.full(2, value, np.float32), "push the block", 0) for value in (1, 2))
    actions = acting.infer(replace(second, past=(first,))).actions
    np.testing.assert_array_equal(actions[:, 0], [2, 1, 2, 2, 2])
    with pytest.raises(UserError, match="reads 2 observations, found are 1"):
        acting.infer(second)


class Wrong(Remembering):
    """Plans what its base says."""

    n_obs_steps, plan = 1, np.zeros((5, 2), np.float32)

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(self.plan, observation.tick, 0, self.version)


class Wide(Wrong):
    plan = np.zeros((5, 4), np.float32)


class Diverged(Wrong):
    plan = np.full((5, 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("base", "error"),
    [(Wide, r"shape \[5, 4\]; this robot takes \[H >= 1, 2\]"), (Diverged, "Diverged planned .* not finite numbers")],
)
def test_a_wrong_chunk_of_a_base_is_not_kept(base: type[Wrong], error: str) -> None:
    model = proxied(f"{__name__}:{base.__name__}", Wrong.spec)
    model.chunks = BaseChunks((5, 2))
    seen = Observation({"front": np.zeros((160, 200, 3), np.uint8)}, np.zeros(2, np.float32), "push the block", 0)
    with pytest.raises(UserError, match=error):
        model.acting().infer(seen)
    assert not model.chunks._found


class Short(Wrong):
    """Plans two of five actions: a step and a target."""

    spec = replace(Remembering.spec, delta_dims=(0,))
    plan = np.array([[1, 2], [3, 4]], np.float32)


def test_behind_a_short_chunk_of_a_base_the_robot_holds_still() -> None:
    model = proxied(f"{__name__}:Short", Short.spec)
    seen = Observation({"front": np.zeros((160, 200, 3), np.uint8)}, np.zeros(2, np.float32), "push the block", 0)
    actions = model.acting().infer(seen).actions
    assert actions.tolist() == [[1, 2], [3, 4], [0, 4], [0, 4], [0, 4]]


class Ticking(Wrong):
    """Plans by the tick, which no stored observation has."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.full((5, 2), observation.tick), observation.tick, 0, self.version)


class Counting(Wrong):
    """Plans by what it was asked before."""

    asked = 0

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self.asked += 1
        return ActionChunk(np.full((5, 2), self.asked), observation.tick, 0, self.version)


@pytest.mark.parametrize(("base", "warns"), [(Ticking, True), (Counting, True), (Wrong, False), (Remembering, False)])
def test_a_base_that_plans_by_more_than_it_is_shown_is_named(
    base: type[Wrong], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Observation({"front": np.zeros((160, 200, 3), np.uint8)}, np.ones(2, np.float32), "push the block", 0)
    FrozenBase(f"{__name__}:{base.__name__}").check(seen)
    assert (f"{base.__name__} plans another chunk when asked again for one observation" in caplog.text) == warns


def test_a_base_in_a_folder_is_asked_once(base: Path) -> None:
    frozen = FrozenBase(str(base))
    frozen.check(make_observation())
    assert frozen.asked == 1


class Sided(Wrong):
    """Plans by the last words of a long sentence."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        plan = np.full((5, 2), 1.0 if observation.task.endswith("left plate") else 2.0)
        return ActionChunk(plan, observation.tick, 0, self.version)


LONG = "put the white mug on the tray, then put the yellow and white mug on the {} plate"


def test_sentences_that_the_proxy_reads_alike_are_refused_before_the_base_is_given_the_wrong_one(base: Path) -> None:
    model = proxied(f"{__name__}:Sided", Wrong.spec)
    copied, acting = copy.deepcopy(model), model.acting()
    image = {"front": np.zeros((160, 200, 3), np.uint8)}
    left, right = (Observation(image, np.zeros(2, np.float32), LONG.format(side), 0) for side in ("left", "right"))
    assert acting.infer(left).actions[0, 0] == 1
    refused = rf"'{left.task}' and '{right.task}'.* 6 words .*raise policy\.net\.text\.max_words, or reword one"
    for each in (acting, copied.acting()):
        with pytest.raises(UserError, match=refused):
            each.infer(right)
    assert acting.infer(left).actions[0, 0] == 1
    with pytest.raises(UserError, match=refused):
        proxied(f"{__name__}:Sided", Wrong.spec).tokenize([left.task, right.task])

    alike = proxied(base)
    assert alike.tokenize([left.task]).equal(alike.tokenize([right.task])), "they are one to the base as well"

    longer = replace(NET, text=replace(NET.text, max_words=20))
    config = ProxyConfig(base=f"{__name__}:Sided", net=longer)
    reads = ProxiedPolicy(config, Wrong.spec, statistics(Wrong.spec)).acting()
    assert [reads.infer(seen).actions[0, 0] for seen in (left, right, left)] == [1, 2, 1]


class Updated(Wrong):
    """Its server is restarted with other weights before the first chunk."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self.version = 4
        return super().infer(observation)


def test_a_base_of_another_version_plans_no_more_in_this_run() -> None:
    model = proxied(f"{__name__}:Updated", Wrong.spec)
    model.chunks = BaseChunks((5, 2))
    seen = Observation({"front": np.zeros((160, 200, 3), np.uint8)}, np.zeros(2, np.float32), "push the block", 0)
    acting, refused = model.acting(), "Updated is now version 4, it was version 3; bring the earlier one back"
    for _ in range(2):
        with pytest.raises(UserError, match=refused):
            acting.infer(seen)
    assert not model.chunks._found


class Three(Wrong):
    horizon, plan = 3, np.full((3, 2), 0.5, np.float32)


class One(Wrong):
    horizon = 1


def test_a_base_with_a_short_chunk_has_a_proxy_of_its_length(tmp_path: Path) -> None:
    net = replace(NET, expert=replace(NET.expert, actions_per_token=4))
    config = ProxyConfig(base=f"{__name__}:Three", net=net)
    ProxiedPolicy(config, Three.spec, statistics(Three.spec)).save(tmp_path / "saved")
    acting = load_policy(tmp_path / "saved")
    assert isinstance(acting, ActingPolicy)
    assert isinstance(acting.model, ProxiedPolicy)
    assert (acting.model.horizon, acting.model.net.horizon) == (3, 3)
    seen = Observation({"front": np.zeros((160, 200, 3), np.uint8)}, np.zeros(2, np.float32), "push the block", 0)
    np.testing.assert_array_equal(acting.infer(seen).actions, Three.plan)
    features = acting.model.features(*acting._inputs(seen))
    assert acting.model.draw_from(*features, torch.randn(1, 3, 2)).shape == (1, 3, 2)
    with pytest.raises(ConfigError, match="One plans one action at a time; practice judges chunks of two or more"):
        proxied(f"{__name__}:One", One.spec)


class Scribbling(Wrong):
    """Counts down in its own observation."""

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        observation.images["front"][:] = observation.state[0]
        observation.state[:] -= 1
        return ActionChunk(np.tile(observation.state, (5, 1)), observation.tick, 0, self.version)


def test_what_a_base_does_to_its_observation_changes_no_training_data() -> None:
    model = proxied(f"{__name__}:Scribbling", Wrong.spec, draws=3)
    images, state = {"front": torch.zeros(1, 160, 200, 3, dtype=torch.uint8)}, torch.full((1, 2), 7.0)
    chunks = model.draw_several(images, state, model.tokenize(["push the block"]), torch.randn(1, 3, 5, 2))
    assert (chunks == 6).all(), "each draw sees the same"
    assert (state == 7).all()
    assert not images["front"].any()


def test_a_base_of_another_robot_or_with_a_critic_is_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match="has the state_dim 3, the task has 4"):
        proxied(base, replace(SPEC, state_dim=4))
    with pytest.raises(ConfigError, match=r"policy\.base is empty"):
        ProxyConfig()


class TestChunks:
    """Chunks of a base policy that processes share."""

    KEYS = (b"a" * 16, b"b" * 16)
    CHUNKS = np.arange(12, dtype=np.float32).reshape(2, 3, 2)

    def test_what_one_process_adds_another_one_reads(self, tmp_path: Path) -> None:
        one, other = (BaseChunks((3, 2), tmp_path, "key") for _ in range(2))
        one.add(self.KEYS, self.CHUNKS)
        assert other.get(self.KEYS[0]) is None
        other.refresh()
        for key, chunk in zip(self.KEYS, self.CHUNKS, strict=True):
            np.testing.assert_array_equal(other.get(key), chunk)

    def test_a_record_that_was_not_finished_or_is_damaged_is_no_chunk(self, tmp_path: Path) -> None:
        BaseChunks((3, 2), tmp_path, "key").add(self.KEYS, self.CHUNKS)
        (file,) = tmp_path.glob("*.chunks")
        content = bytearray(file.read_bytes())
        content[30] ^= 1
        file.write_bytes(content[:-1])
        found = BaseChunks((3, 2), tmp_path, "key")
        assert [found.get(key) for key in self.KEYS] == [None, None]

    def test_a_folder_that_cannot_be_written_costs_no_chunk_of_the_robot(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        chunks = BaseChunks((3, 2), tmp_path / "kept", "key")
        shutil.rmtree(tmp_path / "kept")
        for _ in range(2):
            chunks.add(self.KEYS, self.CHUNKS)
        assert caplog.text.count("are not kept") == 1

    def test_those_of_another_base_are_refused(self, tmp_path: Path) -> None:
        BaseChunks((3, 2), tmp_path, "key")
        with pytest.raises(UserError, match="practices with another base policy"):
            BaseChunks((3, 2), tmp_path, "other")

    def test_what_is_known_is_not_asked_for(self, base: Path) -> None:
        model = proxied(base)
        inputs = model.acting()._inputs(make_observation())
        noise = torch.zeros(1, 1, model.horizon, 2)
        model.chunks = BaseChunks((model.horizon, 2))
        model.asks = False
        imitated = model.draw_several(*inputs, noise)
        model.asks, before = True, model.base.asked
        planned = [model.draw_several(*inputs, noise) for _ in range(2)]
        assert model.base.asked == before + 1
        torch.testing.assert_close(*planned, rtol=0, atol=0)
        assert not torch.allclose(imitated, planned[0])

    def test_behind_what_the_proxy_plans_a_step_is_none_and_a_target_stays(self) -> None:
        model = proxied(f"{__name__}:Stepping", Stepping.spec)
        planned = model.net.horizon
        assert planned < model.horizon
        images = {"front": torch.zeros(2, 32, 32, 3, dtype=torch.uint8)}
        inputs = images, torch.zeros(2, 2), model.tokenize(["push"] * 2)
        model.chunks, model.asks = BaseChunks((model.horizon, 2)), False
        chunks = model.draw_several(*inputs, torch.zeros(2, 1, model.horizon, 2))[:, 0]
        assert (chunks[:, planned:, 0] == 0).all()
        assert (chunks[:, planned:, 1] == chunks[:, planned - 1 : planned, 1]).all()
        assert (chunks[:, :planned, 0] != 0).all()
