"""Imagination inside a run, from end to end and very small: world model, gap, imagined episodes in the run's store."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_io.gate import GateConfig
from vla_rl.core.config import load_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.scaling import Statistics
from vla_rl.core.types import Origin, PolicySpec, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.strategies import ExecutionConfig, execution_config
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, TextConfig, VisionConfig
from vla_rl.runs.config import RunConfig, TaskConfig
from vla_rl.runs.imagination.config import ImaginationConfig
from vla_rl.runs.imagination.near_success import collect_near_success
from vla_rl.runs.imagination.run import RunImagination
from vla_rl.training.run_folder import RunFolder
from world_model.coevolution import CoEvolutionConfig
from world_model.imagined_env import ImaginedEnvConfig
from world_model.model import load_world_model, save_world_model

TASK = TaskConfig(image_size=32, difficulty=0.0)
PRESET = """
autoencoder: {widths: [16, 16]}
dynamics: {width: 32, layers: 1, flow_steps: 1, window: 2, memory_frames: 2}
training: {autoencoder_steps: 2, dynamics_steps: 2, window_frames: 4}
"""


@pytest.fixture
def imagination(tmp_path: Path) -> RunImagination:
    """Round 1 of a run: four real episodes and the policy that is taken to have made them."""
    run = RunConfig(task=TASK)
    folder = RunFolder.create(tmp_path / "run", run)
    (tmp_path / "tiny.yaml").write_text(PRESET)
    recorded = EpisodeStore(tmp_path / "recorded")
    collect_near_success(TASK, run.gate, recorded, 4, first_seed=40)
    store = EpisodeStore(folder.episodes)
    for index, name in enumerate(recorded.ids()):
        episode = recorded.read(name)
        policy = {"policy_version": 0, "source": np.full(len(episode), Source.POLICY, np.uint8)}
        store.add(replace(episode, episode_id=f"round001-{index:05d}", extras={}, **policy))
    spec = PolicySpec(TASK.env, ("front", "top"), (32, 32), state_dim=8, action_dim=8)
    config = FlowVLAConfig(
        horizon=8,
        vision=VisionConfig(widths=(8,), kernels=(4,), strides=(4,), keypoints=4, patches=2),
        text=TextConfig(max_words=6, vocabulary=64, width=8),
        expert=ExpertConfig(width=32, layers=1, heads=2, actions_per_token=2),
    )
    torch.manual_seed(0)
    sent = store.read("round001-00000")
    model = FlowVLA(config, spec, Statistics.from_arrays(sent.state, sent.action_sent, ()))
    model.save(folder.policy(0), {"policy_version": 0})
    options = ImaginationConfig(
        coevolution=CoEvolutionConfig(mode="continuous", imagined_episodes=3, gap_episodes=2, largest_gap=1.0),
        preset=str(tmp_path / "tiny.yaml"),
        near_success_episodes=1,
        env=ImaginedEnvConfig(horizon=5, success_threshold=2.0, halt=False),
    )
    execution = execution_config("sync", execute_ticks=4)
    return RunImagination(options, folder, TASK, execution, run.gate, workers=0)


@pytest.mark.slow
def test_a_round_is_imagined_once_and_written_down(imagination: RunImagination) -> None:
    numbers = imagination.after_collection(1)
    entry = imagination.ledger.of(1)
    assert entry is not None
    assert numbers == entry.numbers()
    assert (entry.real_episodes, entry.near_success_episodes, entry.model_version) == (4, 1, 0)
    assert (entry.used, entry.alarm) == (3, "")
    store = EpisodeStore(imagination._folder.episodes)
    compared = [store.read_header(f"round001-{index:05d}").success is True for index in range(2)]
    assert (entry.believed, entry.imagined_success) == (1.0, 0.0)
    assert entry.gap == pytest.approx(-np.mean(compared))
    imagined = [store.read_header(name) for name in store.ids() if name.startswith("imagined001-")]
    assert len(imagined) == 3
    assert {header.origin for header in imagined} == {Origin.IMAGINED}
    assert {header.success for header in imagined} == {None}  # cut by the horizon: no outcome
    assert {header.length for header in imagined} == {5}
    assert imagination.after_collection(1) == numbers
    assert len(EpisodeStore(imagination.path / "episodes")) == 5  # imagined ones teach no world model
    assert imagination.ledger.real_episodes == 5


@pytest.mark.slow
def test_where_imagination_loses_itself_it_has_no_outcome_and_is_not_used(imagination: RunImagination) -> None:
    imagination.after_collection(1)
    other = RunImagination(
        replace(imagination.config, env=ImaginedEnvConfig(success_threshold=2.0)),
        *(imagination._folder, TASK, imagination._execution, imagination._gate, 0),
    )
    model, _ = load_world_model(imagination.path / "model_0000")
    model.autoencoder.familiar.fill_(0.0)
    save_world_model(imagination.path / "model_0000", model)
    other.path = imagination.path
    shutil.rmtree(imagination.path / "gap")
    assert other.imagined_outcomes(1, 0, 3) == [None, None, None]
    gap = EpisodeStore(imagination.path / "gap")
    headers = [gap.read_header(name) for name in gap.ids()]
    assert [(header.length, header.success, header.terminated) for header in headers] == [(1, None, False)] * 3


@pytest.mark.slow
def test_the_first_training_may_be_shorter_than_the_presets(imagination: RunImagination, tmp_path: Path) -> None:
    evolution = replace(imagination.config.coevolution, train_cpu_seconds=7.0)
    run = RunFolder.create(tmp_path / "other", RunConfig(task=TASK))
    made = [
        RunImagination(replace(imagination.config, coevolution=own), run, TASK, ExecutionConfig(), GateConfig(), 0)
        for own in (imagination.config.coevolution, evolution)
    ]
    assert [own.world.training.cpu_seconds for own in made] == [0.0, 7.0]
    with pytest.raises(ConfigError, match="train_cpu_seconds"):
        CoEvolutionConfig(train_cpu_seconds=-1.0)


@pytest.mark.slow
@pytest.mark.parametrize("refine_steps", [0, 2])
def test_a_renewed_world_model_is_trained_anew_or_refined(imagination: RunImagination, refine_steps: int) -> None:
    imagination.after_collection(1)
    store = EpisodeStore(imagination._folder.episodes)
    store.add(replace(store.read("round001-00001"), episode_id="round002-00000", policy_version=1))
    evolution = replace(imagination.config.coevolution, refine_steps=refine_steps)
    imagination.config = replace(imagination.config, coevolution=evolution)
    imagination.train(1)
    (first, _), (second, version) = (load_world_model(imagination.path / f"model_000{index}") for index in (0, 1))
    assert version == 1
    assert second.config == first.config
    changed = {
        part: any(not torch.equal(ours, theirs) for ours, theirs in zip(*(m.parameters() for m in both), strict=True))
        for part, both in {
            "autoencoder": (first.autoencoder, second.autoencoder),
            "dynamics": (first.dynamics, second.dynamics),
        }.items()
    }
    assert changed == {"autoencoder": not refine_steps, "dynamics": True}


@pytest.mark.slow
def test_a_world_model_of_elsewhere_can_begin(imagination: RunImagination, tmp_path: Path) -> None:
    imagination.after_collection(1)
    other = RunImagination(
        replace(imagination.config, begin_with=str(imagination.path / "model_0000"), preset="cpu-tiny"),
        *(imagination._folder, TASK, imagination._execution, imagination._gate, 0),
    )
    other.path = tmp_path / "other"
    other.train(0)
    (one,), (same,) = ((path / "model_0000").glob("*.safetensors") for path in (imagination.path, other.path))
    assert one.read_bytes() == same.read_bytes()
    model, _ = load_world_model(other.path / "model_0000")
    with pytest.raises(UserError, match=r"imagines vla_rl/PegInsert-v0 .* needs vla_rl/LidOnBox-v0"):
        other._adopt(other.path / "model_0000", replace(model.spec, env_id="vla_rl/LidOnBox-v0"), tmp_path / "no")


@pytest.mark.slow
def test_who_was_rescued_counts_as_a_failure(imagination: RunImagination) -> None:
    """Else the world model would be compared with the luckier episodes alone."""
    store = EpisodeStore(imagination._folder.episodes)
    episode = store.read(store.ids()[0])
    source = episode.source.copy()
    source[-12:] = Source.HUMAN
    store.add(replace(episode, episode_id="round001-00004", source=source, success=True))
    alone = sum(store.read_header(f"round001-{index:05d}").success is True for index in range(4))
    imagination.after_collection(1)
    entry = imagination.ledger.of(1)
    assert entry is not None
    assert entry.real_success == pytest.approx(alone / 5)


def test_imagination_that_is_off_does_nothing(imagination: RunImagination) -> None:
    off = replace(imagination.config, coevolution=CoEvolutionConfig(mode="off"))
    imagination.config = off
    assert imagination.after_collection(1) == {}
    assert not imagination.path.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["task.also=[vla_rl/PickPlace-v0]"], "imagines one task"),
        (["imagination.env.horizon=5"], "bootstrap_imagined"),
    ],
)
def test_what_cannot_be_imagined_is_refused_before_anything_is_collected(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(RunConfig, overrides=["imagination.coevolution.mode=once", *changes])
