"""What the parts expect of each other. Simulators, imagined worlds and robots are interchangeable because the loop
knows only these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Episode, Float32Array, Observation, Step

REST_READINGS = 3
"""How often a robot that measures its posture reads it before an attempt begins there."""


@runtime_checkable
class Policy(Protocol):
    """Plans action chunks.

    Example:
        >>> class Still:
        ...     version = 0
        ...     def reset(self, seed): ...
        ...     def infer(self, observation, committed=None):
        ...         return ActionChunk(np.tile(observation.state, (8, 1)), observation.tick, 0, self.version)
        >>> isinstance(Still(), Policy)
        True
    """

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
            committed: float32 [d, A], the actions of the next d ticks, which will be executed whatever this call
                returns.
        """
        ...


@runtime_checkable
class RefiningPolicy(Policy, Protocol):
    """A policy that plans slowly and refines its plan fast: a base policy with a residual.

    A chunk that was planned some ticks ago is refined as it enters, with the newest observation. At no delay,
    ``refine(plan(observation), observation, 0)`` is ``infer(observation)``.

    Attributes:
        refines: Whether it does so now; False: only `infer` acts.

    Example:
        >>> class Pulled:
        ...     version, refines = 0, True
        ...     def reset(self, seed): ...
        ...     def plan(self, observation):
        ...         return ActionChunk(np.tile(observation.state, (8, 1)), observation.tick, 0, self.version)
        ...     def refine(self, chunk, observation, index):
        ...         return replace(chunk, actions=chunk.actions - 0.1 * observation.state)
        ...     def infer(self, observation, committed=None):
        ...         return self.refine(self.plan(observation), observation, 0)
        >>> isinstance(Pulled(), RefiningPolicy)
        True
    """

    refines: bool

    def plan(self, observation: Observation) -> ActionChunk:
        """Plan a chunk, as `infer`, that is not refined yet."""
        ...

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        """Return the final form of a chunk of `plan`.

        Args:
            chunk: As planned.
            observation: The newest observation.
            index: The action of the chunk that is executed next, at the observation's tick.
        """
        ...


@runtime_checkable
class BasePolicy(Policy, Protocol):
    """A policy that acts and does not learn: a server's, a deployment, or a class of any package.

    Further attributes are optional: ``provides``, its capabilities (`vla_rl.core.capabilities`), ``discrete_dims``,
    ``prefix_ticks`` and ``n_obs_steps``, the number of observations that it reads. ``twin()`` returns a policy with
    shared weights for another episode at the same time.

    Example:
        >>> class Still:
        ...     version, horizon, spec = 0, 8, env.spec
        ...     def reset(self, seed): ...
        ...     def infer(self, observation, committed=None):
        ...         return ActionChunk(np.tile(observation.state, (8, 1)), observation.tick, 0, self.version)
        >>> isinstance(Still(), BasePolicy)
        True
    """

    @property
    def spec(self) -> PolicySpec:
        """Cameras and sizes of its robot."""
        ...

    @property
    def horizon(self) -> int:
        """H, number of actions in a chunk."""
        ...


