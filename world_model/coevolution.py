"""Co-evolution of policy and world model inside the rounds of practice (PACE of WoVR, arXiv 2602.13977).

Real rollouts -> world model -> imagined practice -> rollouts of the evolved policy -> the world model is renewed with
them. `CoEvolution` decides, at the end of each round's collection, whether the world model is trained, renewed or left,
and whether imagination may be used at all; what it decides from is written to a ledger and survives a crash.

The alarm: each round's policy acts in imagination from the very starts of its real episodes. Where imagined success is
higher than that of the same episodes in reality by more than ``largest_gap``, the policy has learnt to please the world
model and not the world (World-VLA-Loop found this in its first round); where it is lower by as much, practice would
unlearn what works. Episodes that were cut have no outcome and are not compared; where too many are, the world model
has nothing to say. In each case imagination is not used in that round.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.core.files import write_atomic
from vla_rl.core.outside import read_json, reading

MODES = ("off", "frozen", "once", "continuous", "restart_from_sft")


@dataclass(frozen=True)
class CoEvolutionConfig:
    """When imagination is made, renewed and used.

    Attributes:
        mode: ``off``: no imagination. ``frozen``: the world model of the first round stays. ``once``: it is renewed
            once, with the episodes of the evolved policy (WoVR). ``continuous``: it is renewed in every round.
            ``restart_from_sft``: as ``continuous``, and the policy's improvement starts anew from the supervised policy
            in every round (World-VLA-Loop).
        imagined_episodes: of each round that uses imagination.
        train_cpu_seconds: bound of the first training's processor time; 0: the preset's own. The episodes of a round or
            two need less than those of a long run.
        refine_steps: gradient steps of a renewal, of the dynamics alone; 0: the world model is trained anew on all
            episodes instead, autoencoder included, as the first one was. An autoencoder that never saw where the policy
            goes now makes the rest worse than no renewal (`docs/world_model.md`); one of many episodes
            (``imagination.begin_with``) is better refined.
        gap_episodes: imagined episodes behind the gap of a round.
        largest_gap: difference of imagined and real success beyond which imagination is not used.
        least_believed: imagination is not used either if fewer of its episodes than this share come to an outcome.
    """

    mode: Literal["off", "frozen", "once", "continuous", "restart_from_sft"] = "off"
    imagined_episodes: int = 100
    train_cpu_seconds: float = 0.0
    refine_steps: int = 0
    gap_episodes: int = 50
    largest_gap: float = 0.2
    least_believed: float = 0.25

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"imagination.mode is {self.mode!r}.{did_you_mean(str(self.mode), MODES)}")
        for name in ("train_cpu_seconds", "refine_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"imagination.{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("largest_gap", "least_believed"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"imagination.{name} is {getattr(self, name)}; it must be in [0, 1]")


@dataclass(frozen=True)
class LedgerEntry:
    """What a round spent and found.

    Attributes:
        round: its number.
        real_episodes: collected in it, the demonstrations in round 0 included.
        near_success_episodes: scripted episodes for the world model alone, which count as real ones.
        successes: among the round's autonomous real episodes.
        near_success_ratio: successes among the near-success episodes.
        model_version: of the world model afterwards; -1: none.
        real_success: rate of the round's real episodes, those that a person finished not counted as successes.
        imagined_success: rate of the imagined episodes that came to an outcome; None: not measured.
        believed: share of the imagined episodes that did; None: not measured.
        gap: imagined success minus that of the same episodes in reality; None: not measured.
        used: imagined episodes that were added to the run's store.
        alarm: why imagination was not used, empty otherwise.
    """

    round: int
    real_episodes: int
    near_success_episodes: int = 0
    successes: int = 0
    near_success_ratio: float = 0.0
    model_version: int = -1
    real_success: float = 0.0
    imagined_success: float | None = None
    believed: float | None = None
    gap: float | None = None
    used: int = 0
    alarm: str = ""

    def numbers(self) -> dict[str, float]:
        """What metrics show of it."""
        values = {"real_success": self.real_success, "used": float(self.used), "alarmed": float(bool(self.alarm))}
        values |= {"model_version": float(self.model_version), "near_success_ratio": self.near_success_ratio}
        for name in ("imagined_success", "believed", "gap"):
            value = getattr(self, name)
            if value is not None:
                values[name] = value
        return values


@dataclass
class Ledger:
    """The real episodes that were spent, round by round. A JSON file, replaced atomically."""

    file: Path
    entries: list[LedgerEntry] = field(default_factory=list)

    @classmethod
    def open(cls, file: Path) -> "Ledger":
        """Read a ledger, or begin one."""
        if not file.exists():
            return cls(file)
        with reading(file, "the run cannot go on without it"):
            entries = read_json(file)["rounds"]
            return cls(file, [config_from_dict(LedgerEntry, entry, where=str(file)) for entry in entries])

    @property
    def real_episodes(self) -> int:
        """Real trajectories spent so far."""
        return sum(entry.real_episodes + entry.near_success_episodes for entry in self.entries)

    def write(self, entry: LedgerEntry) -> None:
        """Add a round, or replace it."""
        others = [other for other in self.entries if other.round != entry.round]
        self.entries = sorted([*others, entry], key=lambda own: own.round)
        content = {"real_episodes": self.real_episodes, "rounds": [asdict(own) for own in self.entries]}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps(content, indent=1).encode())

    def of(self, round_number: int) -> LedgerEntry | None:
        """The entry of a round."""
        return next((entry for entry in self.entries if entry.round == round_number), None)


class WorldModelRunner(Protocol):
    """What co-evolution asks of those who can train world models and run episodes; the command line provides it.
    Everything must be repeatable after a crash: what is there already is not done again.
    """

    def train(self, version: int) -> None:
        """Make the world model of this version: version 0 from nothing, others by renewing the one before."""
        ...

    def imagined_outcomes(self, round_number: int, version: int, episodes: int) -> Sequence[bool | None]:
        """Outcomes of the round's policy in imagination, one for each of its first real episodes, from that one's
        start; None where there is none.
        """
        ...

    def imagine(self, round_number: int, version: int, episodes: int) -> int:
        """Add imagined episodes of the round's policy to the run's store; returns how many there are."""
        ...


class CoEvolution:
    """See the module.

    Args:
        config: see `CoEvolutionConfig`.
        runner: carries decisions out.
        ledger: where they are written.
    """

    def __init__(self, config: CoEvolutionConfig, runner: WorldModelRunner, ledger: Ledger) -> None:
        self.config, self._runner, self.ledger = config, runner, ledger

    @property
    def restarts_policy(self) -> bool:
        """Whether each round's improvement starts from the supervised policy."""
        return self.config.mode == "restart_from_sft"

    def model_version(self, round_number: int) -> int:
        """The version of the world model that a round imagines with; -1: none."""
        since = round_number - 1
        if self.config.mode == "off":
            return -1
        return {"frozen": 0, "once": min(since, 1)}.get(self.config.mode, since)

    def after_collection(self, spent: LedgerEntry, outcomes: Sequence[bool]) -> LedgerEntry:
        """Train or renew, measure the gap, and imagine if the alarm is silent. Idempotent.

        Args:
            spent: round and real episodes; the rest is filled in here.
            outcomes: of the round's real episodes, whether the policy succeeded alone.

        Returns:
            the ledger's entry of the round.
        """
        done = self.ledger.of(spent.round)
        if done is not None:
            return done
        values: dict[str, Any] = asdict(spent)
        values |= {"successes": sum(outcomes), "real_success": _rate(outcomes)}
        version = self.model_version(spent.round)
        if version >= 0:
            for earlier in range(version + 1):
                self._runner.train(earlier)
            imagined = self._runner.imagined_outcomes(spent.round, version, self.config.gap_episodes)
            pairs = [(real, own) for real, own in zip(outcomes, imagined, strict=False) if own is not None]
            alarm = gap_alarm(pairs, len(imagined), self.config)
            used = 0 if alarm else self._runner.imagine(spent.round, version, self.config.imagined_episodes)
            values |= {"model_version": version, "alarm": alarm, "used": used}
            values["believed"] = len(pairs) / max(len(imagined), 1)
            if pairs:
                real_success, imagined_success = (_rate(side) for side in zip(*pairs, strict=True))
                values |= {"imagined_success": imagined_success, "gap": imagined_success - real_success}
        entry = LedgerEntry(**values)
        self.ledger.write(entry)
        return entry


def gap_alarm(pairs: Sequence[tuple[bool, bool]], imagined: int, config: CoEvolutionConfig) -> str:
    """Why imagination must not be used; empty if it may.

    Success may differ by ``largest_gap`` plus one standard error of the mean difference of pairs, which a small sample
    must be granted.

    Args:
        pairs: real and imagined outcome of the same episode, where there are both.
        imagined: episodes that were imagined, those without an outcome included.
        config: the bounds.
    """
    if not pairs:
        return "no imagined episode came to an outcome that could be compared with a real one"
    if len(pairs) < config.least_believed * imagined:
        return f"only {len(pairs)} of {imagined} imagined episodes came to an outcome"
    real, own = (_rate(side) for side in zip(*pairs, strict=True))
    differ = sum(first != second for first, second in pairs) / len(pairs)
    error = math.sqrt(max(differ - (own - real) ** 2, 0.0) / len(pairs))
    if abs(own - real) > config.largest_gap + error:
        return f"imagined success {own:.2f}, real success {real:.2f}: more than {config.largest_gap:g} apart"
    return ""


def _rate(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 0.0
