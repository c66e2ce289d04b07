"""The page: a run's data in one HTML file that needs nothing else, neither a network nor another file."""

from __future__ import annotations

import base64
import functools
import gzip
from typing import TYPE_CHECKING, Any

import msgspec

from perfhooks.report.definitions import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jinja2


def render(data: Mapping[str, Any]) -> str:
    """Make the page of a run.

    All that comes from a trace enters as JSON in one element that is no markup, with ``<`` written as an escape, and
    the page's own script puts it into the document as text.

    Args:
        data: What `run_data.gather` or `run_data.from_trace` gave.

    Returns:
        An HTML document.
    """
    return filled("page.html.j2", data=inert(data), definitions=inert(DEFINITIONS), plotly=_packed_plotly())


def inert(data: Any) -> str:
    """JSON that cannot end the element it stands in.

    Args:
        data: Plain data.
    """
    text = msgspec.json.encode(data).decode()
    # inside of strings only, where alone these can be; the last two end a line in old JavaScript
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@functools.cache
def _packed_plotly() -> str:
    """Return plotly.js, packed to a third of its size; browsers unpack it when a chart is drawn."""
    from plotly.offline import get_plotlyjs

    # level 9 takes three times as long for 9% less
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 3, mtime=0)).decode()


def filled(name: str, **given: Any) -> str:
    """Fill a template of the package: everything is escaped, unless it is marked as safe."""
    return _environment().get_template(name).render(**given)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    loader = jinja2.PackageLoader("perfhooks.report", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
