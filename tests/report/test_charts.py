import json
import math
import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from run_maker import make_episode

from vla_rl.report.charts import Line, chart, curve_chart
from vla_rl.report.run_episodes import Trace, segments
from vla_rl.report.wording import duration, percent

maybe_finite = st.floats(-1e9, 1e9) | st.just(math.nan)


def embedded(figure: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', figure, re.DOTALL)
    return json.loads(text)


@given(st.lists(maybe_finite, min_size=1, max_size=2000).filter(lambda values: not np.isnan(values).all()))
def test_any_curve_becomes_data_of_bounded_size(values):
    steps = 50.0 * np.arange(1, len(values) + 1)
    (line,) = embedded(curve_chart("loss", {"loss": (steps, np.array(values))}, rounds=[100.0]))["lines"]
    assert len(line["x"]) == len(line["y"]) == len(line["low"]) == len(line["high"]) <= 400
    assert line["x"] == sorted(line["x"])
    assert None not in line["y"]


def test_the_curve_of_many_points_keeps_mean_and_extremes():
    values = np.zeros(10_000)
    values[5000] = 100.0
    (line,) = embedded(curve_chart("loss", {"loss": (np.arange(10_000.0), values - 1)}))["lines"]
    assert (max(line["high"]), min(line["low"]), max(line["y"])) == (99.0, -1.0, 3.0)


def test_what_is_not_finite_breaks_a_line_and_a_wide_range_is_logarithmic():
    data = embedded(chart("t", [Line("a", [0, 1, 2], [1.0, math.nan, math.inf])], "step"))
    assert data["lines"][0]["y"] == [1.0, None, None]
    wide, narrow, negative = ((np.arange(3.0), np.array(y)) for y in ([0.1, 1, 50], [1.0, 2, 3], [-1.0, 1, 50]))
    drawn = [embedded(curve_chart("t", {"a": curve}))["logarithmic"] for curve in (wide, narrow, negative)]
    assert drawn == [True, False, False]


def test_no_text_ends_the_element_that_holds_it():
    evil = "</script><script>alert(1)</script><!--"
    figure = chart(evil, [Line(evil, [0], [1])], evil)
    assert figure.count("<script") == figure.count("</script>") == 1
    assert embedded(figure)["title"] == evil


def test_the_fall_is_where_the_chance_halves_for_good() -> None:
    def trace(chance: np.ndarray) -> Trace:
        return Trace("failure", make_episode("round001-00000", len(chance), False), {"viability": chance})

    falling = np.where(np.arange(60) < 40, 0.9, 0.05)
    falling[10:14] = 0.1
    assert trace(falling).fall in range(39, 42)
    assert trace(np.full(30, 0.9)).fall == 30, "it never falls"
    assert trace(np.full(30, np.nan)).chance is None


def test_segments_of_sources():
    assert list(segments(np.array([0, 0, 1, 1, 1, 0], np.uint8))) == [(0, 0, 2), (1, 2, 5), (0, 5, 6)]
    assert list(segments(np.array([2], np.uint8))) == [(2, 0, 1)]


def test_words_for_numbers():
    assert [duration(seconds) for seconds in (43.21, 59.99, 432.1, 11_100)] == [
        "43.2 s",
        "60.0 s",
        "7 min 12 s",
        "3 h 05 min",
    ]
    assert percent(0.914) == "91 %"
