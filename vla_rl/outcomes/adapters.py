"""Other judges behind the protocol of a success detector: a rule and a person."""

from collections.abc import Callable

from robot_io.success import SuccessRule
from vla_rl.core.errors import UserError
from vla_rl.outcomes.detector import Judgment, Window

_ANSWERS = {"s": True, "f": False, "n": None}


class Rule:
    """A declared comparison of a recorded number at the end of a window.

    Args:
        rule: ``NAME`` or ``NAME>=NUMBER``: an extra column of the episode, or ``state.NAME`` of its state.
    """

    def __init__(self, rule: str) -> None:
        self.name, self._rule = f"rule {rule}", SuccessRule.parse(rule)

    def judge(self, window: Window) -> Judgment:
        """Compare. Raises UserError if the window has no such number."""
        path = self._rule.path
        if path not in window.values:
            raise UserError(f"the rule reads {path!r}, and the episode has {sorted(window.values)}; name one of these")
        holds = self._rule.holds(window.values[path])
        return Judgment(holds, float(holds))


class Person:
    """A person, asked in the terminal.

    Args:
        ask: Shows a window and returns the answer: s (success), f (failure) or n (not sure).
        name: Name of the person.
    """

    def __init__(self, ask: Callable[[Window], str] | None = None, name: str = "person") -> None:
        self.name, self._ask = name, ask or (lambda _: input("success, failure or not sure? [s/f/n] "))

    def judge(self, window: Window) -> Judgment:
        """Ask until there is an answer."""
        while (answer := self._ask(window).strip().lower()[:1]) not in _ANSWERS:
            continue
        success = _ANSWERS[answer]
        return Judgment(success, 0.5 if success is None else float(success), "" if success is not None else "not sure")
