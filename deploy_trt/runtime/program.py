"""Graphs on a backend -> a chunk in normalized units: the sampling loop around them.

A program belongs to one version of the weights and is replaced as a whole when new ones come.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deploy_trt.runtime.backend import Backend, Value
from deploy_trt.runtime.manifest import Manifest
from deploy_trt.runtime.units import ActionUnits
from deploy_trt.runtime.weights import Array
from vla_rl.core.flow_sampling import guidance_strength
from vla_rl.core.types import Float32Array

INDICATOR_NONE, INDICATOR_POSITIVE = 0, 2  # of vla_rl.policies.base.Indicator
GUIDANCE_BETA = 5.0  # largest strength of guidance, as in the paper


@dataclass(frozen=True)
class Guidance:
    """What a chunk is pulled to (real-time chunking with the Jacobian replaced by the identity).

    The target is float32 [H, W], normalized; the weights, [H], say how firmly each action is held.
    """

    target: Float32Array
    weights: Float32Array


class Draws(NamedTuple):
    """Chunks for one observation, float32 [B, rows, W], normalized.

    It is one, or with a selection the usual one and N candidates. ``features`` [1, F] is what graph ``selection`` reads
    of the observation, on the backend; None: there is none.
    """

    actions: Float32Array
    features: Value | None = None


class Selected(NamedTuple):
    """What graph ``selection`` returns: the chunk that is executed, float32 [H, A], raw units.

    ``chosen`` is the index of the candidate. ``values`` are those of all candidates, float32 [N]; 0 where too few
    actions are left to judge.
    """

    actions: Float32Array
    chosen: int
    values: Float32Array


class Program:
    """The sampler of a manifest on a backend that holds all its graphs."""

    def __init__(self, manifest: Manifest, backend: Backend) -> None:
        self.manifest, self.backend = manifest, backend
        self.units = ActionUnits(manifest)
        self._stepped: dict[int, list[dict[str, Value]]] = {}
        sampler = manifest.sampler
        self._by_velocity: bool = sampler.kind == "flow" and sampler.guidance_scale != 1.0

    def sample(
        self,
        inputs: Mapping[str, Array],
        noise: Float32Array,
        committed: Float32Array | None = None,
        guidance: Guidance | None = None,
        step_noise: Float32Array | None = None,
    ) -> Draws:
        """Draw as many chunks for one observation as the graphs draw at once.

        Args:
            inputs: Of the first graph, batch 1.
            noise: float32 [B, rows, W]; with a base policy, the chunks that it has drawn.
            committed: float32 [d, W], normalized; every chunk begins with them.
            guidance: See there.
            step_noise: float32 [steps, rows, W], of samplers that want it.
        """
        kind, backend = self.manifest.sampler.kind, self.backend
        features = {name: backend.put(array) for name, array in inputs.items()}
        if kind == "base":  # which has drawn them
            return Draws(noise, backend.run("prefix", features)["features"])
        if kind in ("direct", "unrolled"):
            if kind == "unrolled":
                features["noise"] = backend.put(noise)
            return Draws(backend.get(backend.run("policy", features)["actions"]))
        length = 0 if committed is None else len(committed)
        start = noise.copy()
        if committed is not None:
            start[:, :length] = committed
        stepped = self._steps(length, step_noise)
        if guidance is None and not self._by_velocity:
            prefix = backend.run("prefix", self._with_indicator(features, INDICATOR_POSITIVE))
            return Draws(backend.integrate(start, self._read_by_step(prefix), stepped), prefix.get("features"))
        return self._integrate(features, start, length, stepped, guidance)

    def features(self, inputs: Mapping[str, Array]) -> Value:
        """Return what graph ``selection`` reads of an observation, without a draw."""
        given = {name: self.backend.put(array) for name, array in inputs.items()}
        return self.backend.run("prefix", self._with_indicator(given, INDICATOR_POSITIVE))["features"]

    def noise_rows(self) -> int:
        """Rows of noise of one decision: of every candidate those of a draw, then one for its offset."""
        selection, rows = self.manifest.selection, self.manifest.sampler.horizon
        return rows if selection is None else selection.num_samples * (rows + 1)

    def starts(self, noise: Float32Array) -> Float32Array:
        """Return starting points [B, rows, W]: zero for the usual chunk, then noise [`noise_rows`, W]."""
        selection = self.manifest.selection
        if selection is None:
            return noise[None]
        draws = noise.reshape(selection.num_samples, -1, noise.shape[-1])[:, :-1]
        return np.concatenate([np.zeros_like(draws[:1]), draws])

    def select(
        self, features: Value, tick: int, noise: Float32Array, drawn: Float32Array, free: Float32Array, done: int
    ) -> Selected:
        """Move the candidates and return the best one. One run of graph ``selection``.

        Args:
            features: Of `Draws`.
            tick: Since the episode began.
            noise: float32 [`noise_rows`, A].
            drawn: float32 [1 + N, H, A], of `starts`, raw units.
            free: float32 [H], from 0 to 1, how far each action may be moved.
            done: Number of actions that will have been executed before the chunk is used; those after them are judged.
        """
        put, get = self.backend.put, self.backend.get
        arrays = {"noise": noise[None], "drawn": drawn[None], "free": free, "done": np.array([done])}
        feeds = {name: put(array) for name, array in arrays.items()}
        feeds |= {"features": features, "tick": put(np.array([tick], np.float32))}
        found = self.backend.run("selection", feeds)
        return Selected(get(found["actions"])[0], int(get(found["chosen"])[0]), get(found["values"])[0])

    def _integrate(
        self,
        features: dict[str, Value],
        start: Float32Array,
        committed: int,
        stepped: list[dict[str, Value]],
        guidance: Guidance | None,
    ) -> Draws:
        """Euler steps with a velocity that is not the graph's alone; with classifier-free guidance it is
        v_none + scale (v - v_none).
        """
        backend, scale = self.backend, np.float32(self.manifest.sampler.guidance_scale)
        prefixes = []
        for indicator in (INDICATOR_POSITIVE, INDICATOR_NONE) if self._by_velocity else (INDICATOR_POSITIVE,):
            prefix = backend.run("prefix", self._with_indicator(features, indicator))
            # A copy: what a graph gives is valid only until it runs again.
            prefixes.append({name: backend.put(backend.get(value).copy()) for name, value in prefix.items()})
        actions: Float32Array = start
        for index, inputs in enumerate(stepped):
            tau, feeds = index / len(stepped), {"actions": backend.put(actions), **inputs}
            outputs = (backend.run("step", {**feeds, **self._read_by_step(prefix)}) for prefix in prefixes)
            speed, *unconditional = [backend.get(found["velocity"]).copy() for found in outputs]
            if unconditional:
                speed = unconditional[0] + scale * (speed - unconditional[0])
            if guidance is not None:
                clean = actions + np.float32(1 - tau) * speed
                rows = guidance.weights[:, None]
                pull = np.where(rows > 0, rows * (guidance.target - clean), np.float32(0))
                speed = (speed + guidance_strength(tau, GUIDANCE_BETA) * pull).astype(np.float32)
            speed[:, :committed] = 0
            actions = (actions + speed / np.float32(len(stepped))).astype(np.float32)
        return Draws(actions, prefixes[0].get("features"))

    def _read_by_step(self, prefix: Mapping[str, Value]) -> dict[str, Value]:
        wanted = self.manifest.graphs["step"].inputs
        return {name: value for name, value in prefix.items() if name in wanted}

    def _with_indicator(self, features: dict[str, Value], indicator: int) -> dict[str, Value]:
        if "indicator" not in self.manifest.graphs["prefix"].inputs:
            return features
        return {**features, "indicator": self.backend.put(np.array([indicator], np.int64))}

    def _steps(self, committed: int, step_noise: Float32Array | None) -> list[dict[str, Value]]:
        """Return the inputs of each step. They depend on the weights, but not on the observation: computed once."""
        if committed not in self._stepped:
            self._stepped[committed] = self._new_steps(committed)
        steps = self._stepped[committed]
        if step_noise is None:
            return steps
        noisy = (self.backend.put(row[None]) for row in step_noise)
        return [{**inputs, "step_noise": noise} for inputs, noise in zip(steps, noisy, strict=True)]

    def _new_steps(self, committed: int) -> list[dict[str, Value]]:
        backend, sampler = self.backend, self.manifest.sampler
        columns: dict[str, Array] = {
            name: np.array(rows, self.manifest.graphs["step"].inputs[name].dtype)
            for name, rows in sampler.schedule.items()
        }
        fixed: dict[str, Value] = {}
        if "time" in self.manifest.graphs:
            decided = np.arange(sampler.horizon) < committed
            fixed["step_size"] = backend.put(
                np.where(decided, 0, np.float32(1 / sampler.steps))[None].astype(np.float32)
            )
            times = np.arange(sampler.steps, dtype=np.float32)[:, None] / np.float32(sampler.steps)
            times = np.where(decided, np.float32(1), times)
            columns["time_modulation"] = backend.get(
                backend.run("time", {"time": backend.put(times)})["time_modulation"]
            )
        return [
            {**fixed, **{name: backend.put(rows[index]) for name, rows in columns.items()}}
            for index in range(sampler.steps)
        ]


def probe_actions(program: Program, probes: Mapping[str, Array]) -> list[Array]:
    """What a program draws for recorded inputs, normalized: each float32 [rows, W], of several draws [B, rows, W]."""
    several = probes["noise"].ndim == 4  # [K, B, rows, W]
    return [(drawn.actions if several else drawn.actions[0]).copy() for drawn in _draws(program, probes)]


def probe_selections(program: Program, probes: Mapping[str, Array], recorded: bool = False) -> list[Selected]:
    """What a program selects for recorded inputs: among its own draws, or among those that torch recorded. Draws of a
    base policy are always recorded ones, and the features always the program's own.
    """
    if program.manifest.selection is None:
        return []
    free, put = np.ones(program.manifest.horizon, np.float32), program.backend.put
    draws: Iterable[Draws] = _draws(program, probes)
    if recorded and program.manifest.base is None:
        pairs = zip(probes["actions"], probes["features"], strict=True)
        draws = (Draws(actions, put(features[None])) for actions, features in pairs)
    return [
        program.select(drawn.features, int(tick), noise, program.units.chunk(drawn.actions), free, 0)
        for drawn, tick, noise in zip(draws, probes["tick"], probes["selection_noise"], strict=True)
    ]


def selection_gap(ours: Sequence[Selected], theirs: Sequence[Selected], units: ActionUnits) -> float:
    """Largest difference of values, relative where they are above 1, and of actions where both chose the same."""
    gaps = [0.0]
    for one, other in zip(ours, theirs, strict=True):
        gaps.append(float((np.abs(one.values - other.values) / np.maximum(np.abs(other.values), 1)).max()))
        if one.chosen == other.chosen:
            gaps.append(float(np.abs(units.normalize(one.actions) - units.normalize(other.actions)).max()))
        else:  # a tie is decided by rounding
            gaps.append(float(other.values.max() - other.values[one.chosen]))
    return float(np.max(gaps))  # not a number if one is


def _draws(program: Program, probes: Mapping[str, Array]) -> Iterator[Draws]:
    inputs = {name.removeprefix("input."): rows for name, rows in probes.items() if name.startswith("input.")}
    step_noise = probes.get("step_noise")
    for index, noise in enumerate(probes["noise"]):
        yield program.sample(
            {name: rows[index : index + 1] for name, rows in inputs.items()},
            noise.reshape(-1, *noise.shape[-2:]),
            step_noise=None if step_noise is None else step_noise[index],
        )
