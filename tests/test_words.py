"""How numbers are written: one way for a time, a share, a size and a count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks.core import words

TIMES = {
    0.0: "0 ms",
    0.0004: "0.4 us",
    0.0352: "35.2 us",
    0.0996: "99.6 us",
    0.09996: "0.1 ms",
    0.4123: "0.412 ms",
    4.1: "4.1 ms",
    65.71: "65.7 ms",
    412.4: "412 ms",
    999.4: "999 ms",
    999.6: "1 s",
    12_345.0: "12.3 s",
    119_000.0: "119 s",
    125_000.0: "2.08 min",
    5_400_000.0: "90 min",
    9_000_000.0: "2.5 h",
    3.6e9: "1,000 h",
    1e300: "2.78e+293 h",
    -65.71: "-65.7 ms",
}
SHARES = {
    0.0: "0%",
    0.0004: "<0.1%",
    0.005: "0.5%",
    0.05: "5%",
    0.0512: "5.1%",
    0.0996: "10%",
    0.614: "61%",
    1.2: "120%",
}
NUMBERS = {0: "0", 1e-7: "<0.0001", 0.0123: "0.0123", 4.126: "4.13", 99.96: "100", 1234.5: "1,230", -65.71: "-65.7"}
SIZES = {0: "0 B", 512: "512 B", 1023: "1023 B", 1536: "1.5 KiB", 20 << 20: "20 MiB", 5 << 40: "5 TiB", -2048: "-2 KiB"}


@pytest.mark.parametrize(("value", "text"), TIMES.items())
def test_time_has_three_digits_and_a_short_unit(value, text):
    assert words.ms(value) == text


@pytest.mark.parametrize(("value", "text"), SHARES.items())
def test_share_is_a_percentage_with_a_decimal_below_ten(value, text):
    assert words.share(value) == text


@pytest.mark.parametrize(("value", "text"), NUMBERS.items())
def test_a_number_has_three_digits_and_no_exponent(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(("value", "text"), SIZES.items())
def test_a_size_is_in_binary_units(value, text):
    assert words.size(value) == text


def test_a_count_is_grouped_and_agrees_with_its_noun():
    assert words.count(1, "window") == "1 window"
    assert words.count(1200, "window") == "1,200 windows"
    assert words.count(2, "entry", "entries") == "2 entries"
    assert (words.steps(3, 3), words.steps(3, 5)) == ("step 3", "steps 3-5")


UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}


@given(st.floats(1e-4, 1e12))
def test_written_time_is_exact_to_half_a_percent(value):
    number, unit = words.ms(value).split()
    assert "e" not in number
    assert math.isclose(float(number.replace(",", "")) * UNITS[unit], value, rel_tol=0.0051)
    assert len(number.replace(",", "").replace(".", "").lstrip("0")) <= 3 or unit == "h"
