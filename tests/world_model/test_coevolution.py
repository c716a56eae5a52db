"""Co-evolution decides when imagination is made, renewed and used; a ledger survives; an alarm stops reward hacking."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vla_rl.core.errors import ConfigError
from world_model.coevolution import CoEvolution, CoEvolutionConfig, Ledger, LedgerEntry, gap_alarm


@dataclass
class Recorded:
    """Notes what it is asked for."""

    success: float = 0.5
    cut: int = 0  # of the episodes, the first ones
    calls: list[tuple[str, int]] = field(default_factory=list)
    made: set[int] = field(default_factory=set)

    def train(self, version: int) -> None:
        if version not in self.made:
            self.made.add(version)
            self.calls.append(("train", version))

    def imagined_outcomes(self, round_number: int, version: int, episodes: int) -> Sequence[bool | None]:
        self.calls.append(("compare", version))
        return [None if index < self.cut else index < self.success * episodes for index in range(episodes)]

    def imagine(self, round_number: int, version: int, episodes: int) -> int:
        self.calls.append(("imagine", version))
        return episodes


def rounds(mode: str, folder: Path, imagination: Recorded, count: int = 4) -> list[LedgerEntry]:
    config = CoEvolutionConfig(mode=mode, imagined_episodes=30, gap_episodes=40)  # type: ignore[arg-type]
    evolution = CoEvolution(config, imagination, Ledger.open(folder / "ledger.json"))
    outcomes = [True] * 20 + [False] * 20
    return [evolution.after_collection(LedgerEntry(number, 40), outcomes) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("mode", "versions"),
    [
        ("off", [-1, -1, -1, -1]),
        ("frozen", [0, 0, 0, 0]),
        ("once", [0, 1, 1, 1]),
        ("continuous", [0, 1, 2, 3]),
        ("restart_from_sft", [0, 1, 2, 3]),
    ],
)
def test_each_mode_renews_the_world_model_in_its_own_rounds(mode: str, versions: list[int], tmp_path: Path) -> None:
    imagination = Recorded()
    entries = rounds(mode, tmp_path, imagination)
    assert [entry.model_version for entry in entries] == versions
    assert [entry.used for entry in entries] == [0 if version < 0 else 30 for version in versions]
    trained = [version for kind, version in imagination.calls if kind == "train"]
    assert trained == sorted({version for version in versions if version >= 0})


def test_the_alarm_stops_imagination_and_is_written_down(tmp_path: Path) -> None:
    imagination = Recorded(success=0.9)
    entries = rounds("continuous", tmp_path, imagination)
    assert all("apart" in entry.alarm for entry in entries)
    assert ("imagine", 0) not in imagination.calls
    assert entries[1].gap == pytest.approx(0.4)
    assert Ledger.open(tmp_path / "ledger.json").entries == entries


def test_imagination_is_compared_where_it_came_to_an_outcome(tmp_path: Path) -> None:
    """Real successes are the first twenty of forty; of these the first ten were cut in imagination."""
    entry = rounds("continuous", tmp_path / "some", Recorded(success=0.75, cut=10))[1]
    assert (entry.believed, entry.real_success) == (0.75, 0.5)
    assert (entry.imagined_success, entry.gap) == (pytest.approx(20 / 30), pytest.approx(20 / 30 - 10 / 30))
    assert "0.67, real success 0.33" in entry.alarm
    few = rounds("continuous", tmp_path / "few", Recorded(cut=31))[1]
    assert "only 9 of 40" in few.alarm
    none = rounds("continuous", tmp_path / "none", Recorded(cut=40))[1]
    assert "no imagined episode" in none.alarm
    assert (none.gap, none.believed, none.used) == (None, 0.0, 0)


def test_the_ledger_counts_every_real_episode_and_a_restart_repeats_nothing(tmp_path: Path) -> None:
    first = rounds("continuous", tmp_path, Recorded())
    again = Recorded()
    assert rounds("continuous", tmp_path, again) == first
    assert again.calls == []
    ledger = Ledger.open(tmp_path / "ledger.json")
    ledger.write(LedgerEntry(0, real_episodes=8, near_success_episodes=100))
    assert Ledger.open(tmp_path / "ledger.json").real_episodes == 4 * 40 + 108


@pytest.mark.parametrize("flattered", [True, False])
def test_the_alarm_grants_small_samples_their_error_and_looks_both_ways(flattered: bool) -> None:
    config = CoEvolutionConfig(largest_gap=0.1)
    pairs = [(not flattered, flattered)] * 3 + [(True, True)] * 10 + [(False, False)] * 7
    assert gap_alarm(pairs, 20, config) == ""
    assert gap_alarm(pairs * 50, 1000, config) != ""
    assert gap_alarm([(True, False), (False, True)] * 500, 1000, config) == "", "single outcomes may differ"


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'continuous'"):
        CoEvolutionConfig(mode="continous")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"imagination\.least_believed is 2"):
        CoEvolutionConfig(least_believed=2)
    with pytest.raises(ConfigError, match=r"imagination\.refine_steps is -1"):
        CoEvolutionConfig(refine_steps=-1)
