"""Whether a deployment does what its policy does: the ladder from recorded answers of torch to success in simulation.

Needs no torch: the folder holds torch's outputs of the probes. The effect of changed weights is compared with the
float32 graphs, executed node by node.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deploy_trt.runtime.folder import Deployment
from deploy_trt.runtime.ladder import TOLERANCES, difference, selection_limit
from deploy_trt.runtime.loading import open_backend
from deploy_trt.runtime.manifest import Manifest
from deploy_trt.runtime.probe import BackendName
from deploy_trt.runtime.program import Program, Selected, probe_actions, probe_selections, selection_gap
from deploy_trt.runtime.refresh import backend_with, reference_program
from deploy_trt.runtime.units import Normalization
from deploy_trt.runtime.weights import Array, pack, unpack

MUTATION = 0.05  # size of the perturbation, relative to the spread of a weight
_FOLLOWS = 0.2  # largest part of a mutation's effect that may be missed or invented


@dataclass(frozen=True)
class Rung:
    """One step of the ladder, and whether it holds; None: it could not be tried, and ``found`` says why."""

    name: str
    passed: bool | None
    found: str


def verify(folder: Path, backend: BackendName, closed_loop: Callable[[], tuple[bool, str]] | None = None) -> list[Rung]:
    """Climb the ladder for a deployment on a backend.

    ``closed_loop`` runs the policy in a simulator against the one in torch; it gives (equal within the interval,
    figures).

    Raises:
        UserError: if the backend does not run here.
    """
    deployment = Deployment.read(folder)
    manifest, probes = deployment.manifest, deployment.probes()
    program = deployment.program(open_backend(deployment, backend))
    ours, torchs = probe_actions(program, probes), list(probes["actions"])
    tolerance, found = TOLERANCES[manifest.precision], difference(ours, torchs)
    rungs = [
        Rung(f"torch, {backend} in {manifest.precision}", found.within(tolerance), str(found)),
        _robot_units(manifest, ours, torchs),
        *(_selections(program, probes) if manifest.selection else ()),
    ]
    rungs += mutation_test(deployment, program)
    if closed_loop is None:
        rungs.append(Rung("closed loop", None, "not tried: `vla-rl export RUN --out DIR --closed-loop 100`"))
    else:
        passed, sentence = closed_loop()
        rungs.append(Rung("closed loop", passed, sentence))
    return rungs


def _robot_units(manifest: Manifest, ours: Sequence[Array], theirs: Sequence[Array]) -> Rung:
    """Return the whole chunk as the robot gets it: on average within a part of the usual size of each dimension."""
    action, chunk = Normalization(manifest.action), np.s_[..., : manifest.horizon, : manifest.spec.action_dim]
    pairs = zip(ours, theirs, strict=True)
    gaps = np.stack([np.abs(action.denormalize(a[chunk]) - action.denormalize(b[chunk])) for a, b in pairs])
    gaps = gaps.reshape(-1, gaps.shape[-1])
    worst = gaps.max(axis=0)
    limit = TOLERANCES[manifest.precision].mean_abs * np.abs(action.scale) + 1e-6
    found = f"largest difference {worst.max():.2g} in the robot's units (dimension {int(worst.argmax())})"
    return Rung("whole chunk, robot units", bool((gaps.mean(axis=0) <= limit).all()), found)


def _selections(program: Program, probes: Mapping[str, Array]) -> Iterator[Rung]:
    """First the graph alone, on the chunks that torch drew. Compare the executed chunk. It is the candidate that torch
    selected, with its actions, or one with nearly its value, since rounding decides a tie.
    """
    recorded = [Selected(*row) for row in zip(probes["executed"], probes["chosen"], probes["values"], strict=True)]
    gap = selection_gap(probe_selections(program, probes, recorded=True), recorded, program.units)
    limit = selection_limit(program.backend.name)
    yield Rung("selection graph", gap <= limit, f"largest difference to torch {gap:.2g}, allowed is {limit}")
    tolerance = TOLERANCES[program.manifest.precision]
    choices, values = probe_selections(program, probes), probes["values"]
    same = [choice.chosen == theirs.chosen for choice, theirs in zip(choices, recorded, strict=True)]
    spread = np.ptp(values, axis=1) + np.float32(1e-6)
    taken = values[np.arange(len(values)), [choice.chosen for choice in choices]]
    lost = float(((values.max(1) - taken) / spread).mean())
    units, pairs = program.units, zip(choices, probes["executed"], same, strict=True)
    alike = [(units.normalize(ours.actions), units.normalize(theirs)) for ours, theirs, equal in pairs if equal]
    found = difference(*zip(*alike, strict=True)) if alike else None
    passed = found is not None and found.within(tolerance) and lost <= tolerance.lost_value
    sentence = f"torch's choice in {sum(same)} of {len(same)} probes, {lost:.2g} of the spread in value lost"
    yield Rung("choice among draws", passed, f"{sentence}; {found}")


def mutation_test(deployment: Deployment, program: Program) -> Iterator[Rung]:
    """Perturb each group of weights: the backend's actions must move as the exported graphs' do.

    A graph that kept some old weights (merged, folded or not refitted) stands still where it should move.
    """
    if deployment.weights is None:
        yield Rung("mutation", None, "the weights stand inside quantised graphs; its float32 deployment is tested")
        return
    probes = {name: rows[:2] for name, rows in deployment.probes().items()}
    weights = unpack(deployment.weights)
    rng = np.random.default_rng(0)

    def reference(weights: Mapping[str, Array]) -> list[Array]:
        exact = {name: tensor.astype(np.float32) if _is_float(tensor) else tensor for name, tensor in weights.items()}
        return _outputs(reference_program(deployment, pack(exact)), probes)

    before, reference_before = _outputs(program, probes), reference(weights)
    for group in sorted({_group(name) for name in weights}):
        changed = dict(weights)
        for name, tensor in weights.items():
            if _group(name) == group and _is_float(tensor):
                values = tensor.astype(np.float32)
                spread = MUTATION * (values.std() + 1e-2)
                changed[name] = (values + spread * rng.standard_normal(tensor.shape, np.float32)).astype(tensor.dtype)
        backend = backend_with(program.backend, replace(deployment, weights=pack(changed)))
        moved = _moves(before, _outputs(Program(program.manifest, backend), probes))
        should = _moves(reference_before, reference(changed))
        effect, missed = float(np.linalg.norm(should)), float(np.linalg.norm(moved - should))
        passed = missed <= _FOLLOWS * effect + 1e-6
        yield Rung(f"mutation of {group}", passed, f"outputs move by {effect:.2g}, {missed:.2g} of it otherwise")


def _outputs(program: Program, probes: Mapping[str, Array]) -> list[Array]:
    """Drawn actions, and the values of recorded candidates."""
    return [*probe_actions(program, probes), *(found.values for found in probe_selections(program, probes, True))]


def _moves(before: list[Array], after: list[Array]) -> Array:
    return np.concatenate([(b.astype(np.float64) - a).ravel() for a, b in zip(before, after, strict=True)])


def _group(name: str) -> str:
    """Return the part of the network that a weight belongs to: the first two parts of its name."""
    return ".".join(name.split(".")[:2])


def _is_float(tensor: Array) -> bool:
    return tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"
