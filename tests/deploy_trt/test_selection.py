"""A policy that chooses among its draws acts, deployed, as it does in torch; where it cannot, that is said."""

import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from choosers import DRAWS, TICKS, choosing, make_selector, save_choosing
from tiny_policy import make_model, make_observation

from deploy_trt.exploration import ExplorationPolicies
from deploy_trt.export import export_flow_vla
from deploy_trt.export.graph import split_weights
from deploy_trt.export.selection import selection_spec
from deploy_trt.quantize import quantize_deployment
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed
from deploy_trt.runtime import refresh as refresh_module
from deploy_trt.runtime.manifest import TensorInfo, load_manifest, save_manifest, write_digested
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.refresh import refresh
from deploy_trt.runtime.weights import Array, pack, unpack
from deploy_trt.verify import verify
from vla_rl.cli.main import main
from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.json_files import SEAL
from vla_rl.core.metadata import CRITIC_FOLDER, CRITIC_FORMAT, CRITIC_VERSION, read_weights, write_weights
from vla_rl.data.sources import read_observations
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.base import example_row
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, best_index
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_policy

SAME = 1e-5


@pytest.fixture
def copied(exported_choosing: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_choosing, tmp_path / "deployment"))


def load(folder: Path) -> DeployedPolicy:
    return load_deployed(folder, require="ort-cpu")


def selection_backend(model: FlowVLA, selector: BestOfN) -> OrtBackend:
    """The graph of a selector, on its own."""
    graphs, weights = split_weights([selection_spec(model, selector).export()])
    return OrtBackend("ort-cpu", graphs, weights)


