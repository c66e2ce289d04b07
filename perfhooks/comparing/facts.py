"""What differs between two trainings besides their speed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.report import json_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.comparing.costs import Costs
    from perfhooks.run.capture import Capture
    from perfhooks.run.manifest import Manifest

RECORDED: Final = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")
"""Options that make recorded steps slower."""
_TEXT: Final = 300
_PLACE: Final = re.compile(r"_(?:DIR|PATH|FILE|HOME)$")
"""Variables that say where files are kept make no training slower."""


class Difference(NamedTuple):
    """A fact that is not the same; empty is not known, or not there."""

    name: str
    a: str
    b: str


def facts(manifest: Manifest, capture: Capture, costs: Costs) -> dict[str, str]:
    """The facts that two runs should share if their steps are compared, as texts.

    Args:
        manifest: That of the run; an empty one of a bare trace.
        capture: The facts of its last window.
        costs: Those of its windows.
    """
    given: dict[str, Any] = {
        **{f"version of {name}": text for name, text in (manifest.versions | capture.versions).items()},
        "host": manifest.host,
        "machine": manifest.machine,
        "device": costs.device_name,
        "world size": manifest.world_size,
        "batch": costs.batch,
        "batches a step": f"{costs.fetches / costs.steps:.3g}" if costs.steps and costs.fetches else None,
        "schedule": manifest.schedule,
        **{f"option {name}": value for name, value in (manifest.options | capture.options).items()},
        **{f"environment {name}": value for name, value in manifest.environment.items() if not _PLACE.search(name)},
    }
    return {name: json_values.text(str(value), _TEXT) for name, value in json_values.facts(given).items()}


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """The facts that differ.

    A fact that only one side knows is left out, unless it is an option or a variable of the environment.

    Args:
        a: What `facts` gave of one side.
        b: And of the other.
    """
    names = dict.fromkeys([*a, *b])
    told = [Difference(name, a.get(name, ""), b.get(name, "")) for name in names]
    return [
        each
        for each in told
        if each.a != each.b and ((each.name in a and each.name in b) or each.name.startswith(("option", "environment")))
    ]


def is_elsewhere(found: list[Difference], known: Mapping[str, str]) -> bool:
    """Whether the two ran on different hardware; where that is not known, hosts of two names count as such."""
    named = {each.name for each in found}
    return bool(named & {"machine", "device"}) or ("host" in named and "machine" not in known)
