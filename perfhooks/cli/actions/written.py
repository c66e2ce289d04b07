from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from perfhooks.core import words
from perfhooks.report.live import bars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.report.live import RankState, RunState

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.:-=+*#"
_WIDTH: Final = 10


def line(state: RunState) -> str:
    parts = [_where(state), *_pace(state)]
    slow = [rank.rank for rank in state.ranks if rank.slow]
    if slow:
        parts.append(
            f"{len(slow)} of {words.count(len(state.ranks), 'rank')} slow ({words.first_names(list(map(str, slow)))})"
        )
    if state.slow:
        rank, last = state.slow[0]
        parts.append(f"last slow: step {last.step} of rank {rank} ({last.cause})")
    parts.append(_windows(state))
    return _one_line(", ".join(part for part in parts if part))


def screen(state: RunState, note: str, width: int, height: int, blocks: str = BLOCKS) -> Text:
    above, below = list(_above(state, width, blocks)), list(_below(state, note))
    room = max(1, height - len(above) - len(below) - 1)
    rows = [
        Text.assemble((f"{name:<{_WIDTH}}", "bold"), (_one_line(text), style))
        for name, text, style in [*above, *_ranks(state.ranks, room), *below]
    ]
    rows = [*rows[: height - 1], Text("q quit   c record the next 3 steps", "dim")]
    for value in rows:
        value.truncate(width, overflow="ellipsis")
    return Text("\n").join(rows)


_Line = tuple[str, str, str]


def _above(state: RunState, width: int, blocks: str) -> Iterator[_Line]:
    yield "run", f"{state.run}, {_state(state)}", ""
    yield "now", _where(state), "bold"
    yield "minute", ", ".join(_pace(state)) or "no step has been written yet", ""
    heights = bars(state.walls, width - _WIDTH)
    yield "steps", "".join(blocks[round(value * (len(blocks) - 1))] for value in heights), "cyan"


def _below(state: RunState, note: str) -> Iterator[_Line]:
    for number, (rank, step) in enumerate(state.slow[:5]):
        yield "" if number else "slow", f"rank {rank}: {step}", "yellow"
    if not state.slow:
        yield "slow", "no slow step", ""
    yield "windows", _windows(state), ""
    yield "page", str(state.page or "none yet"), ""
    if note:
        yield "capture", note, "green"


def _ranks(ranks: Sequence[RankState], room: int) -> Iterator[_Line]:
    ordered = sorted(ranks, key=lambda rank: (not rank.slow, rank.rank))
    shown = ordered if len(ordered) <= room else ordered[: max(0, room - 1)]
    for number, rank in enumerate(shown):
        yield "" if number else "ranks", _rank(rank), "red" if rank.slow else ""
    if len(shown) < len(ordered):
        slow = sum(bool(rank.slow) for rank in ordered[len(shown) :])
        more = f", {slow} of them slow" if slow else ""
        yield "" if shown else "ranks", f"and {len(ordered) - len(shown)} more{more}", ""


def _rank(rank: RankState) -> str:
    parts = ["no step yet" if rank.step is None else f"step {rank.step}"]
    if rank.median_ms is not None:
        parts.append(f"median {words.ms(rank.median_ms)}")
    if rank.data_ms is not None:
        parts.append(f"data {words.ms(rank.data_ms)}")
    if rank.is_alive is False:
        parts.append("ended")
    if rank.slow:
        parts.append(f"SLOW: {rank.slow}")
    return f"{rank.rank}: {', '.join(parts)}"


def _state(state: RunState) -> str:
    if state.is_alive is None:
        return f"last change {words.ms(state.silent_s * 1e3)} ago"
    return "running" if state.is_alive else "ended"


def _where(state: RunState) -> str:
    if state.step is None:
        return "no step yet"
    return f"{state.stage} step {state.step}"


def _pace(state: RunState) -> list[str]:
    took = state.times
    if took is None:
        return []
    return [
        *([] if took.rate is None else [f"{took.rate:.3g} steps/s"]),
        f"median {words.ms(took.median_ms)}",
        f"p95 {words.ms(took.p95_ms)}",
        "data unknown" if took.data_share is None else f"data {words.share(took.data_share)}",
    ]


def _windows(state: RunState) -> str:
    parts = [f"{words.count(state.windows, 'window')}"]
    if state.is_recording:
        parts.append("recording")
    if state.unfinished:
        what = "not finished (see `perfhooks report`)" if state.is_alive is False else "being finished"
        parts.append(f"{what}: {words.first_names(list(state.unfinished))}")
    return ", ".join(parts)


def _one_line(text: str) -> str:
    return " ".join(words.printable(text).split())