def case(model: FlowVLA, seed: int, draws: int, done: int) -> dict[str, torch.Tensor]:
    """Random inputs of the graph, for chunks of 8 actions of which the second dimension is discrete."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "features": torch.randn(1, len(example_row(model)), generator=generator),
        "tick": torch.tensor([11.0 * seed]),
        "noise": torch.randn(1, draws * 9, 2, generator=generator),
        "drawn": torch.randn(1, 1 + draws, 8, 2, generator=generator),
        "free": (torch.arange(8) >= done) * torch.rand(8, generator=generator),
        "done": torch.tensor([done]),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draws", "offset", "residuals", "options"),
    [
        (1, 0.0, True, {}),
        (3, 0.3, False, {}),
        (3, 0.0, True, {"graded_residual": True}),
        (8, 0.3, True, {"graded_residual": True, "ood_penalty": 0.2}),
    ],
)
def test_the_graph_does_what_the_modules_in_torch_do(
    model: FlowVLA, draws: int, offset: float, residuals: bool, options: dict[str, float]
) -> None:
    """Values of all candidates and the chosen one, at any number of actions that have been executed."""
    selector = make_selector(model, draws, draws, offset, residuals, **options)
    assert selector.critic is not None
    selector.critic.scale[-1] = 0.01  # hardly varied
    backend = selection_backend(model, selector)
    chosen = set()
    for seed, done in itertools.product(range(5), (0, 2, 8 - TICKS, 7, 8)):
        inputs = case(model, seed, draws, done)
        found = backend.run("selection", {name: backend.put(tensor.numpy()) for name, tensor in inputs.items()})
        candidates, values = selector.judged(model, *list(inputs.values())[:-1], done)
        best = int(best_index(candidates, values)[0])
        scale = np.maximum(np.abs(values.numpy()), 1)
        np.testing.assert_array_less(np.abs(found["values"] - values.numpy()) / scale, SAME)
        assert found["chosen"].tolist() == [best]
        np.testing.assert_allclose(found["actions"][0], candidates[0, best].numpy(), atol=SAME)
        assert bool(values.any()) == (done <= 8 - TICKS)
        chosen.add(best)
    assert len(chosen) > 1 or draws == 1


@pytest.mark.parametrize("done", [0, 6])
@pytest.mark.parametrize("action", [TICKS - 1, -1])
@pytest.mark.parametrize("candidates", [(0,), (1,), (0, 2), tuple(range(DRAWS))])
def test_a_candidate_that_is_not_finite_is_not_chosen_while_another_is(
    exported_choosing: Path, model: FlowVLA, candidates: tuple[int, ...], action: int, done: int
) -> None:
    """Also where too few actions are left to judge; of none that is finite the first."""
    program = load(exported_choosing).program
    inputs = {name: tensor.numpy() for name, tensor in case(model, 0, DRAWS, done).items()}
    drawn = inputs["drawn"][0].copy()
    drawn[[1 + candidate for candidate in candidates], action, 0] = np.inf if done else np.nan
    selected = program.select(
        program.backend.put(inputs["features"]), 0, inputs["noise"][0], drawn, np.ones(8, np.float32), done
    )
    assert selected.chosen == 0 if len(candidates) == DRAWS else np.isfinite(selected.actions).all()
    assert selected.chosen not in candidates or len(candidates) == DRAWS


@pytest.mark.slow
def test_features_that_are_not_finite_select_the_first_finite_candidate(model: FlowVLA) -> None:
    """The critic knows nothing then, and nothing is moved without a residual."""
    backend, inputs = selection_backend(model, make_selector(model, residuals=False)), case(model, 0, DRAWS, 0)
    inputs["features"][0, 0] = torch.nan
    inputs["drawn"][0, 1] = torch.nan
    found = backend.run("selection", {name: backend.put(tensor.numpy()) for name, tensor in inputs.items()})
    assert found["chosen"].tolist() == [1]
    assert np.isfinite(found["actions"]).all()


@pytest.mark.parametrize("committed", [0, 1, 3, 6, 8])
def test_it_executes_what_torch_chooses(
    exported_choosing: Path, model: FlowVLA, selector: BestOfN, committed: int
) -> None:
    """At any length of what is committed, also where fewer actions are left than are judged, and none at all."""
    ours, theirs = load(exported_choosing), choosing(model, selector)
    given = np.random.default_rng(0).normal(size=(committed, 2)).astype(np.float32)
    levels = np.float32([model.statistics.action.low[1], model.statistics.action.high[1]])
    chosen = []
    for seed in range(6):
        ours.reset(seed)
        theirs.reset(seed)
        observation = make_observation(seed, 7 * seed)
        found, expected = ours.infer(observation, given), theirs.infer(observation, given)
        np.testing.assert_allclose(found.actions, expected.actions, atol=SAME)
        assert (found.actions[:committed] == given).all()
        assert found.actions.dtype == np.float32
        assert set(found.actions[:, 1]) <= {*levels, *given[:, 1]}, "the discrete dimension is not moved"
        plain = FlowVLAPolicy(model)
        plain.reset(seed)
        chosen.append(np.abs(found.actions - plain.infer(observation, given).actions).max())
    assert max(chosen) > 0.1 if committed < 8 else max(chosen) == 0


def test_a_guided_chunk_is_chosen_as_in_torch(exported_choosing: Path, model: FlowVLA, selector: BestOfN) -> None:
    ours, theirs = load(exported_choosing), choosing(model, selector)
    previous = ours.infer(make_observation()).actions[:6] + 0.5
    for delay in (0, 2, 5):
        found, expected = (
            policy.infer_guided(make_observation(1), previous, delay, exact_gradient=False) for policy in (ours, theirs)
        )
        np.testing.assert_allclose(found.actions, expected.actions, atol=SAME)


@pytest.mark.slow
def test_what_the_chooser_sees_is_never_told_what_is_asked_for(tmp_path: Path) -> None:
    """With an indicator, and classifier-free guidance, the features are those of no indicator, as in training."""
    for scale in (1.0, 1.5):
        model = make_model(indicator=True, guidance_scale=scale, sampling_steps=2).eval()
        one, folder = make_selector(model), tmp_path / f"{scale}"
        export_flow_vla(model, folder / "out", {}, policy_folder=save_choosing(folder / "policy", model, one))
        ours, theirs = load(folder / "out").infer(make_observation()), choosing(model, one).infer(make_observation())
        np.testing.assert_allclose(ours.actions, theirs.actions, atol=SAME)


def test_the_observation_is_encoded_once_and_all_candidates_go_through_a_step_at_once(exported_choosing: Path) -> None:
    policy, calls = load(exported_choosing), []
    run = policy.program.backend.run
    policy.program.backend.run = lambda graph, feeds: calls.append(graph) or run(graph, feeds)  # type: ignore[method-assign]
    policy.infer(make_observation())
    policy.infer(make_observation(1))
    assert calls.count("prefix") == 2
    assert calls.count("step") == 2 * policy.manifest.sampler.steps
    assert policy.manifest.graphs["step"].inputs["actions"].shape[0] == 1 + DRAWS


@pytest.mark.slow
def test_the_ladder_compares_the_selection(copied: Path) -> None:
    """A critic that likes the opposite, with all digests right, is found; so is a residual that moves by more."""
    rungs = {rung.name: rung for rung in verify(copied, "ort-cpu")}
    assert all(rung.passed is not False for rung in rungs.values())
    assert rungs["choice among draws"].found.startswith("torch's choice in 8 of 8 probes")
    for group in ("critic.head", "critic.scale", "residual.net"):
        moved = float(rungs[f"mutation of {group}"].found.split("move by ")[1].split(",")[0])
        assert moved > 1e-4, "the ladder would not see old weights"
    manifest = Deployment.read(copied).manifest
    for name, change in (("critic.head.out.weight", -1.0), ("residual.net.2.bias", 1.2)):
        with_weights(copied, {name: change})
        rungs = {rung.name: rung for rung in verify(copied, "ort-cpu")}
        assert rungs["selection graph"].passed is False, name
        assert rungs["choice among draws"].passed is False, name
        assert rungs["torch, ort-cpu in fp32"].passed, "what is drawn is the same"
        save_manifest(copied, manifest)


def with_weights(folder: Path, factors: dict[str, float]) -> None:
    """Multiply weights of a deployment; all digests are right."""
    deployment = Deployment.read(folder)
    assert deployment.weights is not None
    weights = {name: array * factors.get(name, 1) for name, array in unpack(deployment.weights).items()}
    content = pack({name: array.astype(np.float32) for name, array in weights.items()})
    save_manifest(
        folder, replace(deployment.manifest, weights=write_digested(folder, "weights", ".safetensors", content))
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "cannot read .*selection-"),
        ("truncated", "is not the file that the manifest means"),
        ("truncated, with its digest", "graph 'selection' cannot be played"),
        ("not finite", "critic.head.out.bias holds numbers that are not finite"),
        ("another count", "graph 'step' takes 4 chunks at once, 5 are drawn"),
        ("other features", "graph 'selection' reads"),
        ("no graph", r"the graphs \['selection'\] are missing"),
        ("other inputs", "cannot plan a recorded chunk"),
    ],
)
def test_a_damaged_selection_is_refused_in_one_line(copied: Path, damage: str, message: str) -> None:
    manifest, (file,) = Deployment.read(copied).manifest, copied.glob("selection-*.onnx")
    graph = manifest.graphs["selection"]
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "truncated, with its digest":
        cut = write_digested(copied, "selection", ".onnx", file.read_bytes()[:-20])
        graph = replace(graph, file=cut.file, sha256=cut.sha256)
    elif damage == "not finite":
        with_weights(copied, {"critic.head.out.bias": np.nan})
        manifest = load_manifest(copied)
    elif damage == "another count":
        assert manifest.selection is not None
        manifest = replace(manifest, selection=replace(manifest.selection, num_samples=DRAWS + 1))
    elif damage == "other features":
        graph = replace(graph, inputs={**graph.inputs, "features": TensorInfo("float32", (1, 95))})
    elif damage == "other inputs":  # the graph of a policy with another number of actions
        manifest = replace(manifest, horizon=7)
    graphs = {**manifest.graphs, "selection": graph}
    if damage == "no graph":
        del graphs["selection"]
    save_manifest(copied, replace(manifest, graphs=graphs))
    with pytest.raises(UserError, match=message) as caught:
        load_deployed(copied, require="ort-cpu")
    assert "\n" not in str(caught.value)


def newer_version(folder: Path, draws: int = DRAWS, seed: int = 5) -> tuple[FlowVLA, BestOfN]:
    """Other weights of policy, critic and residual, as version 4."""
    model = make_model(discrete_dims=(1,), prefix_max=4, sampling_steps=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    one = make_selector(model.eval(), seed, draws)
    save_choosing(folder, model, one, version=4)
    return model, one


def test_a_new_version_brings_its_critic_with_it(copied: Path, tmp_path: Path) -> None:
    policy, checkpoint = load(copied), tmp_path / "version_0004"
    model, one = newer_version(checkpoint)
    refresh(policy, checkpoint)
    expected = choosing(model, one).infer(make_observation()).actions
    for acting in (policy, load(copied)):
        np.testing.assert_allclose(acting.infer(make_observation()).actions, expected, atol=SAME)
        assert acting.version == 4
    assert len(list(copied.glob("weights-*"))) == 1


def test_a_new_critic_of_the_same_policy_is_compared_and_swapped(
    copied: Path, model: FlowVLA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the old critic in the new backend nothing is swapped: the drawn chunks alone would not tell."""
    policy, one = load(copied), make_selector(model, 5)
    checkpoint = save_choosing(tmp_path / "policy", model, one, version=4)
    before = policy.infer(make_observation()).actions
    with monkeypatch.context() as patch:
        patch.setattr(refresh_module, "backend_with", lambda running, deployment: running)
        with pytest.raises(UserError, match=r"the new critic selects otherwise .* the old weights go on acting"):
            refresh(policy, checkpoint)
    assert policy.version == 3
    refresh(policy, checkpoint)
    after = policy.infer(make_observation()).actions
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, choosing(model, one).infer(make_observation()).actions, atol=SAME)