@runtime_checkable
class Robot(Protocol):
    """A robot, a mock of one, or an environment behind the same four verbs.

    A robot that knows what its numbers are called has two more attributes, ``state_dimensions`` and
    ``action_dimensions`` (`vla_rl.core.dimensions.Dimensions`). Episodes then carry these names and units. A policy is
    matched with the robot by name before anything moves, see `vla_rl.core.robot_matching`. Without the attributes the
    vectors are matched by position.

    Example:
        >>> from robot_io.env_robot import EnvRobot
        >>> robot = EnvRobot(Dot())
        >>> isinstance(robot, Robot), robot.control_hz
        (True, 10.0)
    """

    @property
    def control_hz(self) -> float: ...

    def connect(self) -> None: ...

    def read(self) -> Observation:
        """Return the newest observation. Never waits for a policy."""
        ...

    def rest_command(self) -> Float32Array:
        """Return the command that keeps the robot where it is, float32 [A]: what is held until a policy has spoken."""
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
    """A person, or a script that acts like one, that may take over the commands.

    Example:
        >>> class FirstTicks:
        ...     def reset(self, seed): ...
        ...     def command(self, tick, proposed):
        ...         return np.zeros_like(proposed) if tick < 5 else None
        >>> FirstTicks().command(9, np.ones(2, np.float32)) is None
        True
    """

    def reset(self, seed: int) -> None: ...

    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the command of the person at this tick, float32 [A]; None leaves the policy in control."""
        ...


@runtime_checkable
class Signs(Protocol):
    """A takeover source that marks the record beside the commands: its name, and where it says that it took over.

    Example:
        >>> class Ada:
        ...     def signed(self, episode):
        ...         return replace(episode, extras={**episode.extras, "operator": np.full(len(episode), 1)})
        >>> bool(Ada().signed(demos.read("demo-00000")).extras["operator"].all())
        True
    """

    def signed(self, episode: Episode) -> Episode:
        """Return the episode that was driven last, as this person leaves it."""
        ...


class Condition(NamedTuple):
    """How a robot that measures itself finds itself.

    Attributes:
        position: float32 [A], where the commanded dimensions are; NaN for a failed reading, which stops the robot.
        command: float32 [A], their target, as it was really sent.
        captured_ns: when the position was measured.
        effort: float32 [A], what they push with; None where it is not measured.
        interlocks: bit flags of the gate's reasons for which the robot itself asks to be stopped.
        why: the reason of these, as a sentence.
        rate_dims: dimensions that are commanded as velocities, which rest wherever it is when their command rests.

    Example:
        >>> where = np.zeros(3, np.float32)
        >>> Condition(position=where, command=where, captured_ns=0).interlocks
        0
    """

    position: Float32Array
    command: Float32Array
    captured_ns: int
    effort: Float32Array | None = None
    interlocks: int = 0
    why: str = ""
    rate_dims: Sequence[int] = ()


class Verdict(NamedTuple):
    """What a gate made of one action.

    Attributes:
        commands: Commands that may go to the robot within one control tick, at equal distances, float32 [K, A]. K is
            the gate's ``commands_per_tick``, less in a late tick, 0 while the robot's place is unknown.
        reasons: bit flags of every rule that changed the action; 0 if it passed untouched.
        held: the action was not followed at all: the commands only come to rest and stay there.
        stopped: True once the gate has latched its stop.

    Example:
        >>> Verdict(np.zeros((1, 3), np.float32), reasons=0, held=False, stopped=False).commands.shape
        (1, 3)
    """

    commands: Float32Array
    reasons: int
    held: bool
    stopped: bool


@runtime_checkable
class Gate(Protocol):
    """What stands between every source of actions and the robot.

    Example:
        >>> from robot_io.gate import GateConfig, SafetyGate
        >>> gate = SafetyGate(GateConfig(low=(-1.0,), high=(1.0,), max_velocity=(1.0,)), 10)
        >>> isinstance(gate, Gate), gate.reset(np.zeros(1, np.float32))
        (True, array([0.], dtype=float32))
    """

    @property
    def commands_per_tick(self) -> int:
        """How many commands the robot gets in one control tick."""
        ...

    def reset(self, readings: Float32Array) -> Float32Array:
        """Start an attempt; returns the command that the robot rests at, float32 [A].

        Args:
            readings: float32 [A] or [N, A], what the robot says of it, once or several times.

        Raises:
            UserError: if no robot can rest there, or the readings disagree.
        """
        ...

    def rearm(self) -> None:
        """Undo a latched stop, once a person has looked at the robot, or where none could stand beside it."""
        ...

    @property
    def at_rest(self) -> bool:
        """The last commands ended a motion within the limits: nothing has to follow them."""
        ...

    @property
    def braking_s(self) -> float:
        """How long coming to rest may take."""
        ...

    def inspect(self, condition: Condition) -> None:
        """Take in, before each `admit`, the condition of a robot that measures itself. Trouble latches the stop."""
        ...

    def brake(self, commands_left: int | None = None) -> Float32Array:
        """Return commands of one control tick on the way to rest, float32 [K, A], for the time after the last action.

        Args:
            commands_left: see `admit`.
        """
        ...

    def admit(
        self, action: Float32Array, now_ns: int, observed_ns: int, planned_ns: int, commands_left: int | None = None
    ) -> Verdict:
        """Turn the action of one control tick into commands that are safe to send.

        Args:
            action: float32 [A], from a policy, a person or a hold.
            now_ns: the time now.
            observed_ns: when the oldest stream of the newest observation was captured.
            planned_ns: when the observation that the action was planned from was captured.
            commands_left: for how many of the K commands there is still time in this tick; None: for all.
        """
        ...

    def still(self, command: Float32Array) -> Float32Array:
        """Return a command that ends its motion, float32 [A]: targets stay, steps are 0."""
        ...

    def outdated(self, age_ns: int, sent: Float32Array) -> Float32Array | None:
        """Return None if the commands that are not sent yet may be sent.

        If they are too old for it, since the process stood still, the robot has come to rest at the last command that
        it got. The gate goes on from there. Returned is the command of that rest, float32 [A]: steps are 0.

        Args:
            age_ns: for how long the commands are decided.
            sent: float32 [A], the last command that the robot got.
        """
        ...


class Subscriber(Protocol):
    """Receive steps, episodes and metrics, as recorders, displays and metric sinks do.

    A subclass implements the methods that it needs. The others do nothing.

    Example:
        >>> class Losses(Subscriber):
        ...     def on_metrics(self, metrics):
        ...         if "critic_loss" in metrics:
        ...             print(f"step {metrics['step']}: {metrics['critic_loss']:.2f}")
        >>> Losses().on_metrics({"step": 50, "critic_loss": 0.125})
        step 50: 0.12
    """

    def on_step(self, step: Step) -> None:
        """Receive one tick of an episode."""
        del step

    def on_episode(self, episode: Episode) -> None:
        """Receive a finished episode."""
        del episode

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Receive one record of metrics, by name."""
        del metrics
