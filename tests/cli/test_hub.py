"""`vla-rl hub` through a folder: what comes back is what went."""

import filecmp
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.data.episode_maker import make_episode
from vla_rl.cli.main import main
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig


def test_a_policy_comes_back_file_by_file(tmp_path: Path) -> None:
    policy, place, back = (tmp_path / name for name in ("policy", "place", "back"))
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    numbers = np.random.default_rng(0).uniform(-0.1, 0.2, (50, 8)).astype(np.float32)
    spec = PolicySpec("vla_rl/PegInsert-v0", ("front",), (32, 32), 8, 8)
    FlowVLA(config, spec, Statistics.from_arrays(numbers, numbers)).save(policy, {"policy_version": 5})
    assert main(["hub", "push", str(policy), str(place)]) == 0
    assert main(["hub", "pull", str(place), str(back)]) == 0
    compared = filecmp.dircmp(policy, back)
    assert not [*compared.left_only, *compared.right_only, *compared.diff_files]
    assert len(compared.same_files) == len(list(policy.iterdir())) > 1
    assert main(["hub", "push", str(policy), str(place)]) == 2, "nothing is overwritten"


@pytest.mark.slow
def test_episodes_travel_as_a_lerobot_dataset(tmp_path: Path) -> None:
    store, place, back = EpisodeStore(tmp_path / "store"), tmp_path / "place", tmp_path / "back"
    episode = make_episode("demo-00000", 6)
    store.add(episode)
    assert main(["hub", "push", str(store.path), str(place)]) == 0
    assert (place / "meta" / "info.json").exists()
    assert main(["hub", "pull", str(place), str(back)]) == 0
    found = EpisodeStore(back, create=False)
    (name,) = found.ids()
    assert np.array_equal(found.read(name).action_sent, episode.action_sent)


def test_a_hub_that_cannot_be_reached_is_no_fault_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise httpx.ConnectError("name resolution failed")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    assert main(["hub", "pull", "somebody/policy", str(tmp_path / "new")]) == 2
    assert "the hub: name resolution failed; try again, or use a folder, ./NAME" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["pull", "./nowhere", "new"], ["push", ".", "./x", "--episodes"]])
def test_what_is_not_there_is_said(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["hub", *words]) == 2
    assert not (tmp_path / "new").exists()
