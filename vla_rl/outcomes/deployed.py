"""The exported success detector: judges at every tick without torch, on ONNX Runtime."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from deploy_trt.runtime.manifest import TextInfo
from deploy_trt.runtime.ort import OrtBackend
from deploy_trt.runtime.text import make_tokenizer
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array, Observation
from vla_rl.outcomes.detector import OFFSETS, Judgment, Window
from vla_rl.outcomes.files import judgment_of, read_about

GRAPH = "detector"
_RUN_TICKS = 8  # successes in a row that count during an episode: three end 10 % of the attempts too early


class DeployedDetector:
    """A detector that `SuccessDetector.export` wrote. It needs no torch.

    Args:
        folder: Folder of the exported detector.

    Raises:
        UserError: If the folder holds no exported detector, or a damaged one.

    Example:
        >>> from vla_rl.outcomes.deployed import DeployedDetector
        >>> detector = DeployedDetector("deployments/dot/detector")  # doctest: +SKIP
        >>> detector.step(robot.read())                              # doctest: +SKIP
        Judgment(success=None, probability=0.0, reason='')
    """

    def __init__(self, folder: Path | str) -> None:
        path = Path(folder)
        about = read_about(path, f"{GRAPH}.onnx")
        self.name: str = about["name"]
        self._cameras: list[str] = about["cameras"]
        self._size = int(about["features"])
        self._tokenize = make_tokenizer(TextInfo(**about["text"]), path)
        self._backend = OrtBackend("ort-cpu", {GRAPH: (path / f"{GRAPH}.onnx").read_bytes()}, None)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._past: deque[Float32Array] = deque(maxlen=OFFSETS[0])  # newest last
        self._row = 0

    def step(self, observation: Observation) -> Judgment:
        """Judge the newest observation of an episode, once a tick.

        An outcome needs `_RUN_TICKS` successes in a row, so one early wrong success does not end an attempt.

        Args:
            observation: What the robot senses at this tick.

        Returns:
            Success, or unsure. During an episode a failure is not final, so it is reported as unsure.
        """
        past = [self._past[-offset] if len(self._past) >= offset else None for offset in OFFSETS[:-1]]
        oldest = self._past[0] if self._past else None
        features, judgment = self._judge(observation, [oldest if each is None else each for each in past])
        self._past.append(features)
        self._row = self._row + 1 if judgment.success else 0
        return Judgment(True if self._row >= _RUN_TICKS else None, judgment.probability, judgment.reason)

    def judge(self, window: Window) -> Judgment:
        """Judge the moment at which a window ends."""
        features: list[Float32Array | None] = [None] * (len(OFFSETS) - 1)
        for place, observation in enumerate(window.observations[:-1]):
            features[place], _ = self._judge(observation, [None] * (len(OFFSETS) - 1))
        return self._judge(window.observations[-1], features)[1]

    def _judge(self, observation: Observation, past: list[Float32Array | None]) -> tuple[Float32Array, Judgment]:
        """Return the features of an observation, and the judgment. Features that are None are those of the
        observation itself: an episode begins at rest.
        """
        if missing := sorted({*self._cameras} - {*observation.images}):
            raise UserError(f"the observation lacks the cameras {missing}; the detector reads {self._cameras}")
        known = np.array([each is not None for each in past], np.float32)
        rows = np.stack([np.zeros(self._size, np.float32) if each is None else each for each in past])
        feeds: dict[str, Any] = {f"image.{name}": observation.images[name][None] for name in self._cameras}
        feeds |= {"state": observation.state[None], "text": self._tokenize(observation.task)["text"]}
        feeds |= {"past": rows, "known": known}
        found = {name: self._backend.get(value) for name, value in self._backend.run(GRAPH, feeds).items()}
        return found["features"][0].copy(), judgment_of(found["members"][0], float(found["novelty"][0]))
