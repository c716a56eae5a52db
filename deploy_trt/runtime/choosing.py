"""Choosing among several draws where there is no torch: `vla_rl.policies.choosing` in numpy, in float32.

The critic and the edit are small networks on what the graph ``prefix`` shows of its features; beside the graphs they
cost less than one more session, and are the same on every backend and in every precision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deploy_trt.runtime.manifest import ChooserInfo, FileInfo, Manifest, check_chooser
from deploy_trt.runtime.units import ActionUnits
from deploy_trt.runtime.weights import Array, unpack
from vla_rl.core.errors import CheckpointError, UserError, one_line
from vla_rl.core.flow_sampling import LEAST_VARIED, edit_shares
from vla_rl.core.metadata import CRITIC_FORMAT, CRITIC_VERSION, EDIT, critic_of, read_weights
from vla_rl.core.normalization import INPUT_LIMIT
from vla_rl.core.types import Float32Array

_EPSILON = np.float32(1e-5)  # of the critic's LayerNorm

Pair = tuple[Float32Array, Float32Array]
"""Matrix [..., I, O] and bias [..., O] of a layer; mean and scale, [I], of rows."""


class Choice(NamedTuple):
    """What came of a choice.

    Attributes:
        actions: float32 [H, A], the chunk that is executed, raw units.
        chosen: which of the candidates.
        values: float32 [N], what the critic thinks of each, less what novelty takes; 0 of all where fewer
            actions are left than are judged.
    """

    actions: Float32Array
    chosen: int
    values: Float32Array


class DeployedChooser:
    """Edits candidates and returns the one that the critic thinks most of. Arguments and shapes as of
    `vla_rl.policies.choosing.Chooser`, for one observation.

    Args:
        manifest: of the deployment, with a chooser.
        content: of the file with the weights of critic and edit.

    Raises:
        CheckpointError: for weights that are damaged, not finite, or of another policy.
    """

    def __init__(self, manifest: Manifest, content: bytes) -> None:
        assert manifest.chooser is not None
        self.info, self.content = manifest.chooser, content
        try:
            check_chooser(manifest, self.info)
        except ValueError as error:
            raise CheckpointError(f"the critic does not fit its policy: {error}; export it anew") from error
        self._units, self._horizon = ActionUnits(manifest), manifest.horizon
        continuous = np.ones(manifest.spec.action_dim, np.float32)
        continuous[[dim for dim, _, _ in manifest.discrete]] = 0
        self._free_scale = self._units.scale * continuous
        self._edit_share = edit_shares(self.info.draws, self.info.graded_edit)[:, None]
        weights = unpack(content)
        if not all(np.isfinite(tensor).all() for tensor in weights.values()):
            raise CheckpointError("the critic holds numbers that are not finite; take an older version of the policy")
        try:
            self._scaling: dict[str, Pair] = {
                part: (weights[f"{part}mean"], weights[f"{part}scale"]) for part in self._parts()
            }
            inputs = manifest.graphs["prefix"].outputs["features"].shape[-1] + 1 + 2 * manifest.spec.action_dim
            if any(row.shape != (inputs,) for pair in self._scaling.values() for row in pair):
                raise ValueError(f"the policy's features make rows of {inputs} numbers, it reads others")
            if not all((scale > 0).all() for _, scale in self._scaling.values()):
                raise ValueError("it scales its inputs by numbers that are not positive")
            names = [f"layers.{index}" for index in range(_count(weights, "head.layers."))]
            self._critic: list[Pair] = [
                (weights[f"head.{name}.weight"], weights[f"head.{name}.bias"]) for name in (*names, "out")
            ]
            self._edit: list[Pair] = [  # a rectifier stands between two of them
                (
                    np.ascontiguousarray(weights[f"{EDIT}net.{2 * index}.weight"].T),
                    weights[f"{EDIT}net.{2 * index}.bias"],
                )
                for index in range(_count(weights, f"{EDIT}net."))
            ]
            self._try(manifest)
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(f"the critic does not fit its policy: {one_line(error)}; export it anew") from error

    def noise_rows(self) -> int:
        """Rows of noise of one choice: of every candidate those of a draw, then one for its offset."""
        return self.info.draws * (self._horizon + 1)

    def starts(self, noise: Float32Array) -> Float32Array:
        """What chunks are drawn from, [1 + N, H, A], of noise [`noise_rows`, A]: zero for the usual one, then the
        candidates' noise.
        """
        draws = self._by_candidate(noise)[:, :-1]
        return np.concatenate([np.zeros_like(draws[:1]), draws])

    def choose(
        self,
        features: Float32Array,
        tick: int,
        noise: Float32Array,
        drawn: Float32Array,
        free: Float32Array,
        done: int,
    ) -> Choice:
        """Choose.

        Args:
            features: float32 [F], of the observation.
            tick: since the episode began.
            noise: float32 [`noise_rows`, A].
            drawn: float32 [1 + N, H, A], of `starts`, raw units.
            free: float32 [H], from 0 to 1, how far each action may be moved.
            done: how many actions will have been executed before the chunk is used; those after them are judged.
        """
        usual, candidates = drawn[0], drawn[1:]
        count, ticks = len(candidates), self.info.chunk_ticks
        blank = np.zeros(count, np.float32)
        if done >= self._horizon:
            return best(candidates, blank)
        seen = np.append(features, np.float32(tick))
        judged = np.s_[:, done : done + ticks]
        if self._edit:
            ends = self._units.normalize(candidates[judged][:, (0, -1)])
            edited = self._edit_share * self._edited(seen, ends.reshape(count, -1)) * self._free_scale
            candidates = (candidates + edited[:, None] * free[:, None]).astype(np.float32)
        offsets = np.float32(self.info.offset) * self._free_scale * self._by_candidate(noise)[:, -1]
        offsets[0] = 0
        candidates = candidates + offsets[:, None] * free[:, None]
        chunk = candidates[judged]
        if chunk.shape[1] < ticks:
            return best(candidates, blank)
        deviation = self._units.normalize(chunk) - self._units.normalize(usual[done : done + ticks])
        slope = deviation[:, ticks // 2 :].mean(1) - deviation[:, : ticks // 2].mean(1)
        return best(candidates, self._judged(seen, np.concatenate([deviation.mean(1), slope], 1)))

    def _parts(self) -> tuple[str, ...]:
        return ("", EDIT) if self.info.edit_bound else ("",)

    def _by_candidate(self, noise: Float32Array) -> Float32Array:
        """[N, H + 1, A]."""
        return noise.reshape(self.info.draws, -1, noise.shape[-1])

    def _first(self, seen: Float32Array, own: Float32Array, part: str, layer: Pair) -> Float32Array:
        """The first layer, [..., N, O], of rows that begin alike: what all candidates have in common, [F + 1], goes
        through it once, and each with what is its own, [N, 2 A].
        """
        mean, scale = self._scaling[part]
        matrix, bias = layer
        size = len(seen)
        common = np.clip((seen - mean[:size]) / scale[:size], -INPUT_LIMIT, INPUT_LIMIT)
        its_own = np.clip((own - mean[size:]) / scale[size:], -INPUT_LIMIT, INPUT_LIMIT)
        rows: Array = common[None] @ matrix[..., :size, :] + its_own @ matrix[..., size:, :] + bias
        return rows

    def _edited(self, seen: Float32Array, ends: Float32Array) -> Float32Array:
        """Offsets [N, A], in normalised action units."""
        rows = self._first(seen, ends, EDIT, self._edit[0])
        for matrix, bias in self._edit[1:]:
            rows = np.maximum(rows, 0) @ matrix + bias
        bound = np.float32(self.info.edit_bound)
        offsets: Float32Array = bound * np.tanh(rows / bound)
        return offsets

    def _judged(self, seen: Float32Array, deviation: Float32Array) -> Float32Array:
        """Mean logit of the members, less what novelty takes, [N]."""
        rows = self._first(seen, deviation, "", self._critic[0])  # [M, N, O]
        for matrix, bias in self._critic[1:]:
            rows -= rows.mean(-1, keepdims=True)
            rows /= np.sqrt(np.square(rows).mean(-1, keepdims=True) + _EPSILON)
            rows = np.maximum(rows, 0) @ matrix + bias
        logits = rows[..., 0]  # [M, N]
        mean, scale = (row[len(seen) :] for row in self._scaling[""])
        novelty = np.square((deviation - mean) / np.maximum(scale, np.float32(LEAST_VARIED))).mean(-1)
        values: Float32Array = logits.mean(0) - np.float32(self.info.novelty_cost) * novelty
        return values

    def _try(self, manifest: Manifest) -> None:
        """Choose once for nothing. Raises ValueError where sizes do not fit."""
        features = np.zeros(manifest.graphs["prefix"].outputs["features"].shape[-1], np.float32)
        size = manifest.spec.action_dim
        noise = np.zeros((self.noise_rows(), size), np.float32)
        drawn = np.zeros((1 + self.info.draws, self._horizon, size), np.float32)
        choice = self.choose(features, 0, noise, drawn, np.ones(self._horizon, np.float32), 0)
        if choice.values.shape != (self.info.draws,) or choice.actions.shape != (self._horizon, size):
            raise ValueError(f"values {choice.values.shape} of actions {choice.actions.shape}")


def best(candidates: Float32Array, values: Float32Array) -> Choice:
    """Of candidates [N, H, A] with values [N] the one that `vla_rl.policies.choosing.choice` chooses."""
    known = np.where(np.isfinite(values), values, np.finfo(np.float32).min)
    chosen = int(np.where(np.isfinite(candidates).all((1, 2)), known, -np.inf).argmax())
    return Choice(candidates[chosen], chosen, values)


def read_critic(policy: Path) -> tuple[ChooserInfo, bytes] | None:
    """What a deployment takes of the critic in a policy's folder, and the content of its weights; None: it has none.

    Raises:
        CheckpointError: if it is damaged or has gone.
        UserError: if there is an edit and no critic.
    """
    folder = critic_of(policy)
    if folder is None:
        return None
    about, content = read_weights(folder, CRITIC_FORMAT, CRITIC_VERSION)
    if about["config"] is None:
        raise UserError(
            f"{folder} holds an edit without a critic, which acts in torch only; export the policy without it: "
            "--without-critic"
        )
    try:
        choice, edit = about["choice"], about["edit"]
        bound = 0.0 if edit is None else float(edit["bound"])
        ticks = int(about["config"]["chunk_ticks"])
        file = FileInfo(str(about["weights"]), str(about["sha256"]))
        graded, novelty_cost = bool(choice["graded_edit"]), float(choice["novelty_cost"])
        draws, offset = int(choice["draws"]), float(choice["offset"])
        return ChooserInfo(file, draws, offset, ticks, bound, graded, novelty_cost), content
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is damaged: {one_line(error)}; copy it anew") from error


def _count(weights: Mapping[str, Array], prefix: str) -> int:
    """How many layers there are."""
    return sum(name.startswith(prefix) and name.endswith(".weight") for name in weights)
