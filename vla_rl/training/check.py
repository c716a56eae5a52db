"""Never worse than before: a round's policy acts only if it does no worse than the one that it is to follow.

The new one is judged by the episodes of its check. The previous one is judged by as many of the round's practice,
without exploration as well, and by its earlier ones. A failed check costs a round; a bad policy that acts costs more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """Whether the policy of a round may act.

    Attributes:
        acting: the version whose policy played the round's practice episodes.
        practice: (successes, episodes) of those without exploration, without a person's help.
        check: (successes, episodes) of the new policy.
        passes: it acts from now on; otherwise the policy before does.
    """

    acting: int
    practice: tuple[int, int]
    check: tuple[int, int]
    passes: bool = False


def acting_policy(checks: Mapping[int, Check], version: int) -> int:
    """Return the version as which the policy of a version was made: its own, or an earlier one that had to stay."""
    return version if version not in checks or checks[version].passes else checks[version].acting


def success_of(checks: Mapping[int, Check], version: int) -> float:
    """Return the success so far of the policy that was made as a version."""
    played = [check.practice for check in checks.values() if check.acting == version]
    if version in checks:
        played.append(checks[version].check)
    return sum(successes for successes, _ in played) / sum(episodes for _, episodes in played)


def whole_acts(compared: Mapping[str, Mapping[str, Any]], version: int) -> bool:
    """Return whether a version acts with its critic and residual: if they have cost no success in all comparisons so
    far. One comparison alone judges by chance (docs/results/known.md).

    Args:
        compared: By version: successes and episodes with (``whole``) and without (``plain``) critic and residual.
        version: Comparisons of later ones, which an interrupted run may have left, do not count.
    """
    leads = [each["whole"][0] - each["plain"][0] for number, each in compared.items() if int(number) <= version]
    return sum(leads) >= 0
