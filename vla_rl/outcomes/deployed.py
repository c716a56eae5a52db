"""The exported success detector: judges at every tick without torch, on ONNX Runtime."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from deploy_trt.runtime.manifest import TextInfo
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.text import make_tokenizer
from vla_rl.core.config import config_from_dict
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.robot_matching import renamed
from vla_rl.core.types import Float32Array, Observation
from vla_rl.outcomes.detector import OFFSETS, Judgment, Window
from vla_rl.outcomes.files import judgment_of, read_about
from vla_rl.outcomes.inputs import readable

GRAPH = "detector"
RUN_TICKS = 16
"""Ticks in a row that a success needs during an episode. Fewer cut more attempts short before they succeed."""
_RUN_SURE = 0.95  # what more than half of the members must give in each of these ticks


def counts(members: Float32Array, novelty: Float32Array | float) -> Any:
    """Return whether a tick counts towards a success during an episode, by the probabilities of the members [..., M].

    A run of many ticks needs no agreement of all members: their median loses fewer runs, at as few wrong ones.
    """
    return (np.median(members, axis=-1) > _RUN_SURE) & (np.asarray(novelty) <= 1)


class DeployedDetector:
    """A detector that `SuccessDetector.export` wrote. It needs no torch.

    Args:
        folder: Folder of the exported detector.
        rename: Its policy's name of a dimension -> the robot's, where the two mean the same. Others are ignored.

    Raises:
        UserError: If the folder holds no exported detector, a damaged one, or one that an earlier program exported.

    Example:
        >>> from vla_rl.outcomes.deployed import DeployedDetector
        >>> detector = DeployedDetector("deployments/dot/detector")  # doctest: +SKIP
        >>> detector.step(robot.read())                              # doctest: +SKIP
        Judgment(success=None, probability=0.0, reason='')
    """

    def __init__(self, folder: Path | str, rename: Mapping[str, str] = MappingProxyType({})) -> None:
        path = Path(folder)
        about = read_about(path, f"{GRAPH}.onnx")
        self.name: str = about["name"]
        if "spec" not in about:
            raise UserError(f"{path} holds no names, units and sizes of the state, as older exports. Export it anew")
        spec = config_from_dict(PolicySpec, about["spec"], where=str(path / "detector.json"))
        known = {name for pair in spec.dimensions for dimensions in pair for name in dimensions.names}
        self._spec = renamed(spec, {name: robots for name, robots in rename.items() if name in known})
        self._mean_state = np.array(about["state_mean"], np.float32)
        self._size = int(about["features"])
        self._tokenize = make_tokenizer(TextInfo(**about["text"]), path)
        self._backend = OrtBackend("ort-cpu", {GRAPH: (path / f"{GRAPH}.onnx").read_bytes()}, None)
        self.reset()

    def reset(self, state_dimensions: Dimensions = UNDECLARED) -> None:
        """Begin an episode of a robot.

        Args:
            state_dimensions: Names and units of the robot's state, as declared.
        """
        self._dimensions = state_dimensions
        self._past: deque[Float32Array] = deque(maxlen=OFFSETS[0])  # newest last
        self._row = 0

    def step(self, observation: Observation) -> Judgment:
        """Judge the newest observation of an episode, once a tick.

        An outcome needs `RUN_TICKS` ticks in a row, so an early wrong success does not end an attempt.

        Args:
            observation: What the robot senses at this tick.

        Returns:
            Success, or unsure. During an episode a failure is not final, so it is reported as unsure.
        """
        past = [self._past[-offset] if len(self._past) >= offset else None for offset in OFFSETS[:-1]]
        oldest = self._past[0] if self._past else None
        observation = self._readable(observation, self._dimensions)
        features, members, novelty = self._look(observation, [oldest if each is None else each for each in past])
        self._past.append(features)
        self._row = self._row + 1 if counts(members, novelty) else 0
        judgment = judgment_of(members, novelty)
        return Judgment(True if self._row >= RUN_TICKS else None, judgment.probability, judgment.reason)

    def judge(self, window: Window) -> Judgment:
        """Judge the moment at which a window ends."""
        features: list[Float32Array | None] = [None] * (len(OFFSETS) - 1)
        *earlier, newest = (self._readable(each, window.state_dimensions) for each in window.observations)
        for place, observation in enumerate(earlier):
            features[place] = self._look(observation, [None] * (len(OFFSETS) - 1))[0]
        return judgment_of(*self._look(newest, features)[1:])

    def _readable(self, observation: Observation, dimensions: Dimensions) -> Observation:
        if missing := sorted({*self._spec.cameras} - {*observation.images}):
            raise UserError(f"the observation lacks the cameras {missing}; the detector reads {[*self._spec.cameras]}")
        return readable(observation, dimensions, self._spec, self._mean_state)

    def _look(
        self, observation: Observation, past: list[Float32Array | None]
    ) -> tuple[Float32Array, Float32Array, float]:
        """Return the features of an observation, the members' probabilities and the novelty. Past features that are
        None are those of the observation itself: an episode begins at rest.
        """
        known = np.array([each is not None for each in past], np.float32)
        rows = np.stack([np.zeros(self._size, np.float32) if each is None else each for each in past])
        feeds: dict[str, Any] = {f"image.{name}": observation.images[name][None] for name in self._spec.cameras}
        feeds |= {"state": observation.state[None], "text": self._tokenize(observation.task)["text"]}
        feeds |= {"past": rows, "known": known}
        found = {name: self._backend.get(value) for name, value in self._backend.run(GRAPH, feeds).items()}
        return found["features"][0].copy(), found["members"][0], float(found["novelty"][0])
