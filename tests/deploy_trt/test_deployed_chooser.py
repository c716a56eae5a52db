"""A policy that chooses among its draws acts, deployed, as it does in torch; where it cannot, that is said."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from choosers import DRAWS, TICKS, choosing, make_chooser, save_choosing
from tiny_policy import make_model, make_observation

from deploy_trt.exploration import ExplorationPolicies
from deploy_trt.export import export_flow_vla
from deploy_trt.quantize import quantize_deployment
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed
from deploy_trt.runtime.choosing import DeployedChooser, read_critic
from deploy_trt.runtime.manifest import Manifest, save_manifest, write_digested
from deploy_trt.runtime.refresh import refresh
from deploy_trt.runtime.weights import pack, unpack
from deploy_trt.verify import verify
from tests.fakes.resealed import resealed
from vla_rl.cli.export import read_observations
from vla_rl.cli.main import main
from vla_rl.core.errors import CheckpointError
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser, best
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.folders import load_policy

SAME = 1e-5


@pytest.fixture
def copied(exported_choosing: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_choosing, tmp_path / "deployment"))


def load(folder: Path) -> DeployedPolicy:
    policy = load_deployed(folder, require="ort-cpu")
    assert isinstance(policy, DeployedPolicy)
    return policy


@pytest.mark.parametrize("committed", [0, 1, 3, 6, 8])
def test_it_executes_what_torch_chooses(
    exported_choosing: Path, model: FlowVLA, chooser: Chooser, committed: int
) -> None:
    """At any length of what is committed, also where fewer actions are left than are judged, and none at all."""
    ours, theirs = load(exported_choosing), choosing(model, chooser)
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


def test_a_guided_chunk_is_chosen_as_in_torch(exported_choosing: Path, model: FlowVLA, chooser: Chooser) -> None:
    ours, theirs = load(exported_choosing), choosing(model, chooser)
    previous = ours.infer(make_observation()).actions[:6] + 0.5
    for delay in (0, 2, 5):
        found, expected = (
            policy.infer_guided(make_observation(1), previous, delay, exact_gradient=False) for policy in (ours, theirs)
        )
        np.testing.assert_allclose(found.actions, expected.actions, atol=SAME)


def deployed(copied: Path, model: FlowVLA, one: Chooser, policy: Path) -> Path:
    """A deployment of the same graphs with another chooser."""
    found = read_critic(save_choosing(policy, model, one))
    assert found is not None
    write_digested(copied, "critic", ".safetensors", found[1])
    save_manifest(copied, replace(Deployment.read(copied).manifest, chooser=found[0]))
    return copied


@pytest.mark.parametrize(("edits", "offset"), [(False, 0.3), (True, 0.0)])
def test_either_part_may_be_missing(model: FlowVLA, copied: Path, tmp_path: Path, edits: bool, offset: float) -> None:
    one = make_chooser(model, offset=offset, edits=edits)
    ours = load(deployed(copied, model, one, tmp_path / "policy")).infer(make_observation())
    np.testing.assert_allclose(ours.actions, choosing(model, one).infer(make_observation()).actions, atol=SAME)


@pytest.mark.parametrize("hardly_varied", [False, True])
def test_graded_edits_and_the_cost_of_novelty_are_those_of_torch(
    model: FlowVLA, copied: Path, tmp_path: Path, hardly_varied: bool
) -> None:
    """Every candidate's value and edit, and each of the two options changes them."""
    rng, values = np.random.default_rng(0), []
    noise = rng.standard_normal((DRAWS * 9, 2)).astype(np.float32)
    drawn = rng.standard_normal((1 + DRAWS, 8, 2)).astype(np.float32)
    for graded, cost in ((False, 0.0), (True, 0.0), (True, 0.2)):
        one = make_chooser(model, graded_edit=graded, novelty_cost=cost)
        assert one.critic is not None
        if hardly_varied:
            one.critic.scale[-1] = 0.01
        folder = deployed(copied, model, one, tmp_path / f"{graded}-{cost}")
        chooser = Deployment.read(folder).chooser
        assert isinstance(chooser, DeployedChooser)
        tokens, _ = model.features(*choosing(model, one)._inputs(make_observation()))
        seen, free = tokens.detach().flatten(1), np.ones(8, np.float32)
        ours = chooser.choose(seen[0].numpy(), 11, noise, drawn, free, 0)
        tensors = (torch.tensor([11.0]), torch.from_numpy(noise)[None], torch.from_numpy(drawn)[None])
        candidates, theirs = one.judged(model, seen, *tensors, torch.from_numpy(free), 0)
        np.testing.assert_allclose(ours.values, theirs[0].numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours.actions, candidates[0, ours.chosen].numpy(), atol=SAME)
        values.append(ours.values)
    changes = [float(np.abs(values[index] - values[index + 1]).max()) for index in (0, 1)]
    assert min(changes) > 1e-3, changes


