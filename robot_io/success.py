"""How an episode of an environment went: from its info, its reward, or a declared comparison."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_rl.core.errors import ConfigError, UserError

AUTO, REWARD, TERMINATED = "auto", "reward", "terminated"
_KEYS = ("is_success", "success")
_COMPARISON = re.compile(r"([^<>=!]+)(>=|<=|==|!=|>|<)([^<>=!]+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class SuccessRule:
    """A declared success: a value of the last step, and the comparison with a bound that makes it a success.

    ``path`` is a key of the info, or keys and indices joined by dots; ``reward`` and ``terminated`` name those of the
    step. Without a ``sign`` the value itself is true or false.
    """

    path: str
    sign: str = ""
    bound: float = math.nan

    @classmethod
    def parse(cls, text: str) -> "SuccessRule":
        """Read ``KEY`` or ``KEY>=NUMBER``; ConfigError for anything else."""
        if not set(text) & set("<>=!") and text.strip():
            return cls(text.strip())
        found = _COMPARISON.fullmatch(text)
        try:
            bound = float(found[3]) if found else math.nan
        except ValueError:
            bound = math.nan
        if found is None or math.isnan(bound) or not found[1].strip():
            raise ConfigError(
                f"task.declare.success is {text!r}. Expected auto, reward, KEY, or KEY, a comparison "
                f"({' '.join(_COMPARE)}) and a number: 'task.declare.success=coverage>=0.95', in quotes"
            )
        return cls(found[1].strip(), found[2], bound)

    def holds(self, value: Any) -> bool:
        """Apply the rule to the value of its path.

        Raises:
            UserError: The value is no single number, or is neither true nor false and the rule compares nothing.
        """
        where, remedy = f"info[{self.path!r}] of the last step", _remedy(self.path, value)
        if not self.sign:
            return as_flag(value, where, remedy)
        number = as_number(value)
        if number is None:
            raise UserError(f"{where} is {value!r}; expected one number to compare with {self.bound:g}. {remedy}")
        return _COMPARE[self.sign](number, self.bound)


class Judge:
    """Judges the steps of one episode after the other.

    Args:
        success: see `robot_io.env_interface.EnvDeclaration`.

    Attributes:
        success: Outcome of the episode if it ended with the last step; None: nothing reports it.
        reported: The environment itself reports the outcome.
        reward: Of the last step; None: it is no number.
        paid_before: Number of earlier steps with a positive reward.
        doubt: What speaks against the failure of the episode that ended, in words behind its task; else empty.
    """

    def __init__(self, success: str) -> None:
        self._rule = None if success in (AUTO, REWARD) else SuccessRule.parse(success)
        self._by_reward_alone = success == REWARD
        self.restart()

    def restart(self) -> None:
        """Begin an episode."""
        self.success: bool | None = None
        self.reported, self.doubt, self._solved = False, "", False
        self.reward: float | None = None
        self._keys: set[str] = set()
        self.paid_before = self._paid_steps = 0

    def step(self, info: Any, reward: Any, terminated: bool, ended: bool) -> None:
        """Judge what the environment returned for a step, after which the episode may have ended.

        Raises:
            UserError: A reported success is neither true nor false, or is missing at the end of an episode.
        """
        if not isinstance(info, Mapping):
            raise UserError(f"the info of the step is {info!r}; expected a dict. Return one from step()")
        info = _info_of_last_step(info)
        self.reward = as_number(reward)
        self.paid_before = self._paid_steps
        self._paid_steps += (self.reward or 0.0) > 0
        if self._rule is not None:
            found = self._declared(self._rule, {**info, REWARD: reward, TERMINATED: terminated}, ended)
        elif self._by_reward_alone:
            found = None
        else:
            found = self._by_usual_keys(info, ended)
        self.success, self.reported = found, found is not None
        if ended and found is None and self._rule is None:
            self.success = self._by_reward(reward, terminated)
            self.reported = self.success or (self._by_reward_alone and terminated)
        self._solved |= self.success is True
        if ended and not self.success:
            self.doubt = self._doubt(info, terminated)

    def _doubt(self, info: Mapping[str, Any], terminated: bool) -> str:
        if self._solved:
            return (
                "has reported a success and gone on to a failure: the last step of an episode decides. Terminate the "
                "episode at a success"
            )
        flags = [] if self.reported else _flags(info)
        if self.reported or not (terminated or flags):  # an episode without time left may just have failed
            return ""
        place = f"=KEY, its info has {', '.join(flags)}" if flags else ""
        return (
            "has ended an episode and reported neither success nor failure: such episodes count as failed. Report it "
            f"in the info, or name its place: task.declare.success{place} (vla-rl task check)"
        )

    def _declared(self, rule: SuccessRule, values: Mapping[str, Any], ended: bool) -> bool | None:
        try:
            value = _look_up(values, rule.path)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if not ended:
                return None
            known = ", ".join(map(str, values))
            raise UserError(
                f"the info of the last step has no {rule.path!r} to judge by; it has {known}. "
                "Name one of these: task.declare.success=KEY"
            ) from error
        return None if value is None and not ended else rule.holds(value)

    def _by_usual_keys(self, info: Mapping[str, Any], ended: bool) -> bool | None:
        """Return the success under the usual keys; None: the info has none of them."""
        present = [key for key in _KEYS if key in info]
        found = {key: SuccessRule(key).holds(info[key]) for key in present if info[key] is not None}
        missing = self._keys.difference(found) if ended and not found else ()
        self._keys.update(found)
        if missing or (ended and present and not found):
            key = min(missing or present)
            state = "is None in" if key in info else "is missing from"
            raise UserError(
                f"{key!r} {state} the info of the last step; expected true or false there. "
                "Report it at every step, or name another key: task.declare.success=KEY"
            )
        if ended and len(set(found.values())) > 1:
            raise UserError(
                f"the info of the last step contradicts itself: {found}. "
                "Choose one of them: task.declare.success=is_success, or =success"
            )
        return next(iter(found.values()), None)

    def _by_reward(self, reward: Any, terminated: bool) -> bool:
        """Return whether the reward marks a success: positive at an end by itself, the first one of the episode."""
        if not terminated:
            return False
        number = self.reward
        if number is None:
            raise UserError(
                f"the reward of the last step is {reward!r}; expected one finite number. "
                "No key of the info reports a success. Name such a key: task.declare.success=KEY"
            )
        if number > 0 and self.paid_before:
            raise UserError(
                f"the reward of the last step is {number:g}, and {self.paid_before} earlier steps had a positive "
                "reward: it marks no success. Declare 'task.declare.success=reward>=NUMBER' (in quotes), "
                "task.declare.success=KEY of the info, or task.declare.success=terminated"
            )
        return number > 0


def as_number(value: Any) -> float | None:
    """Return the one finite number of a scalar or an array of one element; None: it is something else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    if array.size != 1 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return None
    return float(array.item())


