"""A deployed policy behind the loop's `Policy` protocol. Numpy in, numpy out.

One instance belongs to one thread, except `swap`. Another thread may put new weights in at any time. The chunk in
progress is finished with the old ones.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from deploy_trt.runtime.manifest import Manifest
from deploy_trt.runtime.program import Guidance, Program
from deploy_trt.runtime.text import make_tokenizer
from deploy_trt.runtime.units import Normalization
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import flow_noise, guidance_weights
from vla_rl.core.policy_spec import PolicySpec, padded_with_mean, spec_difference
from vla_rl.core.registry import find
from vla_rl.core.types import ActionChunk, Float32Array, Observation

_STEP_NOISE_SEED = 0x9E3779B9  # so that noise within the steps is not the noise that they start from


class DeployedPolicy:
    """Plans chunks with a `Program` of a deployment folder. Made by `deploy_trt.runtime.load_deployed`.

    Example:
        >>> from deploy_trt.runtime import load_deployed
        >>> deployed = load_deployed(Path("deployments/flow"), require="ort-cpu")
        >>> deployed.infer(env.observe()).actions.shape == (deployed.horizon, 2)
        True
    """

    def __init__(self, program: Program, folder: Path, base: "DeployedPolicy | None" = None) -> None:
        self._program = self._refining = program
        self.folder = folder
        manifest = program.manifest
        self.spec, self.horizon = manifest.spec, manifest.horizon
        self._state = Normalization(manifest.state)
        self._state_mean = np.array(manifest.state_mean, np.float32)
        self._action_mean = np.array(manifest.action_mean, np.float32)
        self._action_size = self.spec.action_sizes
        self._tokenize = make_tokenizer(manifest.text, folder)
        self._base = base if base or not manifest.base else _open_base(manifest.base.name, self.spec)
        self._taken = frozenset((manifest.graphs.get("prefix") or manifest.graphs["policy"]).inputs)
        self.reset(0)

    @property
    def program(self) -> Program:
        """What computes the chunks at the moment."""
        return self._program

    @property
    def manifest(self) -> Manifest:
        """Of the weights that act."""
        return self._program.manifest

    @property
    def version(self) -> int:
        """Counts the updates of the weights."""
        return self._program.manifest.policy_version

    def swap(self, program: Program) -> None:
        """From the next chunk on, use other weights of the same policy."""
        self._program = program

    def twin(self) -> Self:
        """Return a policy with shared weights for another episode at the same time."""
        twin = copy.copy(self)
        twin.reset(0)
        return twin

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed
        self._chunk_id = 0

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick, with exactly the committed actions, float32 [d, A].

        Raises:
            UserError: for a missing camera, a wrong shape, a longer committed prefix than a chunk, or one that the
                policy's graphs do not take.
        """
        program = self._program
        fixed = None if committed is None or len(committed) == 0 else self._given(committed)
        if fixed is not None and not program.manifest.sampler.committed:
            raise UserError(
                f"this deployment of {program.manifest.policy} cannot begin a chunk with given actions; "
                "use execution.strategy 'naive', 'sync' or 'temporal_ensembling'"
            )
        free = np.arange(self.horizon) >= (0 if fixed is None else len(fixed))
        return self._plan(program, observation, free.astype(np.float32), fixed=fixed)

    @property
    def refines(self) -> bool:
        """Whether its residual may move a chunk as it enters (`vla_rl.core.protocols.RefiningPolicy`)."""
        selection = self._program.manifest.selection
        if selection is None or selection.num_samples != 1:
            return False
        return bool(selection.settings["residual"]) and not selection.settings["best_of_n"]["offset_std"]

    def plan(self, observation: Observation) -> ActionChunk:
        """Plan a chunk that is not refined yet."""
        self._refining = self._program
        return self._plan(self._program, observation, np.ones(self.horizon, np.float32), selects=False)

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        """Move the last chunk of `plan` by the residual, at what is seen now, with the weights that planned it."""
        program = self._refining
        given = self._given(chunk.actions)
        noise = np.zeros((program.noise_rows(), program.manifest.sampler.width), np.float32)
        free = np.ones(self.horizon, np.float32)
        drawn, features = np.stack([given, given]), program.features(self.inputs(observation))
        moved = program.select(features, observation.tick, noise, drawn, free, index).actions
        return replace(chunk, actions=np.ascontiguousarray(moved[:, : chunk.actions.shape[1]]))

    def infer_guided(
        self, observation: Observation, previous: Float32Array, delay_ticks: int, exact_gradient: bool
    ) -> ActionChunk:
        """Plan a chunk that goes on from an earlier one: real-time chunking without the gradient.

        Arguments as of `vla_rl.execution.strategies.rtc.GuidedPolicy`. ``exact_gradient`` must be False: a deployed
        graph has no backward pass.

        Raises:
            UserError: as `infer`; for ``exact_gradient``; for a policy that is not a flow.
        """
        program = self._program
        if exact_gradient:
            raise UserError("a deployed policy has no gradients; use a strategy that guides without, or 'naive'")
        if program.manifest.sampler.kind != "flow":
            raise UserError(f"a deployment of kind {program.manifest.sampler.kind!r} cannot be guided; use 'naive'")
        target = np.zeros((self.horizon, program.manifest.sampler.width), np.float32)
        scheduled = self._padded(program.units.normalize(self._given(previous)), program.manifest)
        target[: len(previous)] = scheduled
        guidance = Guidance(target, guidance_weights(self.horizon, delay_ticks, len(previous)))
        free = 1 - guidance.weights  # what is held to the old plan stays
        return self._plan(program, observation, free, guidance=guidance, done=delay_ticks)

    def chunk(self, observation: Observation, noise: Float32Array) -> Float32Array:
        """Plan the chunk of given noise [rows, W] for what it improves. Returns float32 [H, A], raw units."""
        program = self._program
        return program.units.chunk(program.sample(self.inputs(observation), program.starts(noise)).actions)[0]

    def inputs(self, observation: Observation) -> dict[str, Array]:
        """What the first graph reads of an observation, batch 1."""
        self.spec.check(observation)
        images: dict[str, Array] = {f"image.{name}": observation.images[name][None] for name in self.spec.cameras}
        state = self._state.network_input(padded_with_mean(observation.state, self._state_mean))
        every = {**images, "state": state[None], **self._tokenize(observation.task)}
        return {name: array for name, array in every.items() if name in self._taken}

    def _plan(
        self,
        program: Program,
        observation: Observation,
        free: Float32Array,
        fixed: Float32Array | None = None,
        guidance: Guidance | None = None,
        done: int = 0,
        selects: bool = True,
    ) -> ActionChunk:
        """Draw, and select if the policy does, see `Program.select`; ``fixed`` are committed actions, raw units."""
        sampler, tick, start, step_noise = program.manifest.sampler, observation.tick, None, None
        noise = flow_noise(self._seed, tick, program.noise_rows(), sampler.width)
        if sampler.step_noise:
            shape = (sampler.steps, sampler.horizon, sampler.width)
            step_noise = flow_noise(self._seed ^ _STEP_NOISE_SEED, tick, shape[0] * shape[1], shape[2]).reshape(shape)
        if fixed is not None:
            start, done = self._padded(program.units.network_input(fixed), program.manifest), len(fixed)
        starts = program.starts(noise)
        if self._base is not None:
            starts = self._asked(observation, starts)
        drawn = program.sample(self.inputs(observation), starts, start, guidance, step_noise)
        chunks = program.units.chunk(drawn.actions) if self._base is None else drawn.actions
        if fixed is not None:
            chunks[:, :done] = fixed
        raw = chunks[-1]
        if selects and program.manifest.selection is not None:
            raw = program.select(drawn.features, tick, noise, chunks, free, done).actions
        own = np.ascontiguousarray(raw[:, : self._action_size[observation.state.size]])
        self._chunk_id += 1
        return ActionChunk(own, tick, self._chunk_id - 1, program.manifest.policy_version)

    def _asked(self, observation: Observation, starts: Float32Array) -> Float32Array:
        """Chunks of the base policy [1 + N, H, A], raw units. Those that it is not asked for repeat the others."""
        assert self._base is not None
        assert self.manifest.base is not None
        own = np.array([self.manifest.base.start or starts[0], *starts[1 : self.manifest.base.draws]], np.float32)
        chunks = np.stack([self._base.chunk(observation, noise) for noise in own])
        return chunks[np.arange(len(starts)) % len(own)]

    def _given(self, actions: Float32Array) -> Float32Array:
        return self.spec.given(actions, self.horizon, self._action_mean)

    def _padded(self, actions: Float32Array, manifest: Manifest) -> Float32Array:
        """[d, A] -> [d, W], zeros in the dimensions that only the network has."""
        return np.pad(actions, ((0, 0), (0, manifest.sampler.width - actions.shape[1])))


def _open_base(name: str, spec: PolicySpec) -> Any:
    """Return the `vla_rl.policies.named.SeededPolicy` of a base policy, found by name: this package knows only core."""
    base = find("policies", "vla_rl.policies.named:SeededPolicy")(name)
    if differs := spec_difference(base.policy.spec, spec, but=("env_id",)):
        raise UserError(
            f"the base policy {name} has the {differs.name} {differs.found}, this deployment {differs.expected}; start "
            "the base policy of this deployment"
        )
    return base
