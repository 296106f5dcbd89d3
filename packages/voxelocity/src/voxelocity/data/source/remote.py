"""Data sets on object stores and web servers, through fsspec: mirrored by name, brought here file by file when read.

A mirror is a folder of empty files with the names, sizes and times of the remote ones, so that whatever looks at a data
set without reading scans works on it, and the keys of caches stay the same. `core.staging` leads readers to the
content, which is fetched at first use, kept within a budget of bytes, and removed when others need its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from filelock import FileLock

from voxelocity.core.remote import ContentError, local_name, open_file_system, retry
from voxelocity.core.staging import is_registered, register
from voxelocity.data.source.server_listing import (
    CONTENT_NAME,
    INDEX_NAME,
    START_NAME,
    RemoteFile,
    is_inside,
    list_files,
)
from voxelocity_observe.core.errors import DatasetError, InputError, ScanError
from voxelocity_observe.core.host import default_cache_folder, free_disk_bytes
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.quantities import bytes_text
from voxelocity_observe.core.whole_file import write_whole

_T = TypeVar("_T")
_READ_AT_ONCE = (".json", ".csv", ".tsv")
_CHUNK_BYTES = 16 << 20
# Of a larger file, the beginning comes alone if no more is needed.
_START_BYTES, _SMALL_BYTES = 64 << 10, 1 << 20
# A connection that is gone for longer will not come back by itself.
_MOST_TRYING_S = 3600.0
# While the user waits for the answer.
_MOST_OPENING_S = 20.0
_JUST_GIVEN_S = 60.0


def open_mirror(
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
    scratch = _scratch_folder() if scratch is None else scratch
    root = scratch / local_name(folder_url)
    mirror = _Mirror(folder_url, root, file_system, max_bytes=max_bytes, sleep=sleep)
    mirror.update()
    register(root, mirror.stage)
    return root / name if name else root


def reopen_mirror(root: Path) -> None:
    """If a folder is a mirror in the user's cache folder, makes its files readable in this process.

    An index anywhere else came with the folder: nobody asked to connect to the server that it names, so it is not read.
    """
    index, scratch = root / INDEX_NAME, _scratch_folder()
    # Unlike `Path.is_file`, this is False where the folder may not be read or its name is too long.
    if not os.path.isfile(index) or is_registered(root):
        return
    url = _url_in(index) if os.path.realpath(root.parent) == os.path.realpath(scratch) else ""
    if url and local_name(url) == root.name:
        open_mirror(url)
        return
    warnings.warn(
        f"source: {root} was copied from the folder of a remote data set, or is one that was opened with another cache "
        "folder; its files are read as they are, and may contain only zeros. Give the URL to read the remote data set",
        stacklevel=2,
    )


def _scratch_folder() -> Path:
    return default_cache_folder() / "remote"


def _url_in(index: Path) -> str:
    """The URL that an index names; "" if it is damaged."""
    try:
        url = json.loads(index.read_text())["url"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return url if isinstance(url, str) else ""


class _Mirror:
    def __init__(
        self, url: str, root: Path, file_system: Any, *, max_bytes: int | None, sleep: Callable[[float], None]
    ) -> None:
        self._url, self._root, self._files, self._sleep = url, root, file_system, sleep
        self._max_bytes = max_bytes
        self._known: dict[str, RemoteFile] = {}
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        # The digests of content that differed from its tag, by tag.
        self._arrived: dict[str, str] = {}
        self._has_other_tags = False

    def update(self) -> None:
        """Lists the remote files, and makes or refreshes their local names. Lists of cases are read at once."""
        try:
            found = self._retry(lambda: list_files(self._files, self._url), what=self._url, most_s=_MOST_OPENING_S)
        except ScanError as error:
            self._known = self._read_index()
            if not self._known:
                raise DatasetError(str(error)) from None
            warnings.warn(f"{error}; using the list of files from the last time", stacklevel=2)
            return
        except OSError as error:
            raise DatasetError(f"source: {self._url} cannot be listed ({excerpt(error)})") from error
        if not found:
            raise DatasetError(f"source: {self._url} holds no files; check the URL and your permissions")
        try:
            self._write_names(found)
        except OSError as error:
            raise DatasetError(
                f"source: the names of the files of {self._url} cannot be kept in {self._root} ({excerpt(error)}); "
                "make space there, or set XDG_CACHE_HOME to another disk"
            ) from error

    def _write_names(self, found: Mapping[str, RemoteFile]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with FileLock(self._root / f"{INDEX_NAME}.lock"):
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
            self._known = dict(found)
            record = {"url": self._url, "files": {name: asdict(file) for name, file in found.items()}}
            write_whole(self._root / INDEX_NAME, json.dumps(record).encode())

    def stage(self, path: Path, is_whole: bool) -> Path:
        """Where the content of a file of the mirror is, or of all files of a folder; or the beginning of a file.

        Raises:
            ScanError: the content cannot be fetched, or not be kept here.
        """
        name = path.relative_to(self._root).as_posix()
        try:
            return self._bring(path, name, is_whole)
        except OSError as error:
            raise self._not_kept(f"{self._url}/{name}", error) from error

    def _bring(self, path: Path, name: str, is_whole: bool) -> Path:
        if name in self._known:
            is_small = self._known[name].num_bytes <= _SMALL_BYTES
            return self._fetch(name) if is_whole or is_small or self._content(name).exists() else self._begin(name)
        inside = [known for known in self._known if known.startswith(f"{name}/")]
        for known in inside:
            self._fetch(known)
        return self._content(name) if inside else path

    def _begin(self, name: str) -> Path:
        """A file of the full size, which has the beginning of its content."""
        place, remote = self._root / START_NAME / name, f"{self._url}/{name}"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)

            def attempt() -> bytes:
                content: bytes = self._files.cat_file(remote, start=0, end=_START_BYTES)
                if len(content) < _START_BYTES:
                    raise ContentError(f"the server sent {len(content)} of the first {_START_BYTES} bytes")
                _refuse_page(content, name)
                return content[:_START_BYTES]

            part = _part_of(place).with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            part.write_bytes(self._retry(attempt, what=remote))
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
                self._free_space(self._known[name].num_bytes)
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
                        raise ContentError(f"the server sent nothing after {have} of {file.num_bytes} bytes")
                    if have == 0:
                        _refuse_page(content, name)
                    out.write(content)
                    have += len(content)
            size = part.stat().st_size
            if size != file.num_bytes:
                part.unlink()
                raise ContentError(f"{size} bytes arrived, and the server's list says {file.num_bytes}")
            self._check_tag(file, part)

        self._retry(attempt, what=remote)
        os.replace(part, place)

    def _check_tag(self, file: RemoteFile, part: Path) -> None:
        """Compares the content with the server's tag; removes what differs from it, so that it is fetched again.

        Not every tag of 32 hexadecimal digits is an MD5: objects that S3 encrypts by keys of KMS have others. Content
        that arrives twice alike is the server's, so the tag is something else.
        """
        if not file.md5 or self._has_other_tags:
            return
        found = _md5_of(part)
        if found == file.md5:
            return
        if self._arrived.get(file.md5) == found:
            warnings.warn(
                f"source: the tags of {self._url} are not checksums of its files, so only their sizes are checked",
                stacklevel=2,
            )
            self._has_other_tags = True
            return
        self._arrived[file.md5] = found
        part.unlink()
        raise ContentError("its checksum differs from the server's")

    def _retry(self, attempt: Callable[[], _T], *, what: str, most_s: float = _MOST_TRYING_S) -> _T:
        """As `retry`, with the words for users."""
        try:
            return retry(attempt, what=f"source: {what}", most_s=most_s, sleep=self._sleep)
        except (FileNotFoundError, PermissionError) as error:
            # fsspec calls a file missing, whatever kept it from being read.
            reason = error.__cause__ if isinstance(error.__cause__, PermissionError) else error
            raise ScanError(
                f"source: {what} cannot be read ({excerpt(reason)}); check the URL and your permissions"
            ) from None
        except ConnectionError as error:
            raise ScanError(f"{error}; check the connection, and try again; a run continues with --resume") from error
        except ContentError as error:
            raise ScanError(
                f"source: {what} cannot be read ({str(error).removeprefix('source: ')}); open it in a browser or "
                "with the server's own program, and check that you are logged in and that the file is complete"
            ) from error
        except OSError as error:
            raise self._not_kept(what, error) from error

    def _not_kept(self, what: str, error: OSError) -> ScanError:
        return ScanError(
            f"source: {what} cannot be kept in {self._root} ({error.strerror or error}); make space there, or set "
            "XDG_CACHE_HOME to a larger disk"
        )

    def _free_space(self, num_bytes: int) -> None:
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
        for folder, _, names in os.walk(self._root / CONTENT_NAME):
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
        for old in (place, _part_of(place), self._root / START_NAME / name):
            old.unlink(missing_ok=True)

    def _content(self, name: str) -> Path:
        return self._root / CONTENT_NAME / name

    def _read_index(self) -> dict[str, RemoteFile]:
        try:
            files = json.loads((self._root / INDEX_NAME).read_text())["files"]
            return {name: RemoteFile.of(name, values) for name, values in files.items() if is_inside(name)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ContentError):
            return {}


def _refuse_page(content: bytes, name: str) -> None:
    """Raises ContentError if content is a web page, though the file is none by its name."""
    if content[:256].lstrip().lower().startswith((b"<!doctype html", b"<html")) and not name.endswith(
        (".htm", ".html")
    ):
        raise ContentError("the server sent a web page instead, perhaps a login page")


def _is_list(path: PurePath) -> bool:
    return path.suffix.lower() in _READ_AT_ONCE


def _part_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        # For objects in one part, S3's entity tag is this digest.
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