def as_flag(value: Any, name: str, remedy: str) -> bool:
    """Return a boolean, 0 or 1, alone or in an array of one element.

    Raises:
        UserError: The value is something else. The message names it, and the remedy.
    """
    if isinstance(value, bool):
        return value
    number = as_number(value)
    if number not in (0.0, 1.0):
        found = repr(value) if number is None else f"{number:g}"
        raise UserError(f"{name} is {found}; expected true, false, 0 or 1. {remedy}")
    return bool(number)


def _flags(info: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the paths of what is true or false in an info, but for flags of a time limit."""
    found = []
    for key, value in info.items():
        if isinstance(value, Mapping):
            found += _flags(value, f"{path}{key}.")
        elif isinstance(value, bool | np.bool_) and "trunc" not in str(key):
            found.append(f"{path}{key}")
    return found


def _remedy(path: str, value: Any) -> str:
    """Return how to declare a success by a value that is none itself."""
    if isinstance(value, Mapping) and value:
        return f"Name a key of it: task.declare.success={path}.{next(iter(value))}"
    if (isinstance(value, list | tuple) and len(value) > 1) or (isinstance(value, np.ndarray) and value.size > 1):
        return f"Name an element of it: task.declare.success={path}.0"
    if as_number(value) is None:
        return "Report it so, or name another key: task.declare.success=KEY"
    return f"A number needs a threshold: 'task.declare.success={path}>=NUMBER', in quotes"


def _look_up(values: Mapping[str, Any], path: str) -> Any:
    """Return a value by its key, or by keys and indices joined by dots."""
    found: Any = values
    if path in values:
        return values[path]
    for step in path.split("."):
        found = found[int(step)] if isinstance(found, Sequence | np.ndarray) else found[step]
    return found


def _info_of_last_step(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the info, with what an autoreset wrapper moved to ``final_info``."""
    final = info.get("final_info")
    if isinstance(final, list | tuple | np.ndarray) and np.size(final) == 1:
        final = final[0]
    return {**info, **final} if isinstance(final, Mapping) else info
