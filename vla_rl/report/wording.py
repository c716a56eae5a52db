"""How a run is put into words and figures: percentages, durations, and the one-sentence result."""

from vla_rl.report.run_files import Evaluation, Run

P_VALUE = (
    "The last column has the two-sided p: McNemar's exact test for policies on the same seeds, Fisher's exact test for "
    "others."
)
GLOSSARY = {
    "advantage": "how much better the steps after an action went than the critic had expected before it",
    "advantage gate": "a factor from 0 to 2 on what the policy imitates: near 0 where an action was worse than usual, "
    "near 2 where it was better; not the safety gate, which stands before the motors",
    "action chunk": "the actions of the next second or so, planned at once from one observation",
    "brier score": "the mean squared distance between a forecast and what happened; 0 is perfect, 0.25 is a coin",
    "calibration error": "how far, on average, the predicted chance of success is from the share that succeeded",
    "control": "another way to spend the same budget, to see what practice itself brings",
    "critics": "networks that learn from how attempts ended to say, at every moment, how an attempt will go",
    "efficiency critic": "says how many steps success will still take",
    "gradient steps": "updates of the policy's weights",
    "p": "how often a difference at least this large would be seen if both policies were equally good; below 0.05 "
    "chance is a poor explanation",
    "practice": "the policy acts, is judged by how the attempt ends, and learns from that",
    "supervised": "trained on the demonstrations alone, before any practice",
    "takeover": "a person, or a script that stands in for one, acts in place of the policy for a while",
    "viability critic": "says how likely the attempt is to end in success",
    "weight": "how strongly the policy imitates a step: the advantage gate, for its own steps",
    "wilson's 95 % interval": "where the true rate of success plausibly lies, given how few episodes were tried",
}
"""The words of the report and of the pages of the docs, each defined here and nowhere else."""


def percent(rate: float) -> str:
    """A rate as a whole percentage: 0.914 -> "91 %"."""
    return f"{100 * rate:.0f} %"


def percent_interval(interval: tuple[float, float]) -> str:
    """An interval of rates, in percent without the sign: (0.838, 0.95) -> "[84, 95]"."""
    low, high = interval
    return f"[{100 * low:.0f}, {100 * high:.0f}]"


def duration(seconds: float) -> str:
    """Seconds in two units at most: "43.2 s", "7 min 12 s", "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 episode", "1,500 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def outcome(success: bool | None) -> str:
    """The outcome of an episode in a word."""
    return {True: "success", False: "failure", None: "unlabelled"}[success]


def headline(run: Run) -> str:
    """The result of a run in one sentence, of as much as is known."""
    policies = run.policies
    if not policies:
        return "No policy has been evaluated yet."
    first, last = policies[0], policies[-1]
    if first is last:
        return f"Success {_rate(first)} after {_label(first)}."
    parts = [
        f"Success {percent(first.rate)} → {_rate(last)} after {count(last.round - first.round, 'round')} of practice"
    ]
    if first.real_episodes is not None and last.real_episodes is not None:
        parts.append(count(last.real_episodes - first.real_episodes, "episode"))
    if run.wall_s is not None:
        cores = run.machine.get("cores")
        parts.append(duration(run.wall_s) + (f" on {count(cores, 'core')}" if isinstance(cores, int) else ""))
    return ", ".join(parts) + "."


def _rate(evaluation: Evaluation) -> str:
    return f"{percent(evaluation.rate)} {percent_interval(evaluation.interval)}"


def _label(evaluation: Evaluation) -> str:
    return "supervised training" if evaluation.round == 0 else count(evaluation.round, "round") + " of practice"
