"""The packages in examples/, as if installed: each part does its work through the verbs, by its name."""

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vla_rl.acting.capability import best_strategy, check_strategy
from vla_rl.acting.policy_folder import find_policy
from vla_rl.cli.main import main
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import ConfigError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.registry import names
from vla_rl.core.types import Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies import execution_config, make_strategy
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path that holds what installing every example would put there."""
    site = tmp_path / "site"
    for folder in sorted(EXAMPLES.glob("own_*")):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for file in folder.glob("*.py"):
            (site / file.name).parent.mkdir(parents=True, exist_ok=True)
            (site / file.name).write_bytes(file.read_bytes())
        info = site / f"{folder.name}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
        groups = project.get("entry-points", {})
        lines = [f"[{group}]\n{name} = {value}" for group, points in groups.items() for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return site


def save_policy(folder: Path, spec: PolicySpec) -> Path:
    """A policy of a few thousand weights that has learnt nothing."""
    random = np.random.default_rng(0)
    statistics = Statistics.from_arrays(
        random.uniform(0, 1, (50, spec.state_dim)).astype(np.float32),
        random.uniform(0, 1, (50, spec.action_dim)).astype(np.float32),
    )
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    torch.manual_seed(0)
    FlowVLA(config, spec, statistics).save(folder, {"policy_version": 1})
    return folder


PEG = "task.declare.max_episode_steps=60"  # an expert needs no more


def train(out: Path, *changes: str) -> Path:
    """A run of one round of the tiny config in a worker process."""
    short = ["budget.rounds=1", "budget.evaluation_episodes=1", "workers=1"]
    assert main(["train", "--config", "tiny", "--out", str(out), *short, *changes]) == 0
    return out


def test_the_examples_are_among_the_parts_that_there_are(installed: Path) -> None:
    assert "fade_in" in names("strategies")
    assert "cart" in names("robots")
    assert "thumbnails" in names("policies")
    assert "hurry" in names("algorithms")


def test_a_strategy_fades_a_new_chunk_in(installed: Path, tmp_path: Path) -> None:
    strategy = make_strategy(execution_config("fade_in", fade_ticks=4, discrete_dims=(1,)))
    schedule = Schedule(action_size=2)
    observation = Observation({}, np.zeros(1, np.float32), "", 0)
    for chunk_id, (value, arrival) in enumerate([(0.0, 0), (1.0, 5)]):
        actions = np.full((16, 2), value, np.float32)
        schedule.add(strategy.place(ScheduledChunk(chunk_id, actions, arrival, arrival, 0, 0), arrival), arrival)
    acted = [strategy.act(schedule, tick, observation) for tick in range(5, 10)]
    assert [action.tolist() for action, _ in acted] == [[0.25, 1], [0.5, 1], [0.75, 1], [1, 1], [1, 1]]
    policy = save_policy(tmp_path / "policy", PolicySpec("vla_rl/PegInsert-v0", ("front", "top"), (32, 32), 8, 8))
    start = ["rollout", str(policy), "--robot", "sim", "--strategy", "fade_in", "--out", str(tmp_path / "store")]
    assert main([*start, "execution.fade_ticks=3", "latency.typical=3", "robot.difficulty=0.2"]) == 0
    assert len(EpisodeStore(tmp_path / "store")) == 1


def test_a_strategy_is_best_or_refused_by_its_own_declaration(installed: Path, tmp_path: Path) -> None:
    policy = find_policy(save_policy(tmp_path / "policy", PolicySpec("cart", ("top",), (32, 32), 1, 1)))
    assert best_strategy(policy) == ("execution.strategy=guided_fade_in",)
    check_strategy(execution_config("guided_fade_in"), policy)
    unguided = replace(policy, provides=policy.provides - {"guidance", "gradient"})
    assert best_strategy(unguided) == ("execution.strategy=naive",)
    with pytest.raises(ConfigError, match=r"guided_fade_in requires guidance .* What fits: .*=fade_in,"):
        check_strategy(execution_config("guided_fade_in"), unguided)


def test_an_algorithm_is_refused_by_its_own_declaration(installed: Path, tmp_path: Path, capsys) -> None:
    source = "from own_algorithm import Hurry\nclass Seeing(Hurry):\n    requires = frozenset({'features', 'x-ray'})\n"
    (installed / "seeing.py").write_text(source)
    arguments = ["train", "--config", "tiny", "--out", str(tmp_path / "run"), "algorithm=seeing:Seeing"]
    assert main([*arguments, "policy.kind=thumbnails"]) == 2
    said = capsys.readouterr().err
    assert "algorithm=seeing:Seeing requires features (policy.kind=flow_vla gives" in said
    assert "; x-ray. What fits: " in said
    assert "algorithm=hurry" in said
    assert not (tmp_path / "run").exists()


def test_an_option_of_another_strategy_is_refused(installed: Path, tmp_path: Path, capsys) -> None:
    policy = save_policy(tmp_path / "policy", PolicySpec("vla_rl/PegInsert-v0", ("front", "top"), (32, 32), 8, 8))
    start = ["rollout", str(policy), "--robot", "sim"]
    assert main([*start, "--strategy", "naive", "execution.fade_ticks=4"]) == 2
    assert "unknown key 'execution.fade_ticks'" in capsys.readouterr().err


def test_a_robot_is_driven_and_its_episodes_are_kept(installed: Path, tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", PolicySpec("cart", ("top",), (32, 32), 1, 1))
    out = tmp_path / "store"
    assert main(["rollout", str(policy), "--robot", "cart", "--out", str(out), "robot.rail_m=0.5"]) == 0
    episode = EpisodeStore(out).read("rollout-000000")
    assert (episode.env_id, len(episode), episode.success) == ("cart", 40, None)
    assert episode.action_sent.min() >= 0
    assert episode.action_sent.max() <= 0.5
    assert len(np.unique(episode.state)) > 3, "it moves"


@pytest.mark.slow
def test_a_policy_practices_in_a_worker_and_goes_on_where_it_was(installed: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", PEG, "policy.kind=thumbnails", "policy.width=32", "learning.critic.backbone=own")
    assert read_yaml(run / "config.yaml")["policy"] == {"kind": "thumbnails", "horizon": 16, "width": 32}
    # In a process that has seen nothing of all this.
    command = [sys.executable, "-m", "vla_rl.cli.main", "eval", str(run), "--episodes", "2"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "/2 = " in found.stdout


@pytest.mark.slow
def test_a_task_is_recorded_and_learnt_from_what_was_recorded(installed: Path, tmp_path: Path) -> None:
    assert main(["task", "check", "own_task:Dot-v0", "--picture", str(tmp_path / "seen.png")]) == 0
    store = str(tmp_path / "demonstrations")
    assert main(["record", "own_task:Dot-v0", "--with", "own_task:Guide", "--episodes", "3", "--out", store]) == 0
    own = ["task.env=own_task:Dot-v0", f"task.demonstrations={store}", "takeover.enabled=false"]
    run = train(tmp_path / "run", *own)
    assert len(EpisodeStore(run / "episodes")) == 3 + 3


@pytest.mark.slow
def test_an_algorithm_practices_in_a_worker(installed: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", PEG, "algorithm=hurry", "learning.half_life_steps=15")
    config = read_yaml(run / "config.yaml")
    assert config["learning"]["half_life_steps"] == 15
    assert "critic" not in config["learning"], "it has none"
    assert main(["report", str(run)]) == 0
