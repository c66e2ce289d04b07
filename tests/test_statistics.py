"""Statistics of step times: quantiles that books print."""

import math

import pytest

from perfhooks.core.statistics import chance_of, student

TABLE = {
    (0.005, 1): 63.6567,
    (0.005, 2): 9.92484,
    (0.005, 4): 4.60409,
    (0.005, 22): 2.81876,
    (0.005, 1000): 2.58075,
    (0.001, 4): 7.17318,
    (0.025, 10): 2.22814,
    (0.025, 1000): 1.96234,
}


@pytest.mark.parametrize(("given", "value"), TABLE.items())
def test_students_quantile_is_that_of_every_book(given, value):
    assert student(*given) == pytest.approx(value, rel=1e-4)


def test_student_quantile_is_continuous_between_methods():
    """Up to 200 degrees of freedom it is summed, beyond it is expanded around the normal distribution."""
    assert student(0.005, 200) == pytest.approx(student(0.005, 200.001), rel=1e-5)


@pytest.mark.parametrize(("count", "number", "share"), [(5, 5, 0.25), (41, 48, 0.25), (3, 4, 0.5), (0, 3, 0.5)])
def test_chance_of_a_count_bounds_the_binomial_sum(count, number, share):
    exact = sum(math.comb(number, k) * share**k * (1 - share) ** (number - k) for k in range(count, number + 1))
    assert exact <= chance_of(count, number, share) * (1 + 1e-9) <= 1 + 1e-9