@pytest.mark.slow
def test_what_the_chooser_sees_is_never_told_what_is_asked_for(tmp_path: Path) -> None:
    """With an indicator, and classifier-free guidance, the features are those of no indicator, as in training."""
    for scale in (1.0, 1.5):
        model = make_model(indicator=True, guidance_scale=scale, sampling_steps=2).eval()
        one, folder = make_chooser(model), tmp_path / f"{scale}"
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
def test_the_ladder_compares_the_choice(copied: Path) -> None:
    """A critic that likes the opposite, with all digests right, is found; so is an edit that moves by more."""
    rungs = {rung.name: rung for rung in verify(copied, "ort-cpu")}
    assert all(rung.passed is not False for rung in rungs.values())
    assert rungs["choice among draws"].found.startswith("torch's choice in 8 of 8 probes")
    for name, change in (("head.out.weight", -1.0), ("edit.net.2.bias", 1.2)):
        deployment = Deployment.read(copied)
        assert deployment.chooser is not None
        weights = {key: array.copy() for key, array in unpack(deployment.chooser.content).items()}
        weights[name] *= change
        other = write_digested(copied, "critic", ".safetensors", pack(weights))
        save_manifest(copied, with_chooser(deployment.manifest, file=other))
        rungs = {rung.name: rung for rung in verify(copied, "ort-cpu")}
        assert rungs["choice among draws"].passed is False, name
        assert rungs["torch, ort-cpu in fp32"].passed, "what is drawn is the same"
        save_manifest(copied, deployment.manifest)


