import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.report.charts import curve_chart
from vla_rl.report.run_episodes import segments
from vla_rl.report.svg import Axis, line, number
from vla_rl.report.wording import duration, percent

ranges = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
maybe_finite = st.floats(-1e9, 1e9) | st.just(math.nan)


@given(ranges)
def test_ticks_are_few_and_within_the_axis(low_high):
    low, high = low_high
    ticks = Axis(low, high, 0, 100).ticks(4)
    assert 1 <= len(ticks) <= 6
    assert all(low - 1e-6 * (high - low) <= tick <= high + 1e-6 * (high - low) for tick in ticks)


@given(st.floats(1e-6, 1e3), st.floats(10, 1e6))
def test_logarithmic_ticks_are_few_and_within_the_axis(low, factor):
    ticks = Axis(low, low * factor, 0, 100, logarithmic=True).ticks()
    assert 1 <= len(ticks) <= 13
    assert all(low <= tick <= low * factor for tick in ticks)


def test_an_axis_maps_ends_to_ends_and_keeps_to_them():
    assert Axis(0, 10, 100, 0)([0, 5, 10, 99, -3]).tolist() == [100, 50, 0, 0, 100]
    assert Axis(0.01, 1, 0, 100, logarithmic=True)([0.01, 0.1, 1, 0]) == pytest.approx([0, 50, 100, 0])


def test_a_line_breaks_where_there_is_nothing():
    drawn = line([0, 1, 2, 3, 4], [1, 1, math.nan, 1, math.nan])
    assert drawn == '<path d="M0.0 1.0L1.0 1.0M3.0 1.0h0"></path>'


@given(st.lists(maybe_finite, min_size=1, max_size=400).filter(lambda values: not np.isnan(values).all()))
def test_any_curve_can_be_drawn(values):
    steps = 50.0 * np.arange(1, len(values) + 1)
    drawn = curve_chart({"first": (steps, np.array(values))}, [100.0], "loss")
    places = [float(place) for place in re.findall(r"[ML ](-?[\d.]+)", " ".join(re.findall(r'd="([^"]*)"', drawn)))]
    assert not re.search(r'="[^"]*\b(nan|inf)\b', drawn)
    assert all(-1 <= place <= 341 for place in places)


def test_the_curve_of_many_points_keeps_mean_and_extremes():
    values = np.zeros(10_000)
    values[5000] = 100.0
    drawn = curve_chart({"first": (np.arange(10_000.0), values - 1)}, [], "loss")
    band = re.search(r'<path d="([^"]*)" class="band first"', drawn)[1]
    assert len(drawn) < 20_000
    assert min(float(y) for y in re.findall(r" ([\d.]+)", band)) == 10.0  # the outlier reaches the top


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
    assert [number(value) for value in (-30, 1500, 0.25, 2e6)] == ["\N{MINUS SIGN}30", "1.5k", "0.25", "2M"]
    assert percent(0.914) == "91 %"
