"""lerobot's diffusion with ``n_obs_steps=2``: its own way of keeping observations is the reference."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_lerobot_adapter import SPEC, statistics
from tiny_policy import make_observation

from tests.fakes.lerobot_configs import shrink_resnet, tiny_config
from vla_rl.acting.policy_folder import find_policy
from vla_rl.algorithms.round_data import RoundData
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.credit import CreditConfig
from vla_rl.data.cache import FrameCache
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_policy
from vla_rl.policies.lerobot_adapter import LeRobotModel, LeRobotPolicyConfig
from vla_rl.policies.lerobot_adapter.lora import LoraConfig
from vla_rl.policies.named import load_named

pytestmark = [
    pytest.mark.slow,  # importing lerobot alone takes 7 s
    pytest.mark.filterwarnings("ignore"),  # of lerobot and diffusers; not ours
]


@pytest.fixture(scope="module", autouse=True)
def lerobot() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")
        pytest.importorskip("diffusers", reason="the diffusion policy needs the extra 'lerobot-policies'")
        shrink_resnet(patch)
        logging.disable(logging.WARNING)
        yield
        logging.disable(logging.NOTSET)


def made(folder: Path, **options: Any) -> LeRobotModel:
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    from vla_rl.policies.lerobot_adapter.folder import check_interface

    config = tiny_config("diffusion", folder)
    for name, value in {"n_obs_steps": 2, "horizon": 8, "n_action_steps": 7, **options}.items():
        setattr(config, name, value)
    check_interface(config, SPEC)
    torch.manual_seed(0)
    return LeRobotModel(DiffusionPolicy(config), SPEC, statistics()).eval()


@pytest.mark.parametrize("scheduler", ["DDPM", "DDIM"])
def test_a_chunk_is_lerobots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str) -> None:
    model = made(tmp_path, n_action_steps=1, noise_scheduler_type=scheduler)  # so that lerobot plans at every step

    @contextlib.contextmanager
    def seeded(_: int) -> Iterator[None]:
        torch.manual_seed(5)
        yield

    monkeypatch.setattr(model, "_seeded", seeded)
    seen = [replace(make_observation(seed, seed), images=images(seed)) for seed in (1, 2)]
    found = model.acting().infer(replace(seen[1], past=(seen[0],))).actions

    model.policy.reset()
    for each in seen:
        pictures = {f"observation.images.{name}": torch.from_numpy(image) for name, image in each.images.items()}
        batch = {name: image.movedim(-1, 0).float() / 255 for name, image in pictures.items()}
        torch.manual_seed(5)
        action = model.policy.select_action(
            model.preprocess({**batch, "observation.state": torch.from_numpy(each.state), "task": ""})
        )
    np.testing.assert_allclose(found[0], model.postprocess(action)[0].numpy(), atol=1e-5)
    with pytest.raises(UserError, match="reads 2 observations, found are 1"):
        model.acting().infer(seen[1])


def test_ddim_plans_for_all_observations_at_once_and_each_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(tmp_path, noise_scheduler_type="DDIM")
    pictures = {
        name: torch.from_numpy(np.stack([[images(seed)[name], images(seed + 1)[name]] for seed in range(3)]))
        for name in SPEC.cameras
    }
    state = torch.randn(3, 2, SPEC.state_dim)
    text, noise = model.tokenize([""] * 3), torch.randn(3, model.horizon, SPEC.action_dim)
    each = [
        model.draw({name: image[row] for name, image in pictures.items()}, state[row], text[row], noise[row])
        for row in (slice(row, row + 1) for row in range(3))
    ]
    calls = []
    predict = model.policy.predict_action_chunk
    monkeypatch.setattr(
        model.policy, "predict_action_chunk", lambda *given, **named: calls.append(1) or predict(*given, **named)
    )
    torch.testing.assert_close(model.draw(pictures, state, text, noise), torch.cat(each), atol=1e-3, rtol=1e-3)
    assert len(calls) == 1
    monkeypatch.setattr("vla_rl.policies.lerobot_adapter.model._DRAWN_AT_ONCE", 2)
    torch.testing.assert_close(model.draw(pictures, state, text, noise), torch.cat(each), atol=1e-3, rtol=1e-3)
    assert len(calls) == 3, "two of two observations at most"


@pytest.mark.parametrize("realtime", [False, True])
def test_it_acts_on_a_robot(tmp_path: Path, realtime: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    import vla_rl as vla

    if realtime:  # the inference process knows the real backbone alone
        monkeypatch.setattr(torchvision.models, "resnet18", torchvision.models.resnet.resnet18)
    folder, store = tmp_path / "policy", tmp_path / "store"
    made(tmp_path).save(folder)
    found = find_policy(folder)
    assert (found.n_obs_steps, found.horizon) == (2, 7)
    settings = {"robot.duration_s": 1, "execution.execute_ticks": 3}
    assert vla.rollout(folder, "mock", realtime=realtime, out=store, settings=settings) == [None]
    (episode,) = EpisodeStore(store)
    assert (episode.source == Source.POLICY).mean() > 0.8
    assert np.ptp(episode.action_sent, 0).min() > 0


def test_it_is_served_to_our_clients(tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="needs the extra serve")
    from benchmarks.any_policy.faults import in_thread
    from vla_rl.acting.serve import PolicyServer

    made(tmp_path).save(tmp_path / "policy")
    local: Any = load_policy(tmp_path / "policy")
    with in_thread(PolicyServer(find_policy(tmp_path / "policy"))) as url:
        remote: Any = load_named(url)
        first, second = (replace(make_observation(seed, seed), images=images(seed)) for seed in (1, 2))
        local.reset(3)
        remote.reset(3)
        seen = replace(second, past=(first,))
        np.testing.assert_array_equal(remote.infer(seen).actions, local.infer(seen).actions)
        with pytest.raises(UserError, match="reads 2 observations"):
            remote.infer(second)
        remote.close()


@pytest.fixture
def cache(tmp_path: Path) -> FrameCache:
    """Two short episodes of the policy's robot."""
    store = EpisodeStore(tmp_path / "episodes")
    for number in range(2):
        random = np.random.default_rng(number)
        actions = random.normal(size=(10, 2)).astype(np.float32)
        store.add(
            Episode(
                f"e{number}",
                images={name: random.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8) for name in SPEC.cameras},
                state=random.normal(size=(10, 3)).astype(np.float32),
                action_policy=actions,
                action_sent=actions,
                source=np.full(10, Source.DEMO, np.uint8),
                task="push it",
                success=True,
                terminated=True,
                origin=Origin.DEMO,
                policy_version=-1,
                seed=number,
                control_hz=20.0,
                env_id="toy",
            )
        )
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    return cache