def test_a_version_that_does_not_fit_the_graph_is_refused_and_nothing_changes(
    copied: Path, model: FlowVLA, tmp_path: Path
) -> None:
    policy = load(copied)
    before = policy.infer(make_observation()).actions
    for place in ("more", "truncated", "not finite", "missing", "not positive", "other shapes", "bound", "no residual"):
        newer_version(tmp_path / place, draws=DRAWS + 2 if place == "more" else DRAWS)
    save_choosing(tmp_path / "no residual", model, make_selector(model, 5, residuals=False), version=4)
    save_choosing(tmp_path / "cost", model, make_selector(model, 5, ood_penalty=0.1), version=4)
    (weights,) = (tmp_path / "truncated" / CRITIC_FOLDER).glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-8])
    shutil.rmtree(tmp_path / "missing" / CRITIC_FOLDER)
    save_choosing(tmp_path / "none", model, None, version=4)
    resaved(tmp_path / "not finite", {"head.out.bias": lambda bias: bias * np.nan})
    resaved(tmp_path / "not positive", {"scale": lambda scale: scale * 0})
    resaved(tmp_path / "other shapes", {"residual.net.2.bias": lambda bias: bias[:-1]})
    resaved(tmp_path / "bound", {}, residual={"bound": 0.5, "hidden": [16]})
    for name, message in {
        "more": "among 5 draws, the deployed policy among 3; export it anew",
        "none": "among 0 draws",
        "truncated": "is damaged",
        "missing": "has lost its critic",
        "not finite": "not finite",
        "not positive": "not positive",
        "other shapes": r"residual.net.2.bias is \[1\], the graphs have \[2\]",
        "bound": r"chooses with residual \{'bound': 0.5.*export it anew",
        "no residual": "chooses with residual None",
        "cost": "chooses with best_of_n .*'ood_penalty': 0.1",
    }.items():
        with pytest.raises(CheckpointError, match=message) as caught:
            refresh(policy, tmp_path / name)
        assert "\n" not in str(caught.value)
    assert (policy.infer(make_observation()).actions == before).all()
    assert load(copied).version == 3


