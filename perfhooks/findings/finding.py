"""One thing worth doing about a run, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found in a window; every field is plain data, ready for JSON."""

    rule: str
    """The name of the rule, as one word for programs."""
    title: str
    """One plain sentence, with the number that matters."""
    gain_ms: float | None
    """Milliseconds that a step could be shorter at most; None where that cannot be told, or the advice was never
    measured to help under these conditions and on such a device."""
    gain_percent: float | None
    """The same as a part of the step."""
    estimate: str
    """How the gain was estimated."""
    evidence: tuple[str, ...]
    """What was seen: numbers, steps, operators, lines of source."""
    advice: str
    """What to do, in one paragraph."""
    code: str
    """The lines to write."""
    doubts_others: bool = False
    """Whether it says that the times of all others are too long, so that it comes before them."""
    concerns_ms: float | None = None
    """Milliseconds of a step that it is about where no gain is promised: the advice is worth trying."""
