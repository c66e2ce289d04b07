from __future__ import annotations

import base64
import contextlib
import gzip
import html
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core import words
from perfhooks.report.page.definitions import DEFINITIONS
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MARK: Final = re.compile(r"\{\{ (\w+) \}\}")
_SHARED_SCRIPTS: Final = ("dom.js", "address.js", "copying.js", "tables.js", "flame.js")
_SCRIPTS: Final = (
    *("figures.js", "explained.js", "evidence.js", "slow.js", "overview.js"),
    *("operators.js", "sections.js", "workers.js", "work.js", "page.js"),
)


_PLOTLY: Final = '<script type="text/plain" id="plotly">'


def render(data: Mapping[str, Any]) -> bytes:
    """Render the data of `run_data` as an HTML document.

    Strings from a trace cannot become markup. Strings are JSON in an inert element, with ``<`` escaped.
    """
    text = document("perfhooks", data, DEFINITIONS, _SCRIPTS, plotly=f"{_PLOTLY}</script>").encode()
    # replace in bytes: one wide character would double the two megabytes of plotly in a str
    return text.replace(_PLOTLY.encode(), _PLOTLY.encode() + _packed_plotly(), 1)


def document(title: str, data: Any, definitions: Any, scripts: Sequence[str], *, plotly: str = "") -> str:
    code = "".join(template(name) for name in (*_SHARED_SCRIPTS, *scripts))
    return filled(
        "page.html",
        title=html.escape(title),
        style=template("page.css"),
        data=_inert(data),
        definitions=_inert(definitions),
        plotly=plotly,
        scripts=code,
    )


def filled(name: str, **values: str) -> str:
    """Fill a template. Values must be escaped HTML."""
    return _MARK.sub(lambda mark: values[mark[1]], template(name))


def template(name: str) -> str:
    return (Path(__file__).with_name("templates") / name).read_text(encoding="utf-8")


def _inert(data: Any) -> str:
    text = words.printable(msgspec.json.encode(data).decode())
    # these characters occur only in JSON strings; the last two are line ends in old JavaScript
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _packed_plotly() -> bytes:
    cache = _plotly_cache()
    if cache is not None:
        with contextlib.suppress(OSError):
            return cache.read_bytes()
    from plotly.offline import get_plotlyjs

    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), 3, mtime=0))
    if cache is not None and not sys.dont_write_bytecode:
        with contextlib.suppress(OSError), publish(cache) as file:
            file.write(packed)
    return packed


def _plotly_cache() -> Path | None:
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None or not __spec__.cached:
        return None
    try:
        facts = Path(spec.origin).parent.joinpath("package_data", "plotly.min.js").stat()
    except OSError:
        return None
    return Path(__spec__.cached).with_name(f"plotly-{facts.st_size}-{facts.st_mtime_ns}.gz.txt")
