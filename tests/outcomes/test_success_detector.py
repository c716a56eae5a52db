"""The success detector: what it learns, what it refuses to say, and its graph without torch."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir
import pytest
import tiny_policy
import torch
from seen_success import played
from tiny_policy import SPEC

from deploy_trt.export.graph import export_module
from deploy_trt.runtime.ort import OrtBackend
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.types import PICTURED, Episode
from vla_rl.outcomes import SuccessDetector, window_at
from vla_rl.outcomes.deployed import RUN_TICKS, DeployedDetector, counts
from vla_rl.outcomes.detector import OFFSETS, Window, observation_at
from vla_rl.outcomes.files import judgment_of
from vla_rl.outcomes.judge_network import JudgeNetwork, Labeled, train

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def detector(policy: Path) -> SuccessDetector:
    return SuccessDetector.fit([played(f"e{index}", index % 2 == 0, index) for index in range(48)], policy)


@pytest.mark.parametrize("success", [True, False])
def test_it_judges_episodes_that_it_has_not_seen(detector: SuccessDetector, success: bool) -> None:
    judgments = [detector.judge(played("new", success, seed)) for seed in range(100, 120)]
    assert sum(judgment.success is success for judgment in judgments) >= 17
    assert not any(judgment.success is (not success) for judgment in judgments)


def test_a_tick_before_the_end_of_a_success_is_no_success(detector: SuccessDetector) -> None:
    episode = played("new", True, 100)
    early = [detector.judge(window_at(episode, tick)) for tick in range(6)]
    assert not any(judgment.success for judgment in early)
    without = replace(episode, final_state=None, final_images={})
    assert not window_at(without).has_final
    assert not detector.judge(without).success, "the success came after the last command, and was not kept"


def test_it_is_unsure_of_what_is_unlike_all_that_it_knows(detector: SuccessDetector) -> None:
    episode = played("new", True, 100)
    strange = {name: np.full_like(image, 255) * np.uint8([1, 0, 0]) for name, image in episode.final_images.items()}
    judgment = detector.judge(replace(episode, final_images=strange, final_state=50 * np.ones(3, np.float32)))
    assert (judgment.success, judgment.reason) == (None, "unlike every known window")


def test_a_change_that_the_components_leave_out_is_new() -> None:
    random = np.random.default_rng(0)
    few = random.normal(size=(400, 3)).astype(np.float32) @ random.normal(size=(3, 200)).astype(np.float32)
    rows = few + random.normal(size=few.shape).astype(np.float32) * np.float32(0.1)
    episode = np.arange(400) // 10
    success = episode % 2 == 0
    network, _ = train(Labeled(rows[:300], success[:300], success[:300] >= 0, episode[:300]), [True, False] * 15, 0)
    directions = network.basis / network.basis.norm(dim=0)
    change = torch.from_numpy(random.normal(size=200).astype(np.float32))
    change -= directions @ (directions.T @ change)
    with torch.no_grad():
        usual, changed = (network(torch.from_numpy(rows[300:]) + each)[1] for each in (0, 0.5 * change))
    assert (usual <= 1).float().mean() > 0.95
    assert (changed > 1).all()


def _trained(rows: np.ndarray) -> JudgeNetwork:
    """Train networks on rows of episodes of ten, of which every other one is a success."""
    episode = np.arange(len(rows)) // 10
    success = episode % 2 == 0
    outcomes = [number % 2 == 0 for number in range(episode[-1] + 1)]
    return train(Labeled(rows.astype(np.float32), success, success >= 0, episode), outcomes, 0)[0]


def _novelty(network: JudgeNetwork, rows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(rows.astype(np.float32)))[1].numpy()


def test_rounding_is_not_new_where_features_have_few_directions() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 40)) @ random.normal(size=(40, 192)) + 3
    network, usual = _trained(rows[:300]), rows[300:]
    assert (_novelty(network, usual) <= 1).mean() > 0.95
    assert _novelty(network, rows[:300]).max() <= 1
    across = np.linalg.svd(rows - rows.mean(0))[2][-1]  # a direction in which no window differs
    assert (_novelty(network, usual + 0.01 * np.linalg.norm(rows[0]) * across) > 1).all()
    example = {"rows": torch.from_numpy(usual.astype(np.float32))}
    graph = export_module("judge", network, example, ["members", "novelty"])
    backend = OrtBackend("ort-cpu", {"judge": onnx_ir.to_proto(graph.model).SerializeToString()}, None)
    found = backend.get(backend.run("judge", {"rows": example["rows"].numpy()})["novelty"])
    np.testing.assert_allclose(found, _novelty(network, usual), atol=1e-3)


def test_another_window_is_new_where_all_known_ones_are_the_same() -> None:
    rows = np.tile(np.random.default_rng(0).normal(size=192), (40, 1))
    network = _trained(rows)
    assert (_novelty(network, rows * (1 + 1e-6)) < 0.5).all()
    assert (_novelty(network, rows + 0.1) > 1).all()
    assert judgment_of(np.full(5, 0.99, np.float32), np.nan).success is None, "a novelty that is no number"


def test_it_is_unsure_where_its_networks_disagree_or_a_success_is_not_sure() -> None:
    assert judgment_of(np.array([0.9, 0.8, 0.4], np.float32), 0.5).success is None
    assert judgment_of(np.array([0.99, 0.95, 0.6], np.float32), 0.5).success is None
    assert judgment_of(np.array([0.99, 0.95, 0.91], np.float32), 0.5).success is True
    assert judgment_of(np.array([0.1, 0.2, 0.4], np.float32), 0.5).success is False
    assert judgment_of(np.array([0.1, 0.2, 0.4], np.float32), 1.1).success is None


def test_length_and_tick_say_nothing(detector: SuccessDetector) -> None:
    episode = played("new", False, 101)
    longer = {name: np.concatenate([column[:2]] * 20 + [column[2:]]) for name, column in vars_of(episode).items()}
    images = {name: np.concatenate([image[:2]] * 20 + [image[2:]]) for name, image in episode.images.items()}
    stretched = replace(episode, images=images, **longer).validate()
    assert len(stretched) == 46
    assert detector.judge(window_at(stretched)) == detector.judge(window_at(episode))
    told, usual = detector.judge(stretched), detector.judge(episode)
    assert (told.success, told.reason) == (usual.success, usual.reason)
    # The features are of batches of 46 and of 8 observations, which need not be equal to the last bit.
    assert told.probability == pytest.approx(usual.probability, rel=1e-4)


def vars_of(episode: Episode) -> dict[str, np.ndarray]:
    return {name: getattr(episode, name) for name in ("state", "action_policy", "action_sent", "source")}


def test_a_window_has_the_observations_of_its_ticks() -> None:
    episode = played("new", True, 3)
    states = np.concatenate([episode.state, episode.final_state[None]])
    for tick in (0, 3, 8):
        window = window_at(episode, tick)
        expected = [states[max(tick - offset, 0)] for offset in OFFSETS]
        np.testing.assert_array_equal([each.state for each in window.observations], expected)
        assert {each.tick for each in window.observations} == {0}
    np.testing.assert_array_equal(window_at(episode).observations[-1].state, episode.final_state)


def test_a_folder_holds_all_that_it_needs(detector: SuccessDetector, tmp_path: Path) -> None:
    detector.save(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / "moved")
    found = SuccessDetector.load(tmp_path / "moved")
    assert found.name == detector.name
    episode = played("new", True, 100)
    assert found.judge(episode) == detector.judge(episode)
    weights = tmp_path / "moved" / "detector.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"beef")
    with pytest.raises(UserError, match="no whole detector"):
        SuccessDetector.load(tmp_path / "moved")


def test_a_saved_and_an_exported_detector_do_not_share_a_folder(detector: SuccessDetector, tmp_path: Path) -> None:
    for first, second in ((detector.save, detector.export), (detector.export, detector.save)):
        folder = tmp_path / first.__name__
        first(folder)
        before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        with pytest.raises(UserError, match="name another folder"):
            second(folder)
        assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_the_graph_judges_as_torch_does_and_without_torch(detector: SuccessDetector, tmp_path: Path) -> None:
    detector.export(tmp_path / "graph")
    deployed = DeployedDetector(tmp_path / "graph")
    for seed in range(100, 106):
        episode = played("new", seed % 2 == 0, seed)
        ours, theirs = deployed.judge(window_at(episode)), detector.judge(episode)
        assert ours.success is theirs.success
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-4)
    told = [deployed.step(observation_at(episode, tick)) for tick in range(9)]
    assert told[-1].probability == pytest.approx(theirs.probability, abs=1e-4), "step by step it sees the same window"
    code = (
        "import json, sys; from vla_rl.outcomes.deployed import RUN_TICKS, DeployedDetector, counts; "
        f"DeployedDetector({str(tmp_path / 'graph')!r}); print(json.dumps('torch' in sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) is False


def test_one_early_success_ends_no_attempt(
    detector: SuccessDetector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector.export(tmp_path / "graph")
    deployed = DeployedDetector(tmp_path / "graph")
    short, sure = RUN_TICKS - 1, [0.99, 0.96, 0.97, 0.2, 0.98]
    told = iter([sure] * short + [[0.9] * 5] + [sure] * short + [[0.1] * 5] + [sure] * (RUN_TICKS + 1))
    features = np.zeros(deployed._size, np.float32)
    monkeypatch.setattr(deployed, "_look", lambda observation, past: (features, np.float32(next(told)), 0.5))
    observation = observation_at(played("new", True, 100), 8)
    found = [deployed.step(observation).success for _ in range(3 * RUN_TICKS + 1)]
    assert found == [None] * (3 * RUN_TICKS - 1) + [True, True], "a run of many ticks, and a failure is never final"


def test_a_tick_counts_where_most_members_are_sure_and_nothing_is_new() -> None:
    members = np.float32([[0.99, 0.97, 0.96, 0.1, 0.2], [0.99, 0.97, 0.94, 0.94, 0.94], [0.99] * 5])
    assert counts(members, np.float32([0.5, 0.5, 1.1])).tolist() == [True, False, False]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[SuccessDetector, Path]:
    """A detector on a policy of two robots that name their states, and its exported folder."""
    folder = tmp_path_factory.mktemp("shared")
    named = [(Dimensions(NAMES[:size], ("rad",) * size), Dimensions()) for size in (2, 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_policy, "SPEC", replace(SPEC, sizes=((2, 1), (3, 2)), dimensions=tuple(named)))
        tiny_policy.make_model().save(folder / "policy", {"policy_version": 0})
    detector = SuccessDetector.fit(
        [played(f"e{index}", index % 2 == 0, index) for index in range(24)], folder / "policy"
    )
    detector.export(folder / "graph")
    return detector, folder / "graph"


def with_states(episode: Episode, change: Callable[[np.ndarray], np.ndarray], dimensions: Dimensions) -> Episode:
    state, final_state = (change(each).astype(np.float32) for each in (episode.state, episode.final_state))
    return replace(episode, state=state, final_state=final_state, state_dimensions=dimensions)


def test_the_state_is_read_by_name_and_in_its_unit(shared: tuple[SuccessDetector, Path]) -> None:
    detector, deployed = shared[0], DeployedDetector(shared[1])
    turned = Dimensions(NAMES[::-1], ("deg",) * 3)
    for seed in (100, 101):
        usual = played("new", seed % 2 == 0, seed)
        same = with_states(usual, lambda state: np.rad2deg(state[..., ::-1]), turned)
        expected = pytest.approx(detector.judge(usual).probability, abs=1e-4)
        deployed.reset(turned)
        judgments = [detector.judge(same), detector.judge(window_at(same)), deployed.judge(window_at(same))]
        judgments.append([deployed.step(observation_at(same, tick)) for tick in range(9)][-1])
        assert [each.probability for each in judgments] == [expected] * 4


def test_a_name_that_the_robot_lacks_is_refused_or_renamed(shared: tuple[SuccessDetector, Path]) -> None:
    detector, deployed = shared[0], DeployedDetector(shared[1])
    other = Dimensions(("a", "b", "wrist"))
    episode = with_states(played("new", True, 100), np.asarray, other)
    deployed.reset(other)
    for judge in (
        lambda: detector.judge(episode),
        lambda: deployed.judge(window_at(episode)),
        lambda: deployed.step(observation_at(episode, 0)),
    ):
        with pytest.raises(UserError, match=r"the state has no dimension 'c'.*Expected by the policy of the success"):
            judge()
    renamed = DeployedDetector(shared[1], {"c": "wrist", "a name of the policy that acts": "x"})
    assert renamed.judge(window_at(episode)).probability == pytest.approx(
        detector.judge(replace(episode, state_dimensions=Dimensions())).probability, abs=1e-4
    )


def test_the_state_of_a_smaller_robot_is_filled_up_as_for_its_policy(shared: tuple[SuccessDetector, Path]) -> None:
    detector, deployed = shared[0], DeployedDetector(shared[1])
    mean = np.float32(detector._features.model.statistics.state.mean[2])
    episode = played("new", True, 100)
    small = with_states(episode, lambda state: state[..., :2], Dimensions(NAMES[1::-1]))
    filled = with_states(
        episode, lambda state: np.stack([state[..., 1], state[..., 0], 0 * state[..., 0] + mean], -1), UNDECLARED
    )
    assert detector.judge(small) == detector.judge(filled)
    assert deployed.judge(window_at(small)) == deployed.judge(window_at(filled))


def test_a_picture_of_another_size_is_refused(shared: tuple[SuccessDetector, Path]) -> None:
    seen = observation_at(played("new", True, 100), 0)
    larger = replace(seen, images={name: image.repeat(2, 0) for name, image in seen.images.items()})
    for judge in (lambda: shared[0].judge(Window((larger,) * 3)), lambda: DeployedDetector(shared[1]).step(larger)):
        with pytest.raises(UserError, match=r"gives uint8 \[32, 16, 3\], the policy was made for uint8 \[16, 16, 3\]"):
            judge()


def test_a_graph_without_names_is_refused(shared: tuple[SuccessDetector, Path], tmp_path: Path) -> None:
    shutil.copytree(shared[1], tmp_path / "old")
    about = json.loads((tmp_path / "old/detector.json").read_text())
    about["cameras"] = about.pop("spec")["cameras"]
    (tmp_path / "old/detector.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="Export it anew"):
        DeployedDetector(tmp_path / "old")


@pytest.mark.parametrize(("successes", "failures"), [(1, 5), (5, 1), (0, 0)])
def test_too_few_labels_are_refused(policy: Path, successes: int, failures: int) -> None:
    episodes = [played(f"e{index}", index < successes, index) for index in range(successes + failures)]
    with pytest.raises(UserError, match="two successes and two failures"):
        SuccessDetector.fit(episodes, policy)


def test_an_episode_without_pictures_is_refused(detector: SuccessDetector) -> None:
    episode = played("planned", True, 3, extras={PICTURED: np.array([1, 0, 0, 1, 1, 1, 1, 1], np.uint8)})
    with pytest.raises(UserError, match="no picture at every step"):
        detector.judge(episode)
