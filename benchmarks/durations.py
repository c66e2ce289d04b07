"""Durations of the tests by kind and by file, from the JUnit file that pytest writes."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SLOWEST = 200


class Case(NamedTuple):
    """One test with its parameters."""

    file: str
    name: str
    kind: str
    seconds: float


def read(path: str) -> list[Case]:
    """Return the cases of a JUnit file, the slowest first."""
    cases = []
    for case in ET.parse(path).iter("testcase"):
        kind = next((each.get("value", "") for each in case.iter("property") if each.get("name") == "kind"), "pure")
        file = case.get("classname", "").rpartition(".")[2]
        cases.append(Case(file, case.get("name", ""), kind, float(case.get("time", 0))))
    return sorted(cases, key=lambda each: -each.seconds)


def table(cases: Iterable[Case], column: str) -> Iterator[str]:
    """Write the number of cases and their seconds by kind or file, the largest sum first."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for case in cases:
        seconds[getattr(case, column)].append(case.seconds)
    yield f"\n{column:40} cases  seconds"
    for name, values in sorted(seconds.items(), key=lambda item: -sum(item[1])):
        yield f"{name:40} {len(values):5} {sum(values):8.1f}"


def main(path: str) -> None:
    """Print the tables."""
    cases = read(path)
    whole = sum(case.seconds for case in cases)
    slowest = cases[:SLOWEST]
    share = sum(case.seconds for case in slowest) / whole
    print(f"{len(cases)} cases take {whole:.0f} s. The slowest {len(slowest)} take {share:.0%} of them.")
    print("\n".join([*table(cases, "kind"), *table(cases, "file")]))
    print(f"\nThe slowest {len(slowest)}")
    print("\n".join(f"{case.seconds:7.1f} {case.kind:9} {case.file}::{case.name}" for case in slowest))


if __name__ == "__main__":
    main(sys.argv[1])
