"""Reads a run folder for the report, at any moment of a run or after a crash.

What is missing is empty, what is damaged is left out with a sentence.
"""

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from vla_rl.core.errors import UserError
from vla_rl.report.sinks import read_records
from vla_rl.report.statistics import fisher_p, mcnemar_p, wilson_interval


@dataclass(frozen=True)
class Evaluation:
    """How often one policy succeeded.

    Attributes:
        round: practice rounds before it; 0 is the supervised policy.
        label: what the policy is called.
        gradient_steps: spent on it; None if unknown.
        real_episodes: demonstrations and practice episodes that it was trained on; None if unknown.
        successes: of the evaluation episodes.
        episodes: evaluated.
        mean_success_length: steps of a successful episode; None without one.
        control: name of the control that this policy belongs to; None for the policies of the run itself.
        tasks: (successes, episodes) of each task, where one policy has several.
        outcomes: Environment and seed -> whether the policy succeeded; empty if the summary does not have them.
    """

    round: int
    label: str
    gradient_steps: int | None
    real_episodes: int | None
    successes: int
    episodes: int
    mean_success_length: float | None
    control: str | None
    tasks: dict[str, tuple[int, int]]
    outcomes: dict[str, bool]

    @classmethod
    def from_summary(cls, entry: dict[str, Any]) -> Self:
        """From an entry of summary.json. Raises KeyError, TypeError, ValueError or UserError if it is none."""
        control = entry.get("control")
        evaluation = cls(
            round=int(entry["round"]),
            label=str(entry.get("label") or f"round {entry['round']}"),
            gradient_steps=_number(entry.get("gradient_steps")),
            real_episodes=_number(entry.get("real_episodes")),
            successes=int(entry["successes"]),
            episodes=int(entry["episodes"]),
            mean_success_length=_number(entry.get("mean_success_length")),
            control=None if control is None else str(control),
            tasks={
                str(task): (int(own["successes"]), int(own["episodes"]))
                for task, own in dict(entry.get("tasks") or {}).items()
            },
            outcomes={str(seed): bool(success) for seed, success in dict(entry.get("outcomes") or {}).items()},
        )
        if evaluation.episodes < 1:
            raise ValueError("an evaluation without episodes")
        for successes, episodes in [(evaluation.successes, evaluation.episodes), *evaluation.tasks.values()]:
            wilson_interval(successes, episodes)
        return evaluation

    def p_value(self, other: "Evaluation") -> float:
        """Return the two-sided p-value that another policy succeeds equally often.

        McNemar's exact test where both were evaluated on the same seeds, else Fisher's exact test.
        """
        if self.outcomes and self.outcomes.keys() == other.outcomes.keys():
            pairs = [(success, other.outcomes[seed]) for seed, success in self.outcomes.items()]
            return mcnemar_p(pairs.count((True, False)), pairs.count((False, True)))
        return fisher_p(self.successes, self.episodes, other.successes, other.episodes)

    @property
    def rate(self) -> float:
        """The share of successes."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson_interval(self.successes, self.episodes)


@dataclass(frozen=True)
class Forecasts:
    """How right the viability critic was about the episodes of a round before it was trained on them.

    Attributes:
        round: that collected the episodes; the critic is that of the round before.
        steps: with a label, behind all figures.
        calibration_error: expected calibration error, 0 to 1.
        brier: mean squared distance between prediction and label.
        auc: the chance that a step that led to success has the higher prediction of two; None where all steps end
            alike.
        discount: gamma of a tick; below 1 a step that led to success counts gamma^(ticks to its end).
        mean_predicted: mean prediction.
        mean_observed: share of the steps that led to success; what they count on average.
        predicted, observed, samples: the reliability curve, bin by bin.
    """

    round: int
    steps: int
    calibration_error: float
    brier: float
    auc: float | None
    discount: float
    mean_predicted: float
    mean_observed: float
    predicted: list[float]
    observed: list[float]
    samples: list[int]

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """From a record of kind ``calibrate``. Raises KeyError, TypeError or ValueError if it is none."""
        numbers = {name: float(record[name]) for name in ("calibration_error", "brier")}
        numbers |= {name: float(record[name]) for name in ("mean_predicted", "mean_observed")}
        predicted, observed = ([float(value) for value in record[name]] for name in ("predicted", "observed"))
        samples = [int(value) for value in record["samples"]]
        if not len(predicted) == len(observed) == len(samples) > 0 or min(samples) < 1:
            raise ValueError("a reliability curve whose columns do not fit")
        return cls(
            int(record["round"]),
            int(record["steps"]),
            **numbers,
            auc=_number(record["auc"]),
            discount=float(record["discount"]),
            predicted=predicted,
            observed=observed,
            samples=samples,
        )


@dataclass(frozen=True)
class Run:
    """What the report needs of a run folder, besides its episodes.

    Attributes:
        path: the run folder.
        config_text: the resolved config as YAML; empty if missing.
        config: what it says; empty if it is damaged.
        summary: summary.json; empty if missing.
        evaluations: of the run's own policies by round, then the controls.
        stages: (name, wall-clock seconds) of every stage that ran.
        metrics: the records of metrics.jsonl, in the order written.
        problems: a sentence for every part that could not be read.
    """

    path: Path
    config_text: str
    config: dict[str, Any]
    summary: dict[str, Any]
    evaluations: list[Evaluation]
    stages: list[tuple[str, float]]
    metrics: list[dict[str, Any]]
    problems: list[str]

    @property
    def policies(self) -> list[Evaluation]:
        """The evaluations of the run's own policies, by round; of a round that was evaluated again, the later one."""
        newest = {evaluation.round: evaluation for evaluation in self.evaluations if evaluation.control is None}
        return list(newest.values())

    @property
    def controls(self) -> list[Evaluation]:
        """The evaluations of other ways to spend the same budget."""
        return [evaluation for evaluation in self.evaluations if evaluation.control is not None]

    @property
    def machine(self) -> dict[str, Any]:
        """What the run ran on, as it was noted."""
        machine = self.summary.get("machine")
        return machine if isinstance(machine, dict) else {}

    @property
    def wall_s(self) -> float | None:
        """Wall-clock seconds of all stages."""
        return _number(self.summary.get("wall_s"))

    @property
    def forecasts(self) -> list[Forecasts]:
        """Calibration by round; records that are damaged or without a step are left out."""
        found = []
        for record in self.records("calibrate"):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found.append(Forecasts.from_record(record))
        return found

    def actor_batch(self, number: int) -> float:
        """Samples in a gradient step of the actor in a round, as the config says; NaN if it does not."""
        section = self.config.get("supervised" if number == 0 else "learning")
        actor = section.get("actor") if isinstance(section, dict) else None
        size = _number(actor.get("batch_size")) if isinstance(actor, dict) else None
        return math.nan if size is None else float(size)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind, by step; of a step that a resumed run did again, the later record."""
        records = [
            record for record in self.metrics if record.get("kind") == kind and _number(record.get("step")) is not None
        ]
        newest = {(record.get("round"), record["step"]): record for record in records}
        return sorted(newest.values(), key=lambda record: record["step"])


def read_run(run_dir: Path) -> Run:
    """Read a run folder, as far as it goes.

    Raises:
        UserError: if the folder holds nothing of a run.
    """
    if not any((run_dir / name).exists() for name in ("config.yaml", "summary.json", "metrics.jsonl")):
        raise UserError(
            f"{run_dir} holds no run (no config.yaml, summary.json or metrics.jsonl); give the folder that --out named"
        )
    problems: list[str] = []
    summary = _read_summary(run_dir / "summary.json", problems)
    policies = _read_evaluations(summary.get("evaluations", []), problems)
    config_text = _read_text(run_dir / "config.yaml", problems)
    return Run(
        path=run_dir,
        config_text=config_text,
        config=_read_config(config_text),
        summary=summary,
        evaluations=[*policies, *_read_controls(summary.get("controls", []), policies, problems)],
        stages=_read_stages(summary.get("stages", []), problems),
        metrics=_read_metrics(run_dir / "metrics.jsonl", problems),
        problems=problems,
    )


def _read_text(file: Path, problems: list[str]) -> str:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        problems.append(f"{file.name} cannot be read: {error.strerror}.")
        return ""


def _read_summary(file: Path, problems: list[str]) -> dict[str, Any]:
    text = _read_text(file, problems)
    try:
        summary = json.loads(text or "{}")
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        problems.append(f"{file.name} is damaged and was left out.")
        return {}
    return summary


def _read_evaluations(entries: Any, problems: list[str]) -> list[Evaluation]:
    evaluations = []
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            evaluations.append(Evaluation.from_summary(entry))
        except (KeyError, TypeError, ValueError, AttributeError, UserError):
            problems.append("An evaluation in summary.json is not complete and was left out.")
    return sorted(evaluations, key=lambda evaluation: evaluation.round)


def _read_controls(entries: Any, policies: list[Evaluation], problems: list[str]) -> list[Evaluation]:
    """Entries {name, successes, episodes}; one that names no round spent the budget of the whole run."""
    last_round = policies[-1].round if policies else 0
    controls = []
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            named = {"control": entry["name"], "label": entry["name"], "round": last_round}
            controls.append(Evaluation.from_summary({**named, **entry}))
        except (KeyError, TypeError, ValueError, AttributeError, UserError):
            problems.append("A control in summary.json is not complete and was left out.")
    return controls


def _read_config(text: str) -> dict[str, Any]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return config if isinstance(config, dict) else {}


def _read_stages(entries: Any, problems: list[str]) -> list[tuple[str, float]]:
    try:
        return [(str(entry["name"]), float(entry["wall_s"])) for entry in entries]
    except (KeyError, TypeError, ValueError):
        problems.append("The stages in summary.json are not complete and were left out.")
        return []


def _read_metrics(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        return read_records(file)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{file.name} cannot be read: {error.strerror}.")
        return []


def _number(value: Any) -> Any:
    """The value if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None
