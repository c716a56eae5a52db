"""The course of attempts on the campaign's rig: begin, let time pass, wait, rearm; what trials and refusals share."""

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign_wave import HZ
from benchmarks.campaign_world import LIMITS, NAMESPACE, SILENT_S, CampaignRig
from robot_io.disturbances import Disturbance
from vla_rl.core.errors import UserError

_log = logging.getLogger(__name__)

ROUNDING = 1e-4
_QUIET_LOOKS = 4
_AT_REST = 1e-5  # radians in a tick
_SETTLED_WITHIN_S = 0.3


class SpoiledTrial(UserError):
    """The robot stood still before there was any fault."""


class Course:
    """The course of one trial.

    Attributes:
        rig, world: what it all happens on.
        random: moments and choices.
        jumps: of the first commands, from where the robot was, in ticks of the limits.
    """

    def __init__(self, rig: CampaignRig, seed: int) -> None:
        self.rig, self.world = rig, rig.world
        self.random = random.Random(seed)
        self.jumps: list[float] = []
        self._position_before = self.world.position

    def configure(self, changes: Mapping[str, object] | None = None) -> None:
        """Bring the node, whose parameters change before, to where attempts may begin.

        Raises:
            UserError: if it refuses.
        """
        if changes and (refused := self.rig.set_parameters(changes)):
            raise UserError(f"the node refused a parameter: {refused}")
        for name in ("configure", "activate"):
            if not self.rig.transition(name):
                raise UserError(f"the node refused to {name}; see its log")

    def unconfigure(self) -> None:
        """Parameters may change again."""
        for name in ("deactivate", "cleanup"):
            self.rig.transition(name)

    def begin_attempt(self) -> None:
        """Start, and see the first command."""
        world, rig = self.world, self.rig
        world.samples.clear()
        self.come_to_rest()
        for _ in range(100):
            if rig.trigger("start")[0]:
                break
            self.free_ticks(5)
        until_s = time.monotonic() + SILENT_S
        while not world.samples:
            if rig.stopped() or time.monotonic() > until_s:
                raise SpoiledTrial(f"no attempt began: {rig.stopped() or 'no command came'}")
            self.free_ticks(1)
        self.jumps.append(self.first_jump())
        if self.jumps[-1] > 1.0 + ROUNDING:
            _log.warning("first commands %s, the robot was at %s", world.samples[:3], self._position_before.tolist())
        self.settle()
        moving = 0
        while moving < 3:
            self.run_ticks(1)
            two = world.samples[-2:]
            moving = moving + 1 if len(two) == 2 and (two[0].command != two[1].command).any() else 0

    def first_jump(self) -> float:
        """How far the first command is from where the robot was, in ticks of the limits."""
        if not self.world.samples:
            return 0.0
        first = self.world.samples[0]
        return float(np.abs(first.command - self._position_before).max() / (LIMITS.max_velocity[0] / HZ))

    def run_ticks(self, count: int, may_stop: bool = False) -> None:
        """Ticks with a command each."""
        for _ in range(count):
            self.world.tick(lambda: bool(self.rig.stopped()))
            if not may_stop and (why := self.rig.stopped()):
                raise SpoiledTrial(f"the robot stopped before the fault: {why}")

    def free_ticks(self, count: int) -> None:
        """Run ticks that do not wait."""
        for _ in range(count):
            if not self.world.samples:
                self._position_before = self.world.position
            self.world.tick()

    def settle(self) -> None:
        """Wait until the node has answered the newest readings, and the observer has seen its command. Not for long:
        /clock stands still meanwhile.
        """
        until_s, quiet = time.monotonic() + _SETTLED_WITHIN_S, 0
        while quiet < _QUIET_LOOKS and time.monotonic() < until_s:
            quiet = quiet + 1 if _sleeps(self.rig.policy.process.pid) and _sleeps(os.getpid()) else 0
            time.sleep(0.002)

    def come_to_rest(self) -> None:
        """Let the robot arrive at its last command: what it moves on by itself is no jump of the node's."""
        moved, before = True, self.world.position
        while moved:
            self.free_ticks(1)
            position = self.world.position
            moved, before = bool(np.abs(position - before).max() > _AT_REST), position

    def while_ticking(self, ask: Callable[[], object]) -> None:
        """Call a service while the world goes on."""
        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive():
            self.world.tick(lambda: bool(self.rig.stopped()) or not asking.is_alive())
        asking.join()

    def wait_standing_by(self) -> None:
        self.rig.forget()
        until_s = time.monotonic() + SILENT_S
        while not self.rig.status("attempts")[2].get("standing by"):
            if time.monotonic() > until_s:
                raise UserError("the attempt does not end")
            self.free_ticks(1)

    def rearm(self) -> None:
        accepted, why = self.rig.trigger("rearm")
        if not accepted:
            raise UserError(f"rearm was refused: {why}")
        self.rig.wait(lambda: not self.rig.stopped(), 10.0, "the end of the stop")

    def recover(self) -> None:
        """After a trial that went wrong: whatever runs is ended."""
        world, rig = self.world, self.rig
        world.disturbance, world.policy_raves = Disturbance(self.random, LIMITS), False
        with contextlib.suppress(UserError):
            rig.trigger("discard")
            self.wait_standing_by()
        with contextlib.suppress(UserError):
            self.rearm()

    @contextlib.contextmanager
    def stranger(self, name: str) -> Iterator[Any]:
        """A node in a context of its own, as another process would have."""
        import rclpy

        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node(name, namespace=NAMESPACE, context=context)
        try:
            yield node
        finally:
            node.destroy_node()
            rclpy.try_shutdown(context=context)

    def seen_by_observer(self, condition: Callable[[], bool]) -> None:
        """The robot goes on until the observer itself knows of a change."""
        until_s = time.monotonic() + 10.0
        while not condition() and time.monotonic() < until_s:
            self.free_ticks(1)


def _sleeps(process: int) -> bool:
    """Whether no thread of a process, but for the one that asks, runs or waits for a processor."""
    us = str(threading.get_native_id())
    try:
        tasks = [task for task in Path(f"/proc/{process}/task").iterdir() if task.name != us]
        states = [task.joinpath("stat").read_text() for task in tasks]
    except OSError:  # a thread has just ended
        return False
    return all(state.rpartition(")")[2].split()[0] != "R" for state in states)