def data_of(cache: FrameCache, model: LeRobotModel) -> RoundData:
    return RoundData(cache, CreditConfig(), model)


def test_a_sample_is_what_lerobot_reads_of_a_dataset(cache: FrameCache, tmp_path: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    model = made(tmp_path)
    export_lerobot(EpisodeStore(tmp_path / "episodes"), tmp_path / "dataset")
    steps = {"observation.state": range(-1, 1), "action": range(-1, 7)}
    steps |= {f"observation.images.{name}": range(-1, 1) for name in SPEC.cameras}
    ticks = {name: [tick / 20 for tick in every] for name, every in steps.items()}
    theirs = LeRobotDataset("local/toy", root=tmp_path / "dataset", delta_timestamps=ticks)
    frames = np.array([0, 1, 2, 10, 12])  # two are the first of their episode
    batch = data_of(cache, model).policy_batch(frames)
    assert batch.earlier is not None
    for row, frame in enumerate(frames):
        expected = theirs[int(frame)]
        torch.testing.assert_close(batch.state[row], expected["observation.state"])
        torch.testing.assert_close(torch.cat([batch.earlier[row], batch.actions[row]]), expected["action"])
        for name in SPEC.cameras:
            picture = batch.images[name][row].movedim(-1, -3) / 255
            torch.testing.assert_close(picture, expected[f"observation.images.{name}"])


def test_the_pictures_of_a_sample_have_one_shift(cache: FrameCache, tmp_path: Path) -> None:
    data = data_of(cache, made(tmp_path))
    first = np.array([0, 10, 0])  # the same picture twice
    images, _, _ = data.inputs(first, torch.Generator().manual_seed(0))
    plain, _, _ = data.inputs(first)
    for name in SPEC.cameras:
        assert torch.equal(images[name][:, 0], images[name][:, 1])
        assert not torch.equal(images[name], plain[name])
        assert not torch.equal(images[name][0], images[name][2]), "each sample has its own"


def test_the_loss_is_lerobots_where_a_chunk_has_one(cache: FrameCache, tmp_path: Path) -> None:
    model = made(tmp_path).train()
    batch = data_of(cache, model).policy_batch(np.array([0, 4, 12]))
    seed = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(5)))
    ours, _ = model.loss(batch, torch.Generator().manual_seed(5))
    model.policy.config.do_mask_loss_for_padding = True
    inputs = model._inputs(batch.images, batch.state, batch.text)
    with model._seeded(seed):
        prepared = model.prepared(inputs | {"action": torch.cat([batch.earlier, batch.actions], 1)})  # type: ignore[list-item]
        pad = torch.cat([torch.ones(3, 1, dtype=torch.bool), ~batch.valid.any(-1)], 1)
        theirs, _ = model.policy.forward({**prepared, "action_is_pad": pad})
    torch.testing.assert_close(ours.mean(), theirs)


@pytest.mark.parametrize("rank", [0, 4])
def test_it_learns(cache: FrameCache, tmp_path: Path, rank: int) -> None:
    from vla_rl.algorithms.actor import ActorConfig, ActorLearner

    made(tmp_path).save(tmp_path / "policy")
    lora = LoraConfig(rank=rank, targets=r".*unet.*cond_encoder\.1")
    config = LeRobotPolicyConfig(folder=str(tmp_path / "policy"), lora=lora)
    LeRobotModel.check(config, SPEC)
    model = LeRobotModel.build(config, SPEC, statistics())
    learner, data = ActorLearner(model, ActorConfig(learning_rate=3e-3, warmup_steps=1), seed=0), data_of(cache, model)
    frames = np.arange(20)
    losses = [learner.update(data.policy_batch(frames), torch.ones(20), step)["actor_loss"] for step in range(60)]
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])
    learner.policy().save(tmp_path / "learned")
    assert find_policy(tmp_path / "learned").n_obs_steps == 2


def images(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for name in SPEC.cameras}
