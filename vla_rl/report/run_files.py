"""Reads a run folder for the report, at any moment of a run or after a crash.

Missing parts are empty. Damaged parts are left out, and `Run.problems` names them.
"""

import contextlib
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from vla_rl.core.errors import UserError
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.sinks import read_records
from vla_rl.report.statistics import fisher_p, mcnemar_p, wilson_interval
from vla_rl.report.wording import count, duration, percent, percent_interval

_TEXT = functools.partial(Path.read_text, errors="replace")
PARTS = ("plain policy", "policy + residual")
"""Controls that are a policy of the run taken apart: without residual and critic, and without critic."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one policy.

    Attributes:
        round: Practice rounds before it; 0 is the supervised policy.
        label: Name of the policy.
        gradient_steps: Gradient steps spent on it; None if unknown.
        real_episodes: Demonstrations and practice episodes until then; None if unknown.
        successes: Number of successful episodes.
        episodes: Number of evaluation episodes.
        mean_success_length: Mean steps of a successful episode; None without one.
        control: Name of the control that this policy belongs to; None for the policies of the run itself.
        tasks: (successes, episodes) of each task, if the policy has several.
        outcomes: Environment and seed -> whether the policy succeeded; empty if the summary does not have them.
        not_finite: Environment and seed of the episodes with actions that are not finite.
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
    not_finite: tuple[str, ...] = ()

    @classmethod
    def from_summary(cls, entry: dict[str, Any]) -> Self:
        """Read an entry of summary.json. Raises KeyError, TypeError, ValueError or UserError if it is incomplete."""
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
            not_finite=tuple(str(seed) for seed in entry.get("not_finite") or ()),
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
        """Share of successes."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson_interval(self.successes, self.episodes)

    @property
    def words(self) -> str:
        """The rate and its interval: "91 % [84, 95]"."""
        return f"{percent(self.rate)} {percent_interval(self.interval)}"


