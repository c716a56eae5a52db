"""Somebody else's algorithm, from a file on the path, or from an installed package: trained with a worker, resumed, and
reported.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.interrupted import interrupted, weights
from vla_rl.cli.main import main
from vla_rl.core.config_files import read_yaml
from vla_rl.core.registry import names
from vla_rl.report.sinks import read_records

SHORTEST = '''
"""Successes weigh more, the fewer steps are left."""

from dataclasses import dataclass, field

import numpy as np
import torch

from vla_rl.algorithms.hierarchical import WeightedLearning
from vla_rl.algorithms.hierarchical import WeightedCloning


@dataclass(frozen=True)
class HurryConfig:
    half_life_steps: float = 20.0


@dataclass(frozen=True)
class ShortestLearning(WeightedLearning):
    hurry: HurryConfig = field(default_factory=HurryConfig)


class Shortest(WeightedCloning):
    name = "shortest"
    config_class = ShortestLearning
    config: ShortestLearning

    def weigh(self, frames):
        weight = np.exp2(-self.data.steps_left(frames) / self.config.hurry.half_life_steps).astype(np.float32)
        return self.data.tensor(weight), {"mean_weight": float(weight.mean())}

    def trace(self, cache, frames):
        return {"weight": self.weigh(frames)[0].cpu().numpy()}
'''
CHANGES = ["algorithm=own_shortest:Shortest", "learning.hurry.half_life_steps=5", "workers=1"]
BRIEF = ["budget.evaluate_every_round=false", "budget.evaluation_episodes=1", "task.declare.max_episode_steps=60"]
CHANGES += BRIEF

FEW = [*BRIEF, "budget.demonstrations=2", "budget.supervised_steps=2", "budget.episodes_per_round=2"]


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path with the algorithm's module."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "own_shortest.py").write_text(SHORTEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose worker is a process of its own."""
    folder = tmp_path_factory.mktemp("own") / "run"
    assert main(["train", "--config", "tiny", "--out", str(folder), *CHANGES]) == 0
    return folder


@pytest.mark.slow
def test_it_weighs_with_its_own_option(run: Path) -> None:
    assert read_yaml(run / "config.yaml")["learning"]["hurry"] == {"half_life_steps": 5.0}
    logged = [entry for entry in read_records(run / "metrics.jsonl") if entry["kind"] == "train" and entry["round"]]
    assert logged
    assert all(0 < entry["mean_weight"] < 1 for entry in logged)
    (trace, *_) = (run / "traces").glob("round*.npz")
    with np.load(trace) as columns:
        np.testing.assert_allclose(columns["weight"][-6:], 2.0 ** -(np.arange(5, -1, -1) / 5), rtol=1e-6)
    assert (run / "report.html").read_text().count("weight in the actor")


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_weights(run: Path, tmp_path: Path) -> None:
    again = interrupted(run, tmp_path / "again")
    assert main(["train", "--resume", str(again)]) == 0
    assert weights(again, 2) == weights(run, 2)
    assert json.loads((again / "summary.json").read_text())["finished"]


def test_what_it_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["train", "--config", "tiny", "--out", str(tmp_path / "run"), *CHANGES]
    assert main([*start, "learning.hurry.half_live_steps=2"]) == 2
    assert "unknown key 'learning.hurry.half_live_steps'. Did you mean 'half_life_steps'" in capsys.readouterr().err
    assert main([*start, "learning.advantage.efficiency_scale=1"]) == 2
    assert "unknown key 'learning.advantage.efficiency_scale'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_installed_one_has_a_name(site: Path, tmp_path: Path) -> None:
    info = site / "own_shortest-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-shortest\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[vla_rl.algorithms]\nshortest = own_shortest:Shortest\n")
    assert {"shortest", "habc"} <= set(names("algorithms"))
    run, short = tmp_path / "run", "budget={demonstrations: 2, supervised_steps: 2, rounds: 1, steps_per_round: 2}"
    few = ["budget.episodes_per_round=2", "budget.evaluation_episodes=1", "workers=0"]
    assert main(["train", "--config", "tiny", "--out", str(run), "algorithm=shortest", short, *few]) == 0
    assert read_yaml(run / "config.yaml")["algorithm"] == "shortest"


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [
        ("sft", "mixture.rollouts=1"),
        ("bc", "mixture.rollouts=1"),
        ("hg_dagger", "critic_training.batch_size=2"),
        ("residual_ppo", "critic.members=2"),
        ("habc", "ppo.epochs=7"),
    ],
)
def test_ours_refuse_what_they_do_not_read(
    algorithm: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["train", "--config", "tiny", "--out", str(tmp_path / "run"), f"algorithm={algorithm}"]
    assert main([*start, f"learning.{option}"]) == 2
    assert "unknown key 'learning." in capsys.readouterr().err
    assert main([*start, f"supervised.{option}"]) == 2
    assert "unknown key 'supervised." in capsys.readouterr().err


@pytest.mark.slow
def test_what_it_raises_is_told_with_its_place_and_not_as_a_fault_of_ours(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "own_broken.py").write_text(
        "from own_shortest import Shortest\n\n\nclass Broken(Shortest):\n    name = 'broken'\n\n"
        "    def weigh(self, frames):\n        raise KeyError('half_life')\n\n\n"
        "class Nameless(Shortest):\n    name = ''\n"
    )
    command = ["train", "--config", "tiny", *FEW, "--out"]
    assert main([*command, str(tmp_path / "run"), "algorithm=own_broken:Broken"]) == 2
    assert f"error: KeyError: 'half_life', at {site / 'own_broken.py'}:8, which is no" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "other"), "algorithm=own_broken:Nameless"]) == 2
    assert "the algorithm 'own_broken:Nameless' has no class attribute 'name'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("None", "update() of the algorithm returned a NoneType; expected what to log"),
        ("{**logs, 'mine': torch.ones(())}", "logs 'mine' as a Tensor; expected a number"),
    ],
)
def test_what_an_update_returns_is_looked_at(
    returned: str, told: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"own_{'mute' if returned == 'None' else 'tensors'}"
    (site / f"{name}.py").write_text(
        "import torch\n\nfrom own_shortest import Shortest\n\n\nclass Told(Shortest):\n    name = 'told'\n\n"
        f"    def update(self, step):\n        logs = super().update(step)\n        return {returned}\n"
    )
    assert main(["train", "--config", "tiny", "--out", str(tmp_path / "run"), f"algorithm={name}:Told", *FEW]) == 2
    assert told in capsys.readouterr().err
