"""Engines that reduce many traces to summaries: this process, local processes, Dask or Ray."""

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
    Result = tuple[int, bytes | Exception]

HELP: Final = "local, local:8 (processes), dask://scheduler:8786, ray://head:10001 or, on a node of Ray's, ray://auto"

_IN_FLIGHT: Final = 256
"""Maximum pending tasks of Ray, because the time of ``ray.wait`` grows with their number."""


def map_unordered(on: str | None, work: Work, items: Sequence[str]) -> Iterator[Result]:
    """Call a picklable function for each item. Yield the index with the result or exception, in order of completion.

    Raises OptionError if the engine is missing, and PerfhooksError if the engine cannot be reached.
    """
    if on is None:
        yield from _in_process(work, items)
        return
    kind, _, address = on.partition("://") if "://" in on else on.partition(":")
    engines = {"local": _local, "dask": _dask, "ray": _ray}
    if kind not in engines or (kind != "local" and not address):
        raise OptionError(f"on must be {HELP}, got {on!r}")
    yield from engines[kind](address, work, items)


def _in_process(work: Work, items: Sequence[str]) -> Iterator[Result]:
    for number, item in enumerate(items):
        yield number, _result(partial(work, item))


def _local(count: str, work: Work, items: Sequence[str]) -> Iterator[Result]:
    if count and not (count.isdecimal() and int(count)):
        raise OptionError(f"on must be {HELP}, got 'local:{count}'")
    pending, processes = list(enumerate(items))[::-1], int(count) if count else cores() or 1
    while pending:
        suspects: list[tuple[int, str]] = []
        with _process_pool(processes) as pool:
            running: dict[Future[bytes], tuple[int, str]] = {}
            while (pending or running) and not suspects:
                try:
                    while pending and len(running) < 2 * processes:
                        future = pool.submit(work, pending[-1][1])
                        running[future] = pending.pop()
                except BrokenExecutor:  # a process died since the last wait
                    suspects = [*running.values()]
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    if isinstance(future.exception(), BrokenExecutor):
                        suspects = [item, *running.values()]
                        break
                    yield item[0], _outcome(future)
        for number, text in suspects:
            with _process_pool(1) as pool:
                yield number, _outcome(pool.submit(work, text))


def _process_pool(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))  # this process has threads, so it must not fork


def _outcome(future: Future[bytes]) -> bytes | Exception:
    is_dead = isinstance(future.exception(), BrokenExecutor)
    return PerfhooksError("the process that read it died") if is_dead else _result(future.result)


def _result(call: Callable[[], bytes]) -> bytes | Exception:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 -- the caller reports it with the item
        return getattr(error, "cause", None) or error


def _dask(address: str, work: Work, items: Sequence[str]) -> Iterator[Result]:
    distributed = _package("dask", "distributed")
    with _connected("dask", address, lambda: distributed.Client(f"tcp://{address}")) as client:
        numbers = {future: number for number, future in enumerate(client.map(work, items, pure=False))}
        for future in distributed.as_completed(numbers):
            yield numbers.pop(future), future.exception() or future.result()


def _ray(address: str, work: Work, items: Sequence[str]) -> Iterator[Result]:
    ray = _package("ray", "ray")
    url = address if address == "auto" else f"ray://{address}"
    with _connected("ray", address, lambda: ray.init(url, log_to_driver=False, logging_level="ERROR")):
        task = ray.remote(_call)
        pending = list(enumerate(items))[::-1]
        running: dict[Any, int] = {}
        while pending or running:
            while pending and len(running) < _IN_FLIGHT:
                number, item = pending.pop()
                running[task.remote(work, item)] = number
            for done in ray.wait(list(running))[0]:
                yield running.pop(done), _result(partial(ray.get, done))


def _call(work: Work, item: str) -> bytes:
    return work(item)


def _connected(name: str, address: str, connect: Callable[[], Any]) -> Any:
    try:
        return connect()
    except Exception as error:  # Dask and Ray have no common base class of exceptions
        raise PerfhooksError(f"{name} at {address} cannot be reached ({cause_of(error)})") from error


def _package(engine: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = f"pip install 'perfhooks[{engine}]'"
        raise OptionError(f"{engine} is not installed: {how} ({cause_of(error)})") from error
