"""The sections of the report: each turns a part of the run into HTML, or says what is not there yet."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vla_rl.core.errors import StoreError
from vla_rl.core.types import Source
from vla_rl.data.store import EpisodeHeader, EpisodeStore
from vla_rl.report import charts
from vla_rl.report.images import render_clip, tile_cameras, webp_uri
from vla_rl.report.run_episodes import Pair, Trace, open_store, read_pairs, read_traces
from vla_rl.report.run_files import Evaluation, Run
from vla_rl.report.statistics import fisher_p, wilson_interval
from vla_rl.report.wording import count, duration, outcome, percent, percent_interval

_MAX_PAIRS = 6
_MAX_PROBLEMS = 4
# Base64 makes a third more of it; the whole page stays below 8 MB.
_CLIP_BUDGET_BYTES = 5_000_000
_CLIP_WIDTH_PX = 192
_CURVES = (
    ("Actor loss", ("actor_loss",)),
    ("Viability loss", ("viability_loss",)),
    ("Efficiency loss", ("efficiency_loss",)),
    ("Gate: mean, saturated", ("gate_mean", "gate_saturated")),
    ("Actor samples per second", ("samples_per_s",)),
)
_UNKNOWN = "\N{EN DASH}"
_NO_CURVE = {"kind", "round", "step", "wall_s", "time_s"}
_TRACE_TITLES = {
    "success": "A success without help",
    "failure": "A failure",
    "takeover": "A takeover",
    "demonstration": "A demonstration",
}


def success(run: Run) -> str:
    """Success per round, with the controls and a table of the figures."""
    if not run.evaluations:
        return _section("Success", _missing("No policy has been evaluated yet."))
    names = list(dict.fromkeys(str(control.control) for control in run.controls))
    rows = []
    for evaluation in [*run.policies, *run.controls]:
        index = None if evaluation.control is None else names.index(evaluation.control)
        icon = f'<svg viewBox="-9 -9 18 18" aria-hidden="true">{charts.mark(index)}</svg>'
        name = evaluation.label if evaluation.control is None else f"{evaluation.control}, round {evaluation.round}"
        rows.append([icon + html.escape(name), *_figures(evaluation), _against_last(run, evaluation)])
    last = run.policies[-1].label if run.policies else "the last"
    heads = [
        "policy",
        "success",
        "95 %",
        "episodes",
        "trained on",
        "gradient steps",
        "steps to success",
        f"p against {last}",
    ]
    lead = (
        "On episodes that training never sees. Band and bars: Wilson's 95 % interval. "
        "p: Fisher's exact test, two-sided. Trained on: demonstrations and practice episodes."
    )
    chart = charts.success_chart(run.policies, run.controls, names)
    body = _lead(lead) + f"<figure>{chart}</figure>" + _table(heads, rows) + _per_task(run)
    return _section("Success", body + ("" if names else _missing("There are no controls in this run.")))


def clips(run: Run) -> str:
    """The first and the last policy side by side on the same seeds."""
    title = "The first and the last policy on the same seeds"
    problems: list[str] = []
    store = open_store(run.path / "evaluation", problems)
    pairs = read_pairs(store, problems) if store is not None else []
    if store is None or not pairs:
        words = "There are no evaluation episodes of two policies on the same seeds yet."
        return _section(title, _missing(words) + _problems(problems))
    cards, used_bytes = [], 0
    for pair in _shown(pairs):
        try:
            first, last = _clip_pair(store, pair)
        except StoreError as error:
            problems.append(f"An evaluation episode was left out: {error}.")
            continue
        used_bytes += len(first) + len(last)
        if used_bytes > _CLIP_BUDGET_BYTES:
            break
        seed = f"seed {pair.first.seed}" if pair.first.seed is not None else pair.first.episode_id
        both = _clip(first, pair.first) + _clip(last, pair.last)
        cards.append(f'<div><div class="seed">{html.escape(seed)}</div><div class="pair">{both}</div></div>')
    outcomes = [pair.outcome for pair in pairs]
    lead = (
        f"Of {count(len(pairs), 'seed')}: {outcomes.count((False, True))} only the last policy solves, "
        f"{outcomes.count((True, False))} only the first, {outcomes.count((True, True))} both, "
        f"{outcomes.count((False, False))} neither. "
        "Gains are shown first. Left the first policy, right the last, in real time."
    )
    return _section(title, _lead(lead) + f'<div class="clips">{"".join(cards)}</div>' + _problems(problems))


def traces(run: Run) -> str:
    """Values and weights along a success, a failure and a takeover."""
    title = "What the critics say along an episode"
    problems: list[str] = []
    store = open_store(run.path / "episodes", problems)
    found = read_traces(run.path / "traces", store, problems) if store is not None else []
    if not found:
        algorithm = run.summary.get("algorithm")
        words = "There are no traces of values and weights yet"
        words += f", or the algorithm ({algorithm}) has no critics." if algorithm else "."
        return _section(title, _missing(words) + _problems(problems))
    lead = (
        "What the critics expect at each step, and what the actor's loss makes of it, after the round in which the "
        "episode was collected and trained on."
    )
    figures = [
        f'<h3>{_TRACE_TITLES[trace.kind]}</h3><figure><div class="scroll">{charts.trace_chart(trace)}</div>'
        f"<figcaption>{_trace_caption(trace)}</figcaption></figure>"
        for trace in found
    ]
    return _section(title, _lead(lead) + "".join(figures) + _problems(problems))


def calibration(run: Run) -> str:
    """How often the viability critic is right about episodes that it has not been trained on."""
    title = "Is the viability critic right as often as it says?"
    forecasts = run.forecasts
    if not forecasts:
        why = "they begin with the second round of practice, for an algorithm that has a viability critic"
        return _section(title, _missing(f"There are no forecasts: {why}."))
    lead = (
        "Measured on the practice episodes of a round with the critic as the round before left it, so that it was "
        "trained on none of them. Counted is every fourth of the policy's steps: with the outcome of the episode where "
        "no person took over after it, otherwise as a failure. Calibration error: mean distance between predicted and "
        "observed over ten bins, weighted by steps."
    )
    rows = [
        [
            f"round {forecast.round}",
            f"{forecast.calibration_error:.3f}",
            f"{forecast.brier:.3f}",
            percent(forecast.mean_predicted),
            percent(forecast.mean_observed),
            f"{forecast.steps:,}",
        ]
        for forecast in forecasts
    ]
    heads = ["episodes of", "calibration error", "Brier score", "mean predicted", "observed", "steps"]
    key = {"newest": f"round {forecasts[-1].round}"} | ({"older": "rounds before"} if len(forecasts) > 1 else {})
    note = f'<p class="note">{_legend(key)}. Dotted: perfect calibration. Area of a mark: its share of the steps.</p>'
    chart = f"<figure>{charts.reliability_chart(forecasts)}{note}</figure>"
    return _section(title, _lead(lead) + f'<div class="beside">{chart}{_table(heads, rows)}</div>')


def training(run: Run) -> str:
    """Training curves over gradient steps."""
    records = [
        {"samples_per_s": _float(record.get("steps_per_s")) * run.actor_batch(record.get("round", 0)), **record}
        for record in run.records("train")
    ]
    steps = np.array([record["step"] for record in records], np.float64)
    rounds = [record.get("round") for record in records]
    boundaries = [float(steps[i - 1]) for i in range(1, len(rounds)) if rounds[i] != rounds[i - 1]]
    names = sorted({name for record in records for name in record} - _NO_CURVE)
    others = [name for name in names if not any(name in curve for _, curve in _CURVES)]

    def figure(title: str, curve: Sequence[str]) -> str:
        columns = [np.array([_float(record.get(name)) for record in records]) for name in curve]
        known = [(steps, column) for column in columns if np.isfinite(column).any()]
        if not known:
            return ""
        series = dict(zip(("first", "second"), known, strict=False))
        latest = {name: f"{values[np.isfinite(values)][-1]:.4g}" for name, (_, values) in series.items()}
        values = " ".join(f'<span class="latest {name}">{value}</span>' for name, value in latest.items())
        caption = f"<figcaption>{html.escape(title)}<span>{values}</span></figcaption>"
        return f"<figure>{caption}{charts.curve_chart(series, boundaries, title)}</figure>"

    shown = "".join(figure(title, curve) for title, curve in _CURVES)
    more = "".join(figure(name.replace("_", " "), (name,)) for name in others)
    if not shown and not more:
        return _section("Training", _missing("No gradient steps have been logged yet."))
    lead = (
        "Over gradient steps; a dotted line begins a round of practice. At the right of each title, the latest value."
    )
    folded = f'<details><summary>More curves</summary><div class="curves">{more}</div></details>' if more else ""
    return _section("Training", _lead(lead) + f'<div class="curves">{shown}</div>' + folded)


def collection(run: Run) -> str:
    """What each round of practice brought in."""
    records = [record for record in run.records("collect") if _float(record.get("episodes")) > 0]
    if not records:
        return _section("Practice episodes", _missing("No practice episodes have been logged yet."))
    rows = []
    for record in records:
        episodes, successes, takeovers, rescued = (
            int(_float(record.get(name), 0)) for name in ("episodes", "successes", "takeovers", "rescued")
        )
        alone, lost = successes - rescued, takeovers - rescued
        shares = (("good", alone), ("human", rescued), ("human tint", lost), ("bad", episodes - alone - takeovers))
        bar = "".join(
            f'<span class="fill-{name}" style="width:{100 * n / episodes:.2f}%"></span>' for name, n in shares
        )
        length = _float(record.get("mean_length"))
        name = "demonstrations" if record.get("round") == 0 else f"round {record.get('round')}"
        figures = [
            f"{episodes:,}",
            f"{alone:,}",
            f"{takeovers:,}",
            f"{rescued:,}",
            f"{length:.0f}" if length >= 0 else _UNKNOWN,
        ]
        rows.append([html.escape(name), *figures, f'<div class="bar">{bar}</div>'])
    heads = ["", "episodes", "autonomous successes", "takeovers", "of these rescued", "mean steps", ""]
    names = {"good": "success alone", "human": "rescued", "human tint": "taken over in vain", "bad": "failure"}
    return _section("Practice episodes", _table(heads, rows) + f'<p class="note">{_legend(names)}</p>')


def machine(run: Run) -> str:
    """The machine, the versions, and where the time went."""
    body = ""
    if run.stages:
        total_s = sum(wall_s for _, wall_s in run.stages) or 1.0
        rows = [
            [
                html.escape(name),
                duration(wall_s),
                f'<div class="bar"><span class="fill-policy" style="width:{100 * wall_s / total_s:.2f}%"></span></div>',
            ]
            for name, wall_s in run.stages
        ]
        body += _table(["stage", "wall clock", ""], rows)
    facts = {str(name): _plain(value) for name, value in run.machine.items() if value is not None}
    if facts:
        body += (
            f"<dl>{''.join(f'<dt>{html.escape(name)}</dt><dd>{html.escape(facts[name])}</dd>' for name in facts)}</dl>"
        )
    return _section("Machine and time", body or _missing("The machine and the wall-clock times are not known yet."))


def config(run: Run) -> str:
    """The resolved config, folded."""
    if not run.config_text:
        return _section("Configuration", _missing("There is no config.yaml in this run folder."))
    return _section(
        "Configuration", f"<details><summary>config.yaml</summary><pre>{html.escape(run.config_text)}</pre></details>"
    )


def _figures(evaluation: Evaluation) -> list[str]:
    length = evaluation.mean_success_length
    return [
        percent(evaluation.rate),
        percent_interval(evaluation.interval),
        f"{evaluation.successes} / {evaluation.episodes}",
        _UNKNOWN if evaluation.real_episodes is None else f"{evaluation.real_episodes:,}",
        _UNKNOWN if evaluation.gradient_steps is None else f"{evaluation.gradient_steps:,}",
        _UNKNOWN if length is None else f"{length:.0f}",
    ]


def _per_task(run: Run) -> str:
    """Success on each task, of policies that have several; else nothing."""
    tasks = list(dict.fromkeys(task for policy in run.policies for task in policy.tasks))
    if not tasks:
        return ""
    rows = []
    for policy in run.policies:
        counts = [policy.tasks.get(task, (0, 0)) for task in tasks]
        cells = [
            f"{percent(successes / episodes)} {percent_interval(wilson_interval(successes, episodes))}"
            if episodes
            else _UNKNOWN
            for successes, episodes in counts
        ]
        rows.append([html.escape(policy.label), *cells])
    return _table(["policy", *tasks], rows)


def _against_last(run: Run, evaluation: Evaluation) -> str:
    last = run.policies[-1] if run.policies else evaluation
    if evaluation is last:
        return ""
    return f"{fisher_p(last.successes, last.episodes, evaluation.successes, evaluation.episodes):.2g}"


def _shown(pairs: Sequence[Pair]) -> list[Pair]:
    """Mostly gains, but what got worse and what is still unsolved is shown too."""
    worse = [pair for pair in pairs if pair.outcome == (True, False)][:1]
    unsolved = [pair for pair in pairs if pair.outcome == (False, False)][:1]
    others = [pair for pair in pairs if pair.outcome[1]]
    return [*others[: _MAX_PAIRS - len(worse) - len(unsolved)], *worse, *unsolved]


def _clip_pair(store: EpisodeStore, pair: Pair) -> tuple[bytes, bytes]:
    """Both clips, of equal length in time, so that they repeat together."""
    episodes = [store.read(header.episode_id) for header in (pair.first, pair.last)]
    seconds = [len(episode) / episode.control_hz for episode in episodes]
    rendered = []
    for episode, length_s in zip(episodes, seconds, strict=True):
        images = tile_cameras(episode.images)
        scale = min(3.0, _CLIP_WIDTH_PX / images.shape[2])
        rendered.append(render_clip(images, episode.control_hz, scale, hold_s=1.0 + max(seconds) - length_s))
    return rendered[0], rendered[1]


def _clip(content: bytes, header: EpisodeHeader) -> str:
    kind, sign = outcome(header.success), {True: "✓ ", False: "✗ ", None: ""}[header.success]
    caption = f"version {header.policy_version}<br><b>{sign}{kind}</b>, {count(header.length, 'step')}"
    alt = f"policy version {header.policy_version}: {kind}"
    return (
        f'<figure class="{kind}"><img src="{webp_uri(content)}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'
    )


def _trace_caption(trace: Trace) -> str:
    present = [Source(value).name.lower() for value in sorted(set(trace.episode.source.tolist()))]
    shades = {"policy": "policy tint", "human": "human tint", "demo": "demo tint", "hold": "hold tint"}
    words = f"{trace.episode.episode_id}: {count(len(trace.episode), 'step')}, {outcome(trace.episode.success)}."
    return f"{html.escape(words)} Who acted: {_legend({shades[name]: name for name in present})}"


def _legend(names: dict[str, str]) -> str:
    return "".join(f'<span class="key fill-{style}"></span>{html.escape(words)}' for style, words in names.items())


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>\n"


def _lead(words: str) -> str:
    return f'<p class="lead">{html.escape(words)}</p>'


def _missing(words: str) -> str:
    return f'<p class="missing">{html.escape(words)}</p>'


def _problems(problems: Sequence[str]) -> str:
    more = len(problems) - _MAX_PROBLEMS
    sentences = [*problems[:_MAX_PROBLEMS], *([f"And {count(more, 'more problem')} like these."] if more > 0 else [])]
    return "".join(f'<p class="problem">{html.escape(sentence)}</p>' for sentence in sentences)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; heads are escaped, cells are HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _float(value: Any, default: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)
