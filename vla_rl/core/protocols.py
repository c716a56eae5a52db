"""What the parts expect of each other. Simulators, imagined worlds and robots are interchangeable because the loop knows only these."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from vla_rl.core.types import ActionChunk, Episode, Float32Array, Observation, Step


@runtime_checkable
class Policy(Protocol):
    """Plans action chunks."""

    @property
    def version(self) -> int:
        """Counts the updates of the weights."""
        ...

    def reset(self, seed: int) -> None:
        """Start an episode: its sampling noise is fixed by the seed."""
        ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        Args:
            observation: the newest observation.
            committed: float32 [d, A], the actions of the next d ticks, which will be executed whatever this call returns.
        """
        ...


@runtime_checkable
class Robot(Protocol):
    """A robot, a mock of one, or an environment behind the same four verbs."""

    @property
    def control_hz(self) -> float: ...

    def connect(self) -> None: ...

    def read(self) -> Observation:
        """The newest observation. Never waits for a policy."""
        ...

    def write(self, action: Float32Array) -> Float32Array:
        """Send one command, float32 [A], and return what was really sent after the robot's own limits."""
        ...

    def stop(self) -> None:
        """Come to rest, at once, and hold."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TakeoverSource(Protocol):
    """A person, or a script that acts like one, who may take the commands over."""

    def reset(self, seed: int) -> None: ...

    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """The command of the person at this tick, float32 [A]; None leaves the policy in control."""
        ...


class Subscriber(Protocol):
    """Recorders, displays and metric sinks: told of everything, asked for nothing."""

    def on_step(self, step: Step) -> None: ...

    def on_episode(self, episode: Episode) -> None: ...

    def on_metrics(self, metrics: Mapping[str, Any]) -> None: ...
