"""Another judge behind the protocol of a success detector: a rule."""

from robot_io.success import SuccessRule
from vla_rl.core.errors import UserError
from vla_rl.outcomes.detector import Judgment, Window


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
