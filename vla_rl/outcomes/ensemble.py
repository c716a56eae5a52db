"""Our success detector: five small networks by folds on a policy's features of three observations.

The policy is a fixed one, such as the supervised policy that practice begins with. So labels stay valid while another
policy learns. Demonstrations and labeled successes give positive ends. Half of the weight of the negatives is on the
ends of failures, half on any tick without success. Trained on ends alone, a detector takes many other ticks for
successes. The members disagree, or the window is unlike every known one: then the detector is unsure.

Threading law: torch is imported where a detector learns or reads pictures.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.files import digest_of, write_atomic
from vla_rl.core.types import Episode, Float32Array, Observation, Origin
from vla_rl.outcomes.detector import OFFSETS, Judgment, Window, has_every_picture, observation_at
from vla_rl.outcomes.files import VERSION, check_folder, judgment_of, read_about
from vla_rl.outcomes.inputs import readable

if TYPE_CHECKING:
    from vla_rl.outcomes.judge_network import JudgeNetwork

_TICKS = 8  # random ticks without success of each labeled episode
_AT_ONCE = 64  # observations in one forward pass


class TooFewLabels(UserError):
    """There are too few labeled episodes of one outcome to train a detector."""


def outcome_of(success: bool | None, origin: Origin) -> bool | None:
    """Return the outcome of an episode; None: unknown. A demonstration without outcome is a success."""
    return True if success is None and origin is Origin.DEMO else success


@dataclass(frozen=True, eq=False)
class Track:
    """The features of an episode, and its outcome.

    Attributes:
        features: float32 [N, F], of every observation, the one after the last command last.
        success: Outcome; None: unknown.
    """

    features: Float32Array
    success: bool | None

    def rows(self, ticks: Sequence[int] | None = None) -> Float32Array:
        """Return what the networks read at ticks, float32 [B, 3 F]. None: at the end."""
        ends = np.array([len(self.features) - 1] if ticks is None else ticks)
        steps = np.maximum(ends[:, None] - np.array(OFFSETS), 0)  # [B, 3]
        return self.features[steps].reshape(len(ends), -1)


class PolicyFeatures:
    """The features of observations, by a fixed policy.

    Args:
        policy: Folder of the policy.

    Raises:
        UserError: If the policy gives no features.
    """

    def __init__(self, policy: Path) -> None:
        from vla_rl.policies.base import example_row
        from vla_rl.policies.folders import load_model

        self.folder = policy
        self.model, _ = load_model(policy)
        self.model.eval()
        self.size = len(example_row(self.model))

    def of(self, observations: Sequence[Observation], dimensions: Dimensions = UNDECLARED) -> Float32Array:
        """Return the features of observations of a robot, float32 [N, F].

        Raises:
            UserError: If the policy cannot read them, see `vla_rl.outcomes.inputs.readable`.
        """
        import torch

        from vla_rl.policies.base import flat_features

        rows, spec, mean_state = [], self.model.spec, np.asarray(self.model.statistics.state.mean, np.float32)
        for start in range(0, len(observations), _AT_ONCE):
            some = [readable(each, dimensions, spec, mean_state) for each in observations[start : start + _AT_ONCE]]
            images = {name: torch.from_numpy(np.stack([each.images[name] for each in some])) for name in spec.cameras}
            state = torch.from_numpy(np.stack([each.state for each in some]))
            text = self.model.tokenize([each.task for each in some])
            with torch.no_grad():
                rows.append(flat_features(*self.model.features(images, state, text)).float().numpy())
        return np.concatenate(rows)

    def track(self, episode: Episode) -> Track:
        """Return the features of all observations of an episode. A demonstration without outcome is a success.

        Raises:
            UserError: If the episode lacks pictures.
        """
        if not has_every_picture(episode):
            raise UserError(f"episode {episode.episode_id!r} has no picture at every step, so it cannot be judged")
        count = len(episode) + (episode.final_state is not None)
        features = self.of([observation_at(episode, tick) for tick in range(count)], episode.state_dimensions)
        return Track(features, outcome_of(episode.success, episode.origin))


class SuccessDetector:
    """Detects success from a policy's features, and says when it is unsure.

    Args:
        network: Trained networks.
        features: Policy that the networks read.
        name: Name and version, which every label carries.
        about: Numbers of labels and out-of-fold errors.

    Example:
        >>> failures = [replace(each, success=False) for each in demos]
        >>> detector = SuccessDetector.fit([*demos, *failures], "runs/dot/policies/version_0000")
        >>> detector.save("detectors/dot")
        >>> SuccessDetector.load("detectors/dot").name
        'ensemble-6'
    """

    def __init__(self, network: "JudgeNetwork", features: PolicyFeatures, name: str, about: dict[str, Any]) -> None:
        self._network, self._features, self.name, self.about = network, features, name, about

    @classmethod
    def fit(cls, episodes: Iterable[Episode], policy: Path | str, seed: int = 0) -> "SuccessDetector":
        """Train a detector on the labeled ones among episodes.

        Args:
            episodes: Episodes; those without an outcome are skipped, except demonstrations, which are successes.
            policy: Folder of a trained policy, whose features are read.
            seed: Seed of the initial weights.

        Returns:
            Detector.

        Raises:
            UserError: If there are fewer than two successes or two failures, or the policy gives no features.
        """
        features = PolicyFeatures(Path(policy))
        known = (each for each in episodes if outcome_of(each.success, each.origin) is not None)
        return cls.fit_tracks([features.track(episode) for episode in known], features, seed)

    @classmethod
    def fit_tracks(cls, tracks: Sequence[Track], features: PolicyFeatures, seed: int = 0) -> "SuccessDetector":
        """Train a detector on tracks. Arguments and errors as of `fit`."""
        from vla_rl.outcomes.judge_network import Labeled, train

        known = [track for track in tracks if track.success is not None]
        counts = [sum(track.success is outcome for track in known) for outcome in (True, False)]
        if min(counts) < 2:
            raise TooFewLabels(
                f"a detector needs two successes and two failures, and has {counts[0]} and {counts[1]}. "
                "Label more episodes (vla-rl label)"
            )
        random = np.random.default_rng(seed)
        rows, success, is_end, episode = [], [], [], []
        for number, track in enumerate(known):
            # Of a success only the first half is surely before it: some recordings go on after the success.
            before = len(track.features) - 1 if not track.success else len(track.features) // 2
            ticks = random.integers(0, max(before, 1), _TICKS).tolist()
            rows += [track.rows(), track.rows(ticks)]
            success += [bool(track.success)] + [False] * _TICKS
            is_end += [True] + [False] * _TICKS
            episode += [number] * (1 + _TICKS)
        data = Labeled(np.concatenate(rows), np.array(success), np.array(is_end), np.array(episode))
        network, errors = train(data, [bool(track.success) for track in known], seed)
        about = {"successes": counts[0], "failures": counts[1], **errors}
        return cls(network, features, f"ensemble-{counts[0] + counts[1]}", about)

    def judge(self, window: Window | Episode) -> Judgment:
        """Judge the moment at which a window ends, or the end of an episode.

        Args:
            window: Window of observations, or an episode.

        Returns:
            Success, failure or unsure, with the probability of success.
        """
        if isinstance(window, Episode):
            return self.judge_track(self._features.track(window))
        return self.judge_rows(self._features.of(window.observations, window.state_dimensions).reshape(1, -1))[0]

    def judge_track(self, track: Track) -> Judgment:
        """Judge the end of an episode by its features."""
        return self.judge_rows(track.rows())[0]

    def judge_rows(self, rows: Float32Array) -> list[Judgment]:
        """Judge windows by their features, float32 [B, 3 F]."""
        return [judgment_of(*each) for each in zip(*self.members(rows), strict=True)]

    def members(self, rows: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return the probabilities of the members, float32 [B, M], and the novelty of windows, float32 [B]."""
        import torch

        with torch.no_grad():
            members, novelty = self._network(torch.from_numpy(rows))
        return members.numpy(), novelty.numpy()

    def save(self, folder: Path | str) -> None:
        """Write the detector with the policy that it reads; a saved detector in the folder is replaced.

        Raises:
            UserError: If the folder holds an exported detector.
        """
        path = Path(folder)
        check_folder(path, "detector.onnx")
        path.mkdir(parents=True, exist_ok=True)
        if self._features.folder.resolve() != (path / "policy").resolve():
            shutil.rmtree(path / "policy", ignore_errors=True)
            shutil.copytree(self._features.folder, path / "policy")
        weights = self._network.to_bytes()
        write_atomic(path / "detector.safetensors", weights)
        about = {"version": VERSION, "name": self.name, "weights": digest_of(path / "detector.safetensors")}
        write_atomic(path / "detector.json", json.dumps({**about, "about": self.about}, indent=1).encode())

    def export(self, folder: Path | str) -> None:
        """Write one graph for `vla_rl.outcomes.deployed.DeployedDetector`, which needs no torch.

        Raises:
            UserError: If the features of the policy cannot be exported, or the folder holds a saved detector.
        """
        from vla_rl.outcomes.export import export_detector

        check_folder(Path(folder), "detector.safetensors")
        export_detector(self._features.model, self._network, self.name, Path(folder), VERSION)

    @classmethod
    def load(cls, folder: Path | str) -> "SuccessDetector":
        """Load a detector.

        Raises:
            UserError: If the folder holds no detector, or a damaged one.
        """
        from vla_rl.outcomes.judge_network import JudgeNetwork

        path = Path(folder)
        about = read_about(path, "detector.safetensors")
        network = JudgeNetwork.from_bytes((path / "detector.safetensors").read_bytes())
        return cls(network, PolicyFeatures(path / "policy"), about["name"], about["about"])
