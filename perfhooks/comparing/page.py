"""A comparison as one page: both runs side by side, the way from one step to the other, and every table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.comparing import flames
from perfhooks.comparing.comparison import data
from perfhooks.report.page import inert
from perfhooks.report.template import filled

if TYPE_CHECKING:
    from perfhooks.comparing.comparison import Comparison

DEFINITIONS: Final = {
    "Verdict": {
        "median step": (
            "Of the steps that nobody recorded, without the first ones and those with validation or checkpoints; of "
            "several runs the geometric mean of their medians."
        ),
        "interval": (
            "Contains the true ratio in 99 of 100 comparisons: by a moving-block bootstrap of each run's steps, and by "
            "how runs of one side differ where there are three or more. Where there are fewer, processes are taken to "
            "differ by 2%."
        ),
        "not decided": "The interval reaches over the tolerance: both answers are possible.",
    },
    "Reasons": {
        "contribution": (
            "B less A, of one recorded step. Each moment of a step is in exactly one row, so the rows sum to the "
            "difference of the recorded steps. Recording makes steps longer, so this is not the difference of the "
            "verdict."
        ),
        "by calls, by price": "(calls of B - calls of A) times the price of A's calls; and what is left.",
        "host": "Moments of the step's own thread by the innermost operator, module and line that is open.",
        "device": (
            "Moments of the step by what devices did: compute before communication before copies; else idle, by what "
            "the host did meanwhile. Used where devices are busy for half of both steps or more."
        ),
        "renamed": "Modules and lines that are called otherwise, and contain the same operators, are one row.",
    },
}
"""What the numbers on the page mean."""


def render(made: Comparison) -> str:
    """Make the page of a comparison.

    Args:
        made: What was compared.

    Returns:
        An HTML document that needs nothing else.
    """
    return filled("comparison.html.j2", data=inert(page_data(made)), definitions=inert(DEFINITIONS))


def page_data(made: Comparison) -> dict[str, Any]:
    """What the page shows: what `comparison.data` tells, with both flame graphs in one."""
    told = data(made)
    drawn = told.pop("flames")
    merged = flames.both_ways(drawn["a"], drawn["b"], made.a.flame_steps, made.b.flame_steps)
    return told | {"flames": merged}