@dataclass(frozen=True)
class Forecasts:
    """The calibration of the viability critic on the episodes of a round, before it was trained on them.

    Attributes:
        round: The round that collected the episodes; the critic is that of the round before.
        steps: Number of labeled steps.
        calibration_error: Expected calibration error, 0 to 1.
        brier: Mean squared distance between prediction and label.
        auc: Area under the ROC curve; None if all steps have the same label.
        discount: Gamma of a tick; below 1 the label of a step that led to success is gamma^(ticks to its end).
        mean_predicted: Mean prediction.
        mean_observed: Mean label.
        predicted, observed, samples: The reliability curve, bin by bin.
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
        """Read a record of kind ``calibrate``. Raises KeyError, TypeError or ValueError if it is incomplete."""
        curve: dict[str, Any] = {name: [float(value) for value in record[name]] for name in ("predicted", "observed")}
        samples = [int(value) for value in record["samples"]]
        if not len(curve["predicted"]) == len(curve["observed"]) == len(samples) > 0 or min(samples) < 1:
            raise ValueError("a reliability curve whose columns do not fit")
        names = ("calibration_error", "brier", "discount", "mean_predicted", "mean_observed")
        numbers: dict[str, Any] = {name: float(record[name]) for name in names}
        numbers |= {name: int(record[name]) for name in ("round", "steps")}
        return cls(**numbers, **curve, auc=_number(record["auc"]), samples=samples)


@dataclass(frozen=True)
class Run:
    """The content of a run folder, without its episodes.

    Attributes:
        path: The run folder.
        config_text: The resolved config as YAML; empty if missing.
        config: The resolved config as data; empty if it is damaged.
        summary: summary.json; empty if missing.
        evaluations: Evaluations of the run's own policies and of the controls, by round.
        stages: (name, wall-clock seconds) of every stage that ran.
        metrics: Records of metrics.jsonl, in the order written.
        problems: A sentence for every part that could not be read.
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
        """The evaluations of the run's own policies, by round; the later one if a round was evaluated twice."""
        newest = {evaluation.round: evaluation for evaluation in self.evaluations if evaluation.control is None}
        return list(newest.values())

    @property
    def controls(self) -> list[Evaluation]:
        """The evaluations of other uses of the same budget."""
        return [evaluation for evaluation in self.evaluations if evaluation.control is not None]

    @property
    def lacks_parts(self) -> bool:
        """Whether the last policy acts with a critic or a residual, and has not been evaluated without them."""
        last = self.policies[-1].round if self.policies else 0
        chooses = (RunFolder(self.path).policy(last) / CRITIC_FOLDER).is_dir()
        return chooses and not any(each.control in PARTS and each.round == last for each in self.controls)

    @property
    def machine(self) -> dict[str, Any]:
        """The machine that the run recorded."""
        machine = self.summary.get("machine")
        return machine if isinstance(machine, dict) else {}

    @property
    def wall_s(self) -> float | None:
        """Wall-clock seconds of all stages."""
        return _number(self.summary.get("wall_s"))

    @property
    def forecasts(self) -> list[Forecasts]:
        """Calibration by round; damaged records and records without a step are left out."""
        found = []
        for record in self.records("calibrate"):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found.append(Forecasts.from_record(record))
        return found

    def actor_batch(self, number: int) -> float:
        """Return the batch size of the actor in a round; NaN if the config does not have it."""
        section = self.config.get("supervised" if number == 0 else "learning")
        actor = section.get("actor") if isinstance(section, dict) else None
        size = _number(actor.get("batch_size")) if isinstance(actor, dict) else None
        return math.nan if size is None else float(size)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of one kind, by step; the later one if a resumed run repeated a step."""
        records = [
            record for record in self.metrics if record.get("kind") == kind and _number(record.get("step")) is not None
        ]
        newest = {(record.get("round"), record["step"]): record for record in records}
        return sorted(newest.values(), key=lambda record: record["step"])


def read_run(run_dir: Path) -> Run:
    """Read a run folder; UserError if it holds nothing of a run."""
    if not any((run_dir / name).exists() for name in ("config.yaml", "summary.json", "metrics.jsonl")):
        raise UserError(
            f"{run_dir} holds no run (no config.yaml, summary.json or metrics.jsonl); give the folder that --out named"
        )
    problems: list[str] = []
    summary = _read_summary(run_dir / "summary.json", problems)
    config_text = _read(run_dir / "config.yaml", _TEXT, "", problems)
    try:
        config = yaml.safe_load(config_text)
    except yaml.YAMLError:
        config = None
    return Run(
        path=run_dir,
        config_text=config_text,
        config=config if isinstance(config, dict) else {},
        summary=summary,
        evaluations=_read_evaluations(summary, problems),
        stages=_read_stages(summary.get("stages", []), problems),
        metrics=_read(run_dir / "metrics.jsonl", read_records, [], problems),
        problems=problems,
    )


def headline(run: Run) -> str:
    """Return the result of a run so far in one sentence."""
    if not run.policies:
        return "No policy has been evaluated yet."
    first, last = run.policies[0], run.policies[-1]
    if first is last:
        label = count(first.round, "round") + " of practice" if first.round else "supervised training"
        return f"Success {first.words} after {label}."
    rounds = count(last.round - first.round, "round")
    parts = [f"Success {percent(first.rate)} → {last.words} after {rounds} of practice"]
    if first.real_episodes is not None and last.real_episodes is not None:
        parts.append(count(last.real_episodes - first.real_episodes, "episode"))
    if run.wall_s is not None:
        cores = run.machine.get("cores")
        parts.append(duration(run.wall_s) + (f" on {count(cores, 'core')}" if isinstance(cores, int) else ""))
    return ", ".join(parts) + "."


def _read[Content](file: Path, read: Callable[[Path], Content], missing: Content, problems: list[str]) -> Content:
    try:
        return read(file)
    except FileNotFoundError:
        return missing
    except OSError as error:
        problems.append(f"{file.name} cannot be read: {error.strerror}.")
        return missing


def _read_summary(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        summary = json.loads(_read(file, _TEXT, "", problems) or "{}")
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        problems.append(f"{file.name} is damaged and was left out.")
        return {}
    return summary


def _read_evaluations(summary: dict[str, Any], problems: list[str]) -> list[Evaluation]:
    found = []
    entries = summary.get("evaluations", [])
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            found.append(Evaluation.from_summary(entry))
        except (KeyError, TypeError, ValueError, AttributeError, UserError):
            problems.append("An evaluation in summary.json is not complete and was left out.")
    return sorted(found, key=lambda evaluation: evaluation.round)


def _read_stages(entries: Any, problems: list[str]) -> list[tuple[str, float]]:
    try:
        return [(str(entry["name"]), float(entry["wall_s"])) for entry in entries]
    except (KeyError, TypeError, ValueError):
        problems.append("The stages in summary.json are not complete and were left out.")
        return []


def _number(value: Any) -> Any:
    """Return the value if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None
