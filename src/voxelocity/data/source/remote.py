"""Data sets on object stores and web servers, through fsspec: mirrored by name, brought here file by file when read.

A mirror is a folder of empty files with the names, sizes and times of the remote ones, so that whatever looks at a data
set without reading scans works on it, and the keys of caches stay the same. `core.staging` leads readers to the
content, which is fetched at first use, kept within a budget of bytes, and removed when others need its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from filelock import FileLock

from voxelocity.core.errors import DatasetError, InputError, ScanError
from voxelocity.core.quantities import bytes_text
from voxelocity.core.remote import local_name, open_file_system, tried
from voxelocity.core.staging import is_registered, register
from voxelocity.core.whole_file import write_whole
from voxelocity.observe import default_cache_folder, free_disk_bytes

_T = TypeVar("_T")
_INDEX = ".voxelocity-remote.json"
_CONTENT, _START = ".content", ".start"
_READ_AT_ONCE = (".json", ".csv", ".tsv")
_CHUNK_BYTES = 16 << 20
# Of a larger file, the beginning comes alone if no more is needed.
_START_BYTES, _SMALL_BYTES = 64 << 10, 1 << 20
# A connection that is gone for longer will not come back by itself.
_MOST_TRYING_S = 3600.0
# While the user waits for the answer.
_MOST_OPENING_S = 20.0
_JUST_GIVEN_S = 60.0
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as the server describes it: bytes, when it was changed, and the MD5 of its content if that is known."""

    num_bytes: int
    changed: str = ""
    md5: str = ""


def mirrored(
    url: str, *, scratch: Path | None = None, max_bytes: int | None = None, sleep: Callable[[float], None] = time.sleep
) -> Path:
    """The local path that stands for a remote folder or list of cases; opens a mirror of it, or makes one.

    Args:
        url: of a folder, a `dataset.json` or a table.
        scratch: a folder on a disk of this machine; in the user's cache folder if not given.
        max_bytes: of file content to keep there; half of what is free if not given.
        sleep: waits between attempts.

    Raises:
        DatasetError: the library for the protocol is missing, the folder cannot be found, or the URL holds a password.
    """
    try:
        file_system = open_file_system(url)
    except InputError as error:
        raise DatasetError(f"source: {error}") from None
    is_list = _is_list(PurePosixPath(url))
    folder_url, name = url.rsplit("/", 1) if is_list else (url.rstrip("/"), "")
    scratch = default_cache_folder() / "remote" if scratch is None else scratch
    root = scratch / local_name(folder_url)
    mirror = _Mirror(folder_url, root, file_system, max_bytes=max_bytes, sleep=sleep)
    mirror.update()
    register(root, mirror.stage)
    return root / name if name else root


def reopened(root: Path) -> None:
    """If a folder is a mirror that another process made, makes its files readable in this one."""
    index = root / _INDEX
    # Unlike `Path.is_file`, this is False where the folder may not be read or its name is too long.
    if os.path.isfile(index) and not is_registered(root):
        url = json.loads(index.read_text())["url"]
        mirrored(url, scratch=root.parent)