def resaved(policy: Path, changes: dict[str, Callable[[Array], Array]], **about: object) -> None:
    """Write a critic once more with other weights or another description; its digests are right."""
    found, content = read_weights(policy / CRITIC_FOLDER, CRITIC_FORMAT, CRITIC_VERSION)
    weights = {name: changes.get(name, np.array)(array) for name, array in unpack(content).items()}
    kept = {name: value for name, value in found.items() if name not in ("weights", "sha256", SEAL)}
    write_weights(policy / CRITIC_FOLDER, "critic", pack(weights), {**kept, **about})


@pytest.mark.slow
def test_no_critic_gets_lost_on_the_way_into_a_deployment_of_a_policy_without_one(
    exported: Path, model: FlowVLA, selector: BestOfN, tmp_path: Path
) -> None:
    plain = load(Path(shutil.copytree(exported, tmp_path / "plain")))
    with pytest.raises(CheckpointError, match="among 3 draws, the deployed policy among 0; export it anew"):
        refresh(plain, save_choosing(tmp_path / "chooses", model, selector, version=4))


def test_a_choice_that_cannot_be_exported_is_refused_with_what_to_do(
    model: FlowVLA, selector: BestOfN, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = BestOfN(
        None, BestOfNConfig(num_samples=1, offset_std=0.0), selector.residual, TICKS
    )  # a residual without a critic
    for source, options in ((selector, ["--unrolled"]), (alone, [])):
        folder = str(save_choosing(tmp_path / f"policy{len(options)}", model, source))
        assert main(["export", folder, "--out", str(tmp_path / "out"), *options]) == 2
        said = capsys.readouterr().err
        assert "--without-critic" in said
        assert len(said.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_left_out_on_purpose_stays_out(model: FlowVLA, selector: BestOfN, tmp_path: Path) -> None:
    source = str(save_choosing(tmp_path / "policy", model, selector))
    assert main(["export", source, "--out", str(tmp_path / "plain"), "--without-critic"]) == 0
    policy = load(tmp_path / "plain")
    newer, _ = newer_version(tmp_path / "version_0004")
    refresh(policy, tmp_path / "version_0004")
    expected = FlowVLAPolicy(newer).infer(make_observation()).actions
    np.testing.assert_allclose(policy.infer(make_observation()).actions, expected, atol=SAME)


@pytest.mark.slow
def test_low_precision_chooses_too(exported_choosing: Path, tmp_path: Path) -> None:
    observations = [make_observation(seed, seed) for seed in range(8)]
    exact = load(exported_choosing).infer(make_observation()).actions
    for mode in ("int8-dynamic", "int8-static"):
        quantize_deployment(exported_choosing, tmp_path / mode, mode, observations, check=False)
        quantised = load(tmp_path / mode)
        assert quantised.manifest.selection is not None
        assert np.abs(quantised.infer(make_observation()).actions - exact)[:, 0].max() < 4.0
        names = [rung.name for rung in verify(tmp_path / mode, "ort-cpu")]
        assert "choice among draws" in names


@pytest.mark.slow
def test_exploration_follows_the_critic_from_the_version_that_first_has_one(tmp_path: Path) -> None:
    """The supervised policy has none: its graphs draw one chunk at a time."""
    model, one = newer_version(tmp_path / "version_0004")
    model.save(tmp_path / "version_0002", {"policy_version": 2})
    save_choosing(tmp_path / "version_0003", model, make_selector(model, 1))
    with ExplorationPolicies("fp32") as policies:
        assert policies.load(tmp_path / "version_0002").manifest.selection is None
        assert policies.load(tmp_path / "version_0003").manifest.selection is not None
        found = policies.load(tmp_path / "version_0004").infer(make_observation())
    np.testing.assert_allclose(found.actions, choosing(model, one).infer(make_observation()).actions, atol=SAME)


@pytest.mark.slow
def test_half_precision_shows_the_chooser_its_features_in_full(
    model: FlowVLA, selector: BestOfN, tmp_path: Path
) -> None:
    policy = save_choosing(tmp_path / "policy", model, selector)
    manifest = export_flow_vla(model, tmp_path / "out", {}, "fp16", policy_folder=policy)
    assert manifest.graphs["prefix"].outputs["features"].dtype == "float32"
    choices = next(rung for rung in verify(tmp_path / "out", "ort-cpu") if rung.name == "choice among draws")
    assert choices.passed, choices.found


TINY_ALONE = (
    "task.image_size=32",
    "budget.demonstrations=3 budget.supervised_steps=8 budget.rounds=2 budget.episodes_per_round=3",
    "budget.steps_per_round=6 budget.evaluation_episodes=2 budget.evaluate_every_round=false",
    "policy.vision.widths=[8,16] policy.expert.width=32 policy.expert.layers=1 policy.expert.heads=2",
    "supervised.actor.batch_size=8 supervised.actor.warmup_steps=2",
    "learning.distill_steps=2 learning.actor.batch_size=8",
    "learning.critic.members=2 learning.critic.hidden=[16]",
    "workers=0 environments_per_worker=3",
)
OWN = {
    "alone": "learning.td.updates=60 budget.compare_episodes=0",
    "imagined": "learning.dynamics.steps=8 learning.value.steps=8 learning.best_of_n.offset_std=0.1 "
    "learning.branches.updates=2 learning.branches.branches=16",
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", OWN)
def test_what_practiced_alone_is_exported_and_follows_its_run(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From `vla-rl train --config alone` to a deployment that chooses as the trained policy, version after version."""
    run, out = tmp_path / "run", tmp_path / "out"
    options = [option for line in (*TINY_ALONE, OWN[preset]) for option in line.split()]
    assert main(["train", "--config", preset, "--out", str(run), *options]) == 0
    assert main(["export", str(run), "--version", "1", "--out", str(out), "--calibration", str(run / "episodes")]) == 0
    printed = capsys.readouterr().out
    assert "version 1 in fp32, chooses among " in printed
    assert re.search(r"ok  choice among draws: torch's choice in (\d+) of \1 probes", printed), printed
    policy = load(out)
    seen = read_observations(run / "episodes", 6)
    for version in (1, 2):
        checkpoint = run / "policies" / f"version_{version:04d}"
        if version > policy.version:
            refresh(policy, checkpoint)
        reference = load_policy(checkpoint)
        assert isinstance(reference, ActingPolicy)
        assert reference.selector is not None
        assert reference.selector.residual is not None
        moved = []
        for seed, observation in enumerate(seen):
            policy.reset(seed)
            reference.reset(seed)
            ours, theirs = policy.infer(observation), reference.infer(observation)
            np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-4)
            assert ours.policy_version == version
            reference.selector, kept = None, reference.selector
            moved.append(np.abs(reference.infer(observation).actions - ours.actions).max() > 1e-3)
            reference.selector = kept
        assert any(moved), "these were no plain draws"
