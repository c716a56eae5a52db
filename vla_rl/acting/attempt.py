"""One attempt on any robot: the record begins, the loop runs, and the episode is handed on, however it ended."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from robot_io.reasons import Reason
from robot_io.recorder import Recorder
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Gate, Subscriber
from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.loop import EpisodeSummary, EpisodicRobot, run_episode
from vla_rl.execution.plan import NO_CHUNK, ActionSource


def free_names(store: EpisodeStore | None, kind: str) -> Iterator[str]:
    """KIND-000000 and so on, after those that the store holds."""
    known = [name for name in store.ids(left_out=True) if re.fullmatch(rf"{kind}-\d{{6}}", name)] if store else []
    first = int(known[-1].removeprefix(f"{kind}-")) + 1 if known else 0
    return (f"{kind}-{number:06d}" for number in itertools.count(first))


def share_not_finite(chunk_id: NDArray[Any], gate_reasons: NDArray[Any]) -> float:
    """Return the share of an episode's planned actions that are not finite, by two of its extras [T]."""
    reasons = gate_reasons[chunk_id != NO_CHUNK]
    return float((reasons & Reason.NOT_FINITE > 0).mean()) if len(reasons) else 0.0


def check_finite(shares: Sequence[float]) -> None:
    """Refuse a policy that planned no finite action, by the share of each episode.

    Raises:
        UserError: If no action of any episode was finite.
    """
    if shares and min(shares) == 1:
        raise UserError(
            f"every action of the policy is NaN or infinite, in {len(shares)} of {len(shares)} episodes. The safety "
            "gate held the robot, so these episodes say nothing of the policy. Correct its output"
        )


class Attempt(NamedTuple):
    """How an attempt went, and its record."""

    summary: EpisodeSummary
    episode: Episode


class Attempts:
    """Attempts on one connected robot, one after the other, recorded.

    Args:
        gate: Between every source and the robot.
        origin, env_id: Where the episodes happen, and the environment or robot.
        subscribers: Get every step, after the recorder, and every episode.
        rearms: An attempt begins with the gate armed, whatever the one before ended with, as suits a simulated robot.
            False: a person has to look first.
    """

    def __init__(
        self,
        robot: EpisodicRobot,
        gate: Gate,
        origin: Origin,
        env_id: str,
        subscribers: Sequence[Subscriber] = (),
        rearms: bool = True,
    ) -> None:
        self._robot, self._gate, self._rearms = robot, gate, rearms
        self._env_id = env_id
        self._recorder = Recorder(origin, env_id, robot.control_hz, subscribers, declared(robot))
        self._subscribers = [self._recorder, *subscribers]

    def run(
        self,
        source: ActionSource,
        episode_id: str,
        seed: int,
        policy_version: int,
        keep: Callable[[Episode], object] | None = None,
        origin: Origin | None = None,
    ) -> Attempt:
        """Run one attempt.

        Args:
            source: Decides the actions.
            episode_id: Name of the record.
            seed: Fixes the world, the policy's noise and the supervisor.
            policy_version: Of the weights that act; -1: no policy.
            keep: Is given the episode, also that of an attempt that broke off with an error.
            origin: Of this episode, if it is another one than that of the others (a demonstration).

        Raises:
            UserError: If the attempt ended without a step, or a part refuses.
        """
        if self._rearms:
            self._gate.rearm()
        self._recorder.begin(episode_id, seed, policy_version, origin)
        try:
            summary = run_episode(self._robot, source, self._gate, seed=seed, subscribers=self._subscribers)
        finally:
            episode = self._recorder.episode or self._recorder.finish()
            if keep is not None and episode is not None:
                keep(episode)
        if episode is None:
            raise UserError(f"episode {episode_id} of {self._env_id} ended without a step")
        return Attempt(summary, episode)
