"""Where many traces are reduced: in this process, in processes of this machine, or on an engine that runs elsewhere.

An engine does what engines do: it schedules, moves, tries again and gives up. Here is only what names one, and what it
is asked for: one pure function, once for each trace.
"""

from __future__ import annotations

import importlib
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.guard import cause_of
from perfhooks.run.circumstances import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Work = Callable[[str], bytes]
    Done = tuple[int, bytes | Exception]

HELP: Final = "local, local:8 (processes), dask://scheduler:8786, ray://head:10001 or, on a node of Ray's, ray://auto"
"""What names an engine."""

_IN_FLIGHT: Final = 256
"""Traces that Ray is asked for at once: each look for one that is done costs by how many there are."""


def each(on: str | None, work: Work, items: Sequence[str]) -> Iterator[Done]:
    """Call a function for each of some texts, and give what it returned or raised as soon as it is there.

    Args:
        on: The engine, see `HELP`; None calls it here, one after the other.
        work: A function that can be pickled.
        items: What it is called with.

    Yields:
        The number of a text, and the result or the exception.

    Raises:
        OptionError: There is no such engine, or its package is not installed.
        PerfhooksError: It cannot be reached.
    """
    if on is None:
        yield from _here(work, items)
        return
    kind, _, address = on.partition("://") if "://" in on else on.partition(":")
    engines = {"local": _local, "dask": _dask, "ray": _ray}
    if kind not in engines or (kind != "local" and not address):
        raise OptionError(f"on must be {HELP}, got {on!r}")
    yield from engines[kind](address, work, items)


def _here(work: Work, items: Sequence[str]) -> Iterator[Done]:
    for number, item in enumerate(items):
        yield number, _result(partial(work, item))


def _local(count: str, work: Work, items: Sequence[str]) -> Iterator[Done]:
    """Processes of this machine. When one dies, what was being worked on is tried again, each in one process."""
    if count and not (count.isdecimal() and int(count)):
        raise OptionError(f"on must be {HELP}, got 'local:{count}'")
    left, most = list(enumerate(items))[::-1], int(count) if count else cores() or 1
    while left:
        suspects: list[tuple[int, str]] = []
        with _processes(most) as pool:
            running: dict[Future[bytes], tuple[int, str]] = {}
            while (left or running) and not suspects:
                while left and len(running) < 2 * most:  # one each, and one that is ready for it
                    item = left.pop()
                    running[pool.submit(work, item[1])] = item
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    if isinstance(future.exception(), BrokenExecutor):
                        suspects = [item, *running.values()]
                        break
                    yield item[0], _outcome(future)
        for number, text in suspects:
            with _processes(1) as pool:
                yield number, _outcome(pool.submit(work, text))


def _processes(count: int) -> ProcessPoolExecutor:
    """New ones, and no forks of this one, which has threads."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


def _outcome(future: Future[bytes]) -> bytes | Exception:
    is_dead = isinstance(future.exception(), BrokenExecutor)
    return PerfhooksError("the process that read it died") if is_dead else _result(future.result)


def _result(ask: Callable[[], bytes]) -> bytes | Exception:
    """What something returns, or raises: what Ray raises has the error of the function as its cause."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 -- told with the item
        return getattr(error, "cause", None) or error


def _dask(address: str, work: Work, items: Sequence[str]) -> Iterator[Done]:
    distributed = _package("dask", "distributed")
    with _connected("dask", address, lambda: distributed.Client(f"tcp://{address}")) as client:
        numbers = {future: number for number, future in enumerate(client.map(work, items, pure=False))}
        for future in distributed.as_completed(numbers):
            yield numbers.pop(future), future.exception() or future.result()


def _ray(address: str, work: Work, items: Sequence[str]) -> Iterator[Done]:
    ray = _package("ray", "ray")
    url = address if address == "auto" else f"ray://{address}"
    with _connected("ray", address, lambda: ray.init(url, log_to_driver=False, logging_level="ERROR")):
        task = ray.remote(_call)
        left = list(enumerate(items))[::-1]
        running: dict[Any, int] = {}
        while left or running:
            while left and len(running) < _IN_FLIGHT:
                number, item = left.pop()
                running[task.remote(work, item)] = number
            for done in ray.wait(list(running))[0]:
                yield running.pop(done), _result(partial(ray.get, done))


def _call(work: Work, item: str) -> bytes:
    """What Ray runs, which takes functions and nothing else that can be called."""
    return work(item)


def _connected(name: str, address: str, connect: Callable[[], Any]) -> Any:
    """What an engine gives who is connected to it.

    Raises:
        PerfhooksError: It cannot be reached.
    """
    try:
        return connect()
    except Exception as error:  # engines raise what they like
        raise PerfhooksError(f"{name} at {address} cannot be reached ({cause_of(error)})") from error


def _package(engine: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = f"pip install 'perfhooks[{engine}]'"
        raise OptionError(f"{engine} is not installed: {how} ({cause_of(error)})") from error