class _Mirror:
    def __init__(
        self, url: str, root: Path, file_system: Any, *, max_bytes: int | None, sleep: Callable[[float], None]
    ) -> None:
        self._url, self._root, self._files, self._sleep = url, root, file_system, sleep
        self._max_bytes = max_bytes
        self._known: dict[str, RemoteFile] = {}
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def update(self) -> None:
        """Lists the remote files, and makes or refreshes their local names. Lists of cases are read at once."""
        try:
            found = self._tried(self._listed, what=self._url, most_s=_MOST_OPENING_S)
        except ScanError as error:
            self._known = self._read_index()
            if not self._known:
                raise DatasetError(str(error)) from None
            warnings.warn(f"{error}; using the list of files from the last time", stacklevel=2)
            return
        if not found:
            raise DatasetError(f"source: {self._url} holds no files; check the URL and your permissions")
        self._root.mkdir(parents=True, exist_ok=True)
        with FileLock(self._root / f"{_INDEX}.lock"):
            before = self._read_index()
            for name, file in found.items():
                place = self._root / name
                if before.get(name) == file and place.exists():
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                self._forget(name)
                self._known[name] = file
                if _is_list(place):
                    write_whole(place, self._fetch(name).read_bytes())
                else:
                    with place.open("wb") as empty:
                        empty.truncate(file.num_bytes)
            for name in before.keys() - found.keys():
                (self._root / name).unlink(missing_ok=True)
                self._forget(name)
            self._known = found
            record = {"url": self._url, "files": {name: asdict(file) for name, file in found.items()}}
            write_whole(self._root / _INDEX, json.dumps(record).encode())

    def stage(self, path: Path, is_whole: bool) -> Path:
        """Where the content of a file of the mirror is, or of all files of a folder; or the beginning of a file."""
        name = path.relative_to(self._root).as_posix()
        if name in self._known:
            is_small = self._known[name].num_bytes <= _SMALL_BYTES
            return self._fetch(name) if is_whole or is_small or self._content(name).exists() else self._begin(name)
        inside = [known for known in self._known if known.startswith(f"{name}/")]
        for known in inside:
            self._fetch(known)
        return self._content(name) if inside else path

    def _begin(self, name: str) -> Path:
        """A file of the full size, which has the beginning of its content."""
        place, remote = self._root / _START / name, f"{self._url}/{name}"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)

            def attempt() -> bytes:
                content: bytes = self._files.cat_file(remote, start=0, end=_START_BYTES)
                if len(content) < _START_BYTES:
                    raise ConnectionError(f"the server sent {len(content)} of the first {_START_BYTES} bytes")
                return content[:_START_BYTES]

            part = _part_of(place).with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            part.write_bytes(self._tried(attempt, what=remote))
            os.truncate(part, self._known[name].num_bytes)
            os.replace(part, place)
        return place

    def _fetch(self, name: str) -> Path:
        place = self._content(name)
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        # One thread of one process of this machine fetches a file; the others wait for it.
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock, FileLock(place.with_name(f".{place.name}.lock")):
            if not place.exists():
                self._make_room(self._known[name].num_bytes)
                self._download(name, place)
            os.utime(place)
        return place

    def _download(self, name: str, place: Path) -> None:
        """Continues where an earlier attempt ended, and checks size and checksum before the file is used."""
        file, part = self._known[name], _part_of(place)
        remote = f"{self._url}/{name}"

        def attempt() -> None:
            have = part.stat().st_size if part.exists() else 0
            with part.open("r+b" if have else "wb") as out:
                while have < file.num_bytes:
                    out.seek(have)
                    stop = min(file.num_bytes, have + _CHUNK_BYTES)
                    content = self._files.cat_file(remote, start=have, end=stop)
                    # A server that knows no ranges sends all of it.
                    content = content[have:stop] if len(content) > stop - have else content
                    if not content:
                        raise ConnectionError(f"the server sent nothing after {have} bytes")
                    out.write(content)
                    have += len(content)
            if part.stat().st_size != file.num_bytes or (file.md5 and _md5_of(part) != file.md5):
                part.unlink()
                raise ConnectionError("its size or checksum differs from the server's")

        self._tried(attempt, what=remote)
        os.replace(part, place)

    def _tried(self, attempt: Callable[[], _T], *, what: str, most_s: float = _MOST_TRYING_S) -> _T:
        """As `tried`, with the words for users."""
        try:
            return tried(attempt, what=f"source: {what}", most_s=most_s, sleep=self._sleep)
        except (FileNotFoundError, PermissionError) as error:
            raise ScanError(f"source: {what} cannot be read ({error}); check the URL and your permissions") from None
        except ConnectionError as error:
            raise ScanError(f"{error}; check the connection, and try again; a run continues with --resume") from error

    def _make_room(self, num_bytes: int) -> None:
        """Removes the content that was not used for longest, until the new file fits into the budget.

        Readers that have a removed file open keep it.
        """
        kept = sorted(self._kept(), key=lambda item: item[1].st_mtime)
        total = sum(status.st_size for _, status in kept)
        budget = self._max_bytes if self._max_bytes is not None else (free_disk_bytes(self._root) + total) // 2
        if num_bytes > budget:
            raise ScanError(
                f"source: a file of {bytes_text(num_bytes)} is larger than the {bytes_text(budget)} for content of "
                f"{self._url} in {self._root}; make space there, or set XDG_CACHE_HOME to a larger disk"
            )
        for place, status in kept:
            # One that a thread was given a moment ago may not be open yet.
            if total + num_bytes <= budget or time.time() - status.st_mtime < _JUST_GIVEN_S:
                return
            place.unlink(missing_ok=True)
            total -= status.st_size

    def _kept(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder, _, names in os.walk(self._root / _CONTENT):
            for name in names:
                if not name.endswith((".lock", ".part")):
                    place = Path(folder) / name
                    try:
                        yield place, place.stat()
                    except FileNotFoundError:
                        continue

    def _forget(self, name: str) -> None:
        """Removes what is here of a file, also the beginning that an attempt has left: it belongs to other content."""
        place = self._content(name)
        for old in (place, _part_of(place), self._root / _START / name):
            old.unlink(missing_ok=True)

    def _content(self, name: str) -> Path:
        return self._root / _CONTENT / name

    def _read_index(self) -> dict[str, RemoteFile]:
        try:
            files = json.loads((self._root / _INDEX).read_text())["files"]
            return {name: RemoteFile(**values) for name, values in files.items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _listed(self) -> dict[str, RemoteFile]:
        """All files below the URL; of a web server without an index, those that its `dataset.json` lists."""
        try:
            found = self._files.find(self._url, detail=True)
        except (NotImplementedError, FileNotFoundError):
            found = {}
        if not found:
            content = self._files.cat_file(f"{self._url}/dataset.json")
            found = {f"{self._url}/{name}": {} for name in ("dataset.json", *_named_in(content))}
        base = self._files._strip_protocol(self._url).rstrip("/") + "/"
        listed = {}
        for place, info in found.items():
            name = self._files._strip_protocol(place).removeprefix(base)
            if name.endswith("/") or not name or ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
                continue
            listed[name] = _described(info if info.get("size") is not None else self._files.info(f"{self._url}/{name}"))
        return listed


def _is_list(path: PurePath) -> bool:
    return path.suffix.lower() in _READ_AT_ONCE


def _named_in(content: bytes) -> Iterator[str]:
    """Files of the cases that a `dataset.json` lists, in either layout; none if it is malformed."""
    try:
        described = json.loads(content)
    except (ValueError, RecursionError):
        return
    values = described if isinstance(described, dict) else {}
    listed = values.get("training") or values.get("dataset")
    entries = list(listed.values()) if isinstance(listed, dict) else listed
    for entry in entries if isinstance(entries, list) else ():
        for value in entry.values() if isinstance(entry, Mapping) else ():
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    yield PurePosixPath(name).as_posix()


def _described(info: Mapping[str, Any]) -> RemoteFile:
    tag = str(info.get("ETag") or info.get("etag") or "")
    changed = str(info.get("LastModified") or info.get("last_modified") or info.get("mtime") or tag)
    found = _MD5.fullmatch(tag)
    return RemoteFile(num_bytes=int(info["size"] or 0), changed=changed, md5=found[1] if found else "")


def _part_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        # For objects in one part, S3's entity tag is this digest.
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
