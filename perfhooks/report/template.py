"""The templates of the package, and their rules: everything is escaped but what is marked as safe."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def filled(name: str, **given: Any) -> str:
    """A template with its blanks filled."""
    return _environment().get_template(name).render(**given)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    loader = jinja2.PackageLoader("perfhooks.report", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
