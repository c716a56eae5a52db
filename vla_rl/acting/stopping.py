"""``vla-rl rollout --detector``: an attempt ends when a success detector has found success, and the gate brakes it."""

import logging
from typing import Any

from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Float32Array, Observation
from vla_rl.outcomes.deployed import DeployedDetector

logger = logging.getLogger(__name__)


class StopsAtSuccess:
    """A robot whose attempts also end when a detector has found success.

    The outcome of the attempt stays what the robot or a person says. A simulated world judges its last step.
    ``vla-rl label`` labels the others later, with the detector as its author.

    Args:
        robot: An `EpisodicRobot`.
        detector: Judges the first observation of an attempt, and one after each command.

    Attributes:
        found: Whether the detector has found success in this attempt.
    """

    def __init__(self, robot: Any, detector: DeployedDetector) -> None:
        self._robot, self._detector = robot, detector
        self.found = self._is_due = False
        self._ticks = 0
        self._judge: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_robot"], name)

    def reset(self, seed: int) -> None:
        """Bring the world to the start of an attempt. An observation that the detector cannot read is refused here,
        before the robot moves.
        """
        self._robot.reset(seed)
        self._detector.reset(declared(self._robot)[0])
        self._ticks, self._judge, self.found, self._is_due = 0, None, False, False
        self._detector.step(self._robot.read())

    def read(self) -> Observation:
        """Return the newest observation. The first one after a command is judged."""
        observation: Observation = self._robot.read()
        if self._is_due:
            self._is_due = False
            self._ticks += 1
            if self._detector.step(observation).success and not self.found:
                self.found = True
                logger.info("%s found success after %d ticks", self._detector.name, self._ticks)
        return observation

    def write(self, command: Float32Array) -> Float32Array:
        """Send a command; see `vla_rl.core.protocols.Robot`."""
        sent: Float32Array = self._robot.write(command)
        self._is_due = True
        return sent

    def stop(self) -> None:
        """Stop the robot. What it sees after that is not judged.

        A simulated world fails an attempt that is stopped, so its judgment of the last step is kept from here on.
        """
        self._is_due = False
        if self.found and not (self._robot.terminated or self._robot.truncated):
            self._judge = getattr(self._robot, "judge", None)
        self._robot.stop()

    @property
    def terminated(self) -> bool:
        """The task has ended, by itself or because the detector has found success."""
        return self.found or self._robot.terminated

    @property
    def success(self) -> bool | None:
        """Outcome; None while it is not known."""
        outcome: bool | None = (self._judge or self._robot).success
        return outcome
