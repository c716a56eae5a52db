"""Words and figures of the report: percentages, durations, and the glossary."""

P_VALUE = (
    "The last column has the two-sided p: McNemar's exact test for policies on the same seeds, Fisher's exact test for "
    "others."
)
GLOSSARY = {
    "advantage": "how much better the steps after an action went than the critic had expected before it",
    "advantage gate": "a factor from 0 to 2 on what the policy imitates. It is near 0 where an action was worse than "
    "usual, near 2 where it was better. It is not the safety gate before the motors",
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
"""Terms of the report and of the pages of the docs; each is defined here only."""


def percent(rate: float) -> str:
    """Format a rate as a whole percentage: 0.914 -> "91 %"."""
    return f"{100 * rate:.0f} %"


def percent_interval(interval: tuple[float, float]) -> str:
    """Format an interval of rates in percent without the sign: (0.838, 0.95) -> "[84, 95]"."""
    low, high = interval
    return f"[{100 * low:.0f}, {100 * high:.0f}]"


def duration(seconds: float) -> str:
    """Format seconds in two units at most: "43.2 s", "7 min 12 s", "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"


def count(number: int, noun: str) -> str:
    """Format a number and its noun: "1 episode", "1,500 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def outcome(success: bool | None) -> str:
    """Return the outcome of an episode in a word."""
    return {True: "success", False: "failure", None: "unlabelled"}[success]
