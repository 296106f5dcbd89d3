"""What a server says about the files below a URL. Knows nothing of mirrors, and reads no content but lists of cases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from voxelocity.core.remote import ContentError
from voxelocity_observe.core.plain import excerpt, shortened

INDEX_NAME, CONTENT_NAME, START_NAME = ".voxelocity-remote.json", ".content", ".start"
OWN_NAMES = (INDEX_NAME, CONTENT_NAME, START_NAME)
"""Names in a mirror that are its own."""
MOST_LIST_BYTES = 256 << 20
# Of what a server may claim or send.
_MOST_FILE_BYTES = 1 << 43
_MOST_FOLDERS, _MOST_DEEP = 20_000, 16
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as the server describes it: bytes, when it was changed, and the MD5 of its content if that is known."""

    num_bytes: int
    changed: str = ""
    md5: str = ""

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> RemoteFile:
        """The record with these values.

        Raises:
            ContentError: they give no size that a file can have.
            TypeError: they have other names.
        """
        file = cls(**values)
        if not isinstance(file.num_bytes, int) or not 0 <= file.num_bytes <= _MOST_FILE_BYTES:
            raise ContentError(f"it says that {excerpt(name)} has {shortened(file.num_bytes)} bytes")
        return file


def list_files(file_system: Any, url: str) -> dict[str, RemoteFile]:
    """All files below the URL by name; of a web server without an index, those that its `dataset.json` lists.

    Raises:
        ContentError: the server describes what cannot be, such as folders in a circle.
        Exception: whatever the file system raises for a lost connection, or for what is missing.
    """
    try:
        found = _found_below(file_system, url)
    except (NotImplementedError, FileNotFoundError):
        found = {}
    if not found:
        content = file_system.cat_file(f"{url}/dataset.json", start=0, end=MOST_LIST_BYTES)
        found = {f"{url}/{name}": {} for name in ("dataset.json", *_named_in(content))}
    base = file_system._strip_protocol(url).rstrip("/") + "/"
    listed = {}
    for path, info in found.items():
        name = file_system._strip_protocol(path).removeprefix(base)
        if is_inside(name):
            listed[name] = _described(name, info if info.get("size") is not None else file_system.info(f"{url}/{name}"))
    return listed


def _found_below(file_system: Any, url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        found: dict[str, Any] = file_system.find(url, detail=True)
        return found
    # Pages may link to each other in circles, which fsspec would follow for ever.
    found, folders, seen = {}, [(url, 0)], {url.rstrip("/")}
    while folders:
        folder, depth = folders.pop()
        for info in file_system.ls(folder, detail=True):
            path = str(info["name"]).rstrip("/")
            if not path.startswith(f"{url.rstrip('/')}/"):
                continue
            if info.get("type") != "directory":
                found[path] = info
            elif path not in seen:
                seen.add(path)
                folders.append((path, depth + 1))
        if depth > _MOST_DEEP or len(seen) > _MOST_FOLDERS:
            raise ContentError(
                f"its pages link to more than {_MOST_FOLDERS} folders, or to folders more than {_MOST_DEEP} deep, "
                f"such as {excerpt(folder)}, and probably to themselves; give a list of the cases (dataset.json or "
                "cases.csv) instead of the folder"
            )
    return found


def is_inside(name: str) -> bool:
    """Whether a name that a server or an index gives is that of a file inside the mirror, and none of ours."""
    parts = PurePosixPath(name).parts
    is_relative = bool(parts) and not name.endswith("/") and "\0" not in name and not PurePosixPath(name).is_absolute()
    return is_relative and ".." not in parts and not parts[0].startswith(OWN_NAMES)


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


def _described(name: str, info: Mapping[str, Any]) -> RemoteFile:
    tag = str(info.get("ETag") or info.get("etag") or "")
    changed = str(info.get("LastModified") or info.get("last_modified") or info.get("mtime") or tag)
    found = _MD5.fullmatch(tag)
    values = {"num_bytes": info.get("size") or 0, "changed": changed, "md5": found[1] if found else ""}
    return RemoteFile.of(name, values)
