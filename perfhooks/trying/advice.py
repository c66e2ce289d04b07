"""What belongs to a finding: the operators that it is about, and the variants that follow its advice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from perfhooks.trying.trial import Row, Trial

_PRODUCTS: Final = (
    r"aten::(?:mm|addmm|bmm|baddbmm|mv|addmv|linear|matmul|einsum|conv[123]d|conv_transpose[123]d|convolution"
    r"|_convolution|convolution_backward|_slow_conv2d_\w+|thnn_conv2d|slow_conv\w+)"
)
_CONVOLUTIONS: Final = (
    r"aten::(?:conv[123]d|convolution|_convolution|convolution_backward|_slow_conv2d_\w+|slow_conv\w+)"
)


class Advice(NamedTuple):
    """How the advice of a finding is tried."""

    operators: str
    """A regular expression for the whole name."""
    variants: tuple[str, ...]


ADVICE: Final = {
    "float32-products": Advice(_PRODUCTS, ("tf32", "bf16")),
    "float64-products": Advice(_PRODUCTS, ("float32",)),
    "slow-convolution": Advice(_CONVOLUTIONS, ("onednn",)),
    "layout-conversions": Advice(_CONVOLUTIONS, ("channels_last",)),
    "optimizer-loop": Advice(r"Optimizer\.step#.*", ("fused", "foreach")),
}
"""By the name of the rule."""


def of(rule: str) -> Advice:
    """How to try a finding.

    Raises:
        OptionError: It cannot be tried.
    """
    if rule not in ADVICE:
        raise OptionError(f"finding must be one that can be tried, of {', '.join(ADVICE)}; got {rule!r}")
    return ADVICE[rule]


class Measured(NamedTuple):
    """What following an advice gave."""

    rule: str
    variant: str
    times: float
    """How many times as fast the operators were together."""
    saved_ms: float
    """Milliseconds of a step."""
    operators: int
    """How many different ones that was measured on."""


def measured(trial: Trial) -> list[Measured]:
    """What a trial says of each advice, the best variant of each; nothing of those of which nothing is known."""
    found = []
    for rule, advice in ADVICE.items():
        rows = [row for row in trial.rows if re.fullmatch(advice.operators, row.group.signature.name)]
        by_variant = [_measured(rule, variant, rows) for variant in advice.variants]
        known = [each for each in by_variant if each is not None]
        found += [max(known, key=lambda each: each.saved_ms)] if known else []
    return found


def _measured(rule: str, variant: str, rows: list[Row]) -> Measured | None:
    """What one variant did to all operators of an advice for which that can be said."""
    pairs = [
        (row.group.step_ms, saved)
        for row in rows
        for each in row.tried
        if each.variant == variant and (saved := row.saved_ms(each)) is not None
    ]
    if not pairs:
        return None
    before, saved = (sum(values) for values in zip(*pairs, strict=True))
    return Measured(rule, variant, before / (before - saved), saved, len(pairs))
