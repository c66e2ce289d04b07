"""Copy a run from any URL that fsspec opens.

A mirror is a run folder without traces, in the user's folder for temporary files:

    elsewhere/4c1f2a90b7d3/     copy of s3://here/run,s3://there/run; the name is a hash of the URLs
      have.json                 files at the URLs, and which of them are copied
      run/run.json ...          the run
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fsspec.core import url_to_fs

from perfhooks.cli.targets import last_run
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.progress import show_count
from perfhooks.run import layout, remote
from perfhooks.run.publishing import publish_json
from perfhooks.run.reading import LARGEST, read_json
from perfhooks.trace.reading import ascend
from perfhooks.trace.reading.downloads import download

if TYPE_CHECKING:
    from collections.abc import Callable

_MIRRORS: Final = "elsewhere"
_HAVE: Final = "have.json"
_BATCH: Final = 256
_MOST: Final = 1_000_000
"""Maximum files of a run at a URL. Ten windows of 10,000 ranks have a million files."""
_STAMPS: Final = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")
_PAGES: Final = (layout.PAGE, layout.PAGE_DATA, layout.FINDINGS)
"""Large files that are not copied, because perfhooks can create them from other files."""


class _File(msgspec.Struct, frozen=True):
    url: str
    size: int
    stamp: str
    """Time or version of the last change; empty if unknown."""
    is_here: bool = False


def here(target: str | None, *, traces: bool = False) -> Path:
    """Return the target as a local path: the last run for None, and a copy for a URL."""
    if target is None:
        return last_run()
    if not remote.is_url(target):
        return Path(target)
    with show_count("bringing file") as tell:
        return mirror(target, tell, traces=traces)


def named(target: str | None) -> str | None:
    if target is None or (remote.is_url(target) and is_file(target)):
        return target
    return str(here(target, traces=remote.is_url(target) and holds_traces(target)))


def is_file(url: str) -> bool:
    return url.partition("?")[0].endswith((".json", ".json.gz"))


def holds_traces(url: str) -> bool:
    return not is_file(url) and all(_base(part)[0] is None for part in _parts(url))


def mirror(target: str, tell: Callable[[int, int], object] | None = None, *, traces: bool = False) -> Path:
    """Copy the changed files of a URL. Traces of a run are copied only with ``traces``.

    If ranks of one run write to several URLs, ``target`` contains all URLs, with commas in between. Unused copies are
    deleted after a week.
    """
    root = remote.temporary_folder() / _MIRRORS / hashlib.sha256(os.fsencode(target)).hexdigest()[:12]
    for old in root.parent.glob("*"):
        if old.stat().st_mtime < time.time() - 7 * 86400:
            shutil.rmtree(old, ignore_errors=True)
    parts = _parts(target)
    bases = {part: (None if is_file(part) else _base(part)[0]) or ascend.base_of(part) for part in parts}
    first = bases[parts[0]].rstrip("/")
    folder = root / first.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(root)
    files = _together([_tree(part) for part in bases.values()])
    stored = _have(root)
    have = {
        name: msgspec.structs.replace(file, is_here=_is_same(stored.get(name), file) and (folder / name).is_file())
        for name, file in files.items()
    }
    for name in [name for name, file in stored.items() if file.is_here and name not in have]:
        (folder / name).unlink(missing_ok=True)
    is_all = traces or is_file(target)
    inside = parts[0].rstrip("/").removeprefix(first).lstrip("/")
    missing = [name for name, file in have.items() if not file.is_here and (is_all or not _is_large(name, file))]
    _fill(folder, have, missing, tell)
    return folder / (inside or (target.rpartition("/")[2] if is_file(target) else ""))


def _fill(
    folder: Path, have: dict[str, _File], missing: list[str], tell: Callable[[int, int], object] | None = None
) -> None:
    for begin in range(0, len(missing), _BATCH):
        batch = missing[begin : begin + _BATCH]
        if tell is not None:
            tell(begin, len(missing))
        _get({have[name].url: folder / name for name in batch})
        have |= {name: msgspec.structs.replace(have[name], is_here=True) for name in batch}
        publish_json(folder.parent / _HAVE, have)
    publish_json(folder.parent / _HAVE, have)


def bring(window: Path) -> None:
    have = _have(window.parent.parent)
    missing = [name for name, file in have.items() if not file.is_here and name.startswith(f"{window.name}/")]
    _fill(window.parent, have, missing)


def url_of(path: Path) -> str | None:
    root = Path(*path.parts[:-3])
    if root.parent != remote.temporary_folder() / _MIRRORS:
        return None
    file = _have(root).get("/".join(path.parts[-2:]))
    return None if file is None else file.url


def drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def forget() -> int:
    mirrors = remote.temporary_folder() / _MIRRORS
    size = sum(path.lstat().st_size for path in mirrors.rglob("*"))
    shutil.rmtree(mirrors, ignore_errors=True)
    return size


def _parts(target: str) -> list[str]:
    return re.split(r",(?=[\w.+-]+://)", target)


@functools.cache
def _base(url: str) -> tuple[str | None, str]:
    above, _, name = url.rstrip("/").rpartition("/")
    with remote.reaching(url) as (system, path):
        if system.exists(f"{path}/{layout.MANIFEST}"):
            return url, ""
        if layout.steps_of(name) and system.exists(f"{path.rpartition('/')[0]}/{layout.MANIFEST}"):
            return above, name
    return None, ""


def _tree(url: str) -> dict[str, _File]:
    with remote.reaching(url) as (system, path):
        system.invalidate_cache()
        entries = {path: system.info(path)} if is_file(url) else system.find(path, maxdepth=2, detail=True)
        if not is_file(url):
            for pattern in ascend.PATTERNS:
                entries |= system.glob(f"{path.rstrip('/')}/{pattern}", detail=True)
    if not entries:
        raise PerfhooksError(f"{url} is empty or does not exist")
    if len(entries) > _MOST:
        raise PerfhooksError(f"{url} has {words.count(len(entries), 'file')}; no run has more than {_MOST}")
    files = {}
    for full, info in entries.items():
        name = full.removeprefix(path).lstrip("/") or full.rpartition("/")[2]
        *window, own = name.split("/")
        belongs = ascend.is_part(f"{path.rstrip('/').rpartition('/')[2]}/{name}")
        belongs = ascend.is_part(name) if belongs is None else belongs
        if belongs is False or any(part.startswith(".") for part in (*window, own)):
            continue
        if not belongs and (len(window) > 1 or own in _PAGES):
            continue
        for part in (*window, own):
            layout.below(Path(), part)
        files[name] = _File(system.unstrip_protocol(full), int(info.get("size") or 0), _stamp(info))
    if layout.MANIFEST not in files and (runs := [name for name in files if name.endswith(f"/{layout.MANIFEST}")]):
        named = ", ".join(sorted(name.partition("/")[0] for name in runs)[-8:])
        raise PerfhooksError(f"{url} contains {words.count(len(runs), 'run')}; pass one of them: {named}")
    return files


def _stamp(info: dict[str, Any]) -> str:
    return next((str(info[key]) for key in _STAMPS if info.get(key)), "")


def _is_same(stored: _File | None, file: _File) -> bool:
    is_known = stored is not None and stored.is_here and file.stamp != ""
    return is_known and stored == msgspec.structs.replace(file, is_here=True)


def _is_large(name: str, file: _File) -> bool:
    own = name.rpartition("/")[2]
    return file.size > LARGEST or own == layout.MERGED or any(kind.ranks([own]) for kind in layout.traces)


def _together(trees: list[dict[str, _File]]) -> dict[str, _File]:
    entries: dict[str, _File] = {}
    for tree in trees:
        twice = sorted(name for name in tree if name in entries and name not in (layout.MANIFEST, layout.TRIED))
        if twice:
            raise PerfhooksError(
                f"{entries[twice[0]].url} and {tree[twice[0]].url} have the same rank, so they are two runs: pass "
                "URLs of one run"
            )
        entries = tree | entries
    return entries


def _get(files: dict[str, Path]) -> None:
    of_protocol: dict[str, list[str]] = {}
    for url in files:
        of_protocol.setdefault(url.partition("://")[0], []).append(url)
    for urls in of_protocol.values():
        with remote.reaching(urls[0]) as (system, _):
            for folder in {files[url].parent for url in urls}:
                folder.mkdir(parents=True, exist_ok=True)
            paths = [url_to_fs(url)[1] for url in urls]
            download(system, dict(zip(paths, (files[url] for url in urls), strict=True)))


def _have(root: Path) -> dict[str, _File]:
    try:
        return read_json(root / _HAVE, dict[str, _File], "a list of copied files", most=_MOST * 400)
    except (FileNotFoundError, PerfhooksError):
        return {}