def with_chooser(manifest: Manifest, **changes: object) -> Manifest:
    assert manifest.chooser is not None
    return replace(manifest, chooser=replace(manifest.chooser, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage", ["digest", "missing", "not finite", "another policy", "another choice", "no features"]
)
def test_a_damaged_critic_is_refused_in_one_line(copied: Path, damage: str) -> None:
    deployment, file = Deployment.read(copied), next(copied.glob("critic-*"))
    assert deployment.chooser is not None
    weights = {name: array.copy() for name, array in unpack(deployment.chooser.content).items()}
    if damage == "digest":
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    elif damage == "missing":
        file.unlink()
    elif damage == "another choice":
        save_manifest(copied, with_chooser(deployment.manifest, draws=DRAWS + 1))
    elif damage == "no features":
        content = json.loads((copied / "manifest.json").read_text())
        del content["graphs"]["prefix"]["outputs"]["features"]
        (copied / "manifest.json").write_text(json.dumps(resealed(content)))
    else:
        if damage == "not finite":
            weights["head.out.bias"][:] = np.nan
        else:
            weights["mean"] = weights["mean"][:-1]
        written = write_digested(copied, "critic", ".safetensors", pack(weights))
        save_manifest(copied, with_chooser(deployment.manifest, file=written))
    with pytest.raises(CheckpointError) as caught:
        load_deployed(copied, require="ort-cpu")
    assert "\n" not in str(caught.value)


def newer_version(folder: Path, draws: int = DRAWS, seed: int = 5) -> tuple[FlowVLA, Chooser]:
    """Other weights of policy, critic and edit, as version 4."""
    model = make_model(discrete_dims=(1,), prefix_max=4, sampling_steps=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    one = make_chooser(model.eval(), seed, draws)
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
    assert len(list(copied.glob("critic-*"))) == 1


def test_a_version_that_chooses_otherwise_is_refused_and_nothing_changes(
    copied: Path, model: FlowVLA, tmp_path: Path
) -> None:
    policy = load(copied)
    before = policy.infer(make_observation()).actions
    newer_version(tmp_path / "more", draws=DRAWS + 2)
    newer_version(tmp_path / "damaged")
    weights = next((tmp_path / "damaged" / FOLDER).glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    save_choosing(tmp_path / "none", model, None, version=4)
    for name, message in (("more", "among 5 draws"), ("none", "among 0 draws"), ("damaged", "is damaged")):
        with pytest.raises(CheckpointError, match=message):
            refresh(policy, tmp_path / name)
    assert (policy.infer(make_observation()).actions == before).all()
    assert load(copied).version == 3


@pytest.mark.slow
def test_no_critic_gets_lost_on_the_way_into_a_deployment_of_a_policy_without_one(
    exported: Path, model: FlowVLA, chooser: Chooser, tmp_path: Path
) -> None:
    plain = load(Path(shutil.copytree(exported, tmp_path / "plain")))
    with pytest.raises(CheckpointError, match="among 3 draws, the deployed policy among 0; export it anew"):
        refresh(plain, save_choosing(tmp_path / "chooses", model, chooser, version=4))


@pytest.mark.slow
def test_the_verb_exports_the_choice(
    model: FlowVLA, chooser: Chooser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(save_choosing(tmp_path / "policy", model, chooser))
    assert main(["export", source, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"version 3 in fp32, chooses among {DRAWS} draws" in printed
    assert "ok  choice among draws: torch's choice in 8 of 8 probes" in printed


def test_a_choice_that_cannot_be_exported_is_refused_with_what_to_do(
    model: FlowVLA, chooser: Chooser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Chooser(None, ChoiceConfig(draws=1, offset=0.0), chooser.edit, TICKS)  # an edit without a critic
    for source, options in ((chooser, ["--unrolled"]), (alone, [])):
        folder = str(save_choosing(tmp_path / f"policy{len(options)}", model, source))
        assert main(["export", folder, "--out", str(tmp_path / "out"), *options]) == 2
        said = capsys.readouterr().err
        assert "--without-critic" in said
        assert len(said.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_left_out_on_purpose_stays_out(model: FlowVLA, chooser: Chooser, tmp_path: Path) -> None:
    source = str(save_choosing(tmp_path / "policy", model, chooser))
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
        assert quantised.program.chooser is not None
        assert np.abs(quantised.infer(make_observation()).actions - exact)[:, 0].max() < 4.0
        names = [rung.name for rung in verify(tmp_path / mode, "ort-cpu")]
        assert "choice among draws" in names


@pytest.mark.slow
def test_exploration_follows_the_critic_from_the_version_that_first_has_one(tmp_path: Path) -> None:
    """The supervised policy has none: its graphs draw one chunk at a time."""
    model, one = newer_version(tmp_path / "version_0004")
    model.save(tmp_path / "version_0002", {"policy_version": 2})
    save_choosing(tmp_path / "version_0003", model, make_chooser(model, 1))
    with ExplorationPolicies("fp32") as policies:
        assert policies.load(tmp_path / "version_0002").program.chooser is None
        assert policies.load(tmp_path / "version_0003").program.chooser is not None
        found = policies.load(tmp_path / "version_0004").infer(make_observation())
    np.testing.assert_allclose(found.actions, choosing(model, one).infer(make_observation()).actions, atol=SAME)


@pytest.mark.slow
def test_half_precision_shows_the_chooser_its_features_in_full(
    model: FlowVLA, chooser: Chooser, tmp_path: Path
) -> None:
    policy = save_choosing(tmp_path / "policy", model, chooser)
    manifest = export_flow_vla(model, tmp_path / "out", {}, "fp16", policy_folder=policy)
    assert manifest.graphs["prefix"].outputs["features"].dtype == "float32"
    choices = next(rung for rung in verify(tmp_path / "out", "ort-cpu") if rung.name == "choice among draws")
    assert choices.passed, choices.found


def test_the_chooser_in_numpy_thinks_as_the_one_in_torch(
    exported_choosing: Path, model: FlowVLA, chooser: Chooser
) -> None:
    deployment = Deployment.read(exported_choosing)
    assert isinstance(deployment.chooser, DeployedChooser)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((deployment.chooser.noise_rows(), 2)).astype(np.float32)
    drawn = rng.standard_normal((1 + DRAWS, 8, 2)).astype(np.float32)
    observation = make_observation()
    tokens, _ = model.features(*choosing(model, chooser)._inputs(observation))
    features = tokens.detach().flatten(1)
    for done in (0, 2, 8 - TICKS, 7, 8):
        free = (np.arange(8) >= done).astype(np.float32)
        ours = deployment.chooser.choose(features[0].numpy(), 11, noise, drawn, free, done)
        candidates, values = chooser.judged(
            model,
            features,
            torch.tensor([11.0]),
            torch.from_numpy(noise)[None],
            torch.from_numpy(drawn)[None],
            torch.from_numpy(free),
            done,
        )
        np.testing.assert_allclose(ours.values, values[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(ours.actions, candidates[0, ours.chosen].numpy(), atol=SAME)
        assert ours.values.any() == (done <= 8 - TICKS)


@pytest.mark.parametrize("done", [0, 6])
@pytest.mark.parametrize("action", [TICKS - 1, -1])
@pytest.mark.parametrize("candidates", [(0,), (1,), (0, 2), tuple(range(DRAWS))])
def test_a_candidate_that_is_not_finite_is_not_chosen_while_another_is(
    exported_choosing: Path, model: FlowVLA, chooser: Chooser, candidates: tuple[int, ...], action: int, done: int
) -> None:
    """As in torch, also where too few actions are left to judge; of none that is finite the first."""
    ours, rng = Deployment.read(exported_choosing).chooser, np.random.default_rng(0)
    assert ours is not None
    noise = rng.standard_normal((ours.noise_rows(), 2)).astype(np.float32)
    drawn = rng.standard_normal((1 + DRAWS, 8, 2)).astype(np.float32)
    drawn[[1 + candidate for candidate in candidates], action, 0] = np.nan
    tokens, _ = model.features(*choosing(model, chooser)._inputs(make_observation()))
    seen, free = tokens.detach().flatten(1), np.ones(8, np.float32)
    choice = ours.choose(seen[0].numpy(), 11, noise, drawn, free, done)
    tensors = (torch.tensor([11.0]), torch.from_numpy(noise)[None], torch.from_numpy(drawn)[None])
    judged = chooser.judged(model, seen, *tensors, torch.from_numpy(free), done)
    np.testing.assert_allclose(choice.actions, best(*judged)[0].numpy(), atol=SAME)
    assert choice.chosen == 0 if len(candidates) == DRAWS else np.isfinite(choice.actions).all()


TINY_ALONE = (
    "task.image_size=32",
    "budget.demonstrations=3 budget.supervised_steps=8 budget.rounds=2 budget.episodes_per_round=3",
    "budget.steps_per_round=6 budget.evaluation_episodes=2 budget.evaluate_every_round=false",
    "policy.vision.widths=[8,16] policy.expert.width=32 policy.expert.layers=1 policy.expert.heads=2",
    "supervised.actor.batch_size=8 supervised.actor.warmup_steps=2",
    "learning.teach_steps=2 learning.actor.batch_size=8",
    "learning.critic.members=2 learning.critic.hidden=[16] learning.choice.offset=0.1",
    "learning.dynamics.steps=8 learning.value.steps=8",
    "learning.branches.updates=2 learning.branches.branches=16",
    "workers=0 environments_per_worker=3",
)


@pytest.mark.slow
def test_what_practised_alone_is_exported_and_follows_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From `vla-rl train --config alone` to a deployment that chooses as the trained policy, version after version."""
    run, out = tmp_path / "run", tmp_path / "out"
    options = [option for line in TINY_ALONE for option in line.split()]
    assert main(["train", "--config", "alone", "--out", str(run), *options]) == 0
    assert main(["export", str(run), "--version", "1", "--out", str(out), "--calibration", str(run / "episodes")]) == 0
    assert "ok  choice among draws: torch's choice in " in capsys.readouterr().out
    policy = load(out)
    seen = read_observations(run / "episodes", 6)
    for version in (1, 2):
        checkpoint = run / "policies" / f"version_{version:04d}"
        if version > policy.version:
            refresh(policy, checkpoint)
        reference = load_policy(checkpoint)
        assert isinstance(reference, ActingPolicy)
        assert reference.chooser is not None
        assert reference.chooser.edit is not None
        moved = []
        for seed, observation in enumerate(seen):
            policy.reset(seed)
            reference.reset(seed)
            ours, theirs = policy.infer(observation), reference.infer(observation)
            np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-4)
            assert ours.policy_version == version
            reference.chooser, kept = None, reference.chooser
            moved.append(np.abs(reference.infer(observation).actions - ours.actions).max() > 1e-3)
            reference.chooser = kept
        assert any(moved), "these were no plain draws"
