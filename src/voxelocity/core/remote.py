"""Object stores and web servers, through fsspec: what a URL is, and attempts that outlast a lost connection."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from voxelocity.core.credentials import hide_credentials
from voxelocity.core.errors import InputError
from voxelocity.core.quantities import duration_text

_T = TypeVar("_T")
# A path that once was a URL may have lost a slash.
_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+]+):/{1,2}(?P<rest>[^/].*)", re.DOTALL)
# HTTP's answers that trying again does not change.
_REFUSALS = (401, 403)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


def remote_url(path: Path | str) -> str:
    """The URL that a path or text is, with both slashes; "" for a path on this machine."""
    found = _URL.fullmatch(os.fspath(path))
    return f"{found['protocol']}://{found['rest']}" if found and found["protocol"] != "file" else ""


def local_name(url: str) -> str:
    """A name of a folder for what is kept of a URL: readable in messages, and different for different URLs."""
    url = url.rstrip("/")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", url.partition("://")[2])[-80:]
    return f"{sha256(url.encode()).hexdigest()[:8]}-{readable}"


def open_file_system(url: str) -> Any:
    """Fsspec's file system for the URL.

    Raises:
        InputError: the library for the protocol is missing, or the URL holds a password.
    """
    if hide_credentials(url) != url:
        # It would be in names of files and in messages.
        raise InputError(
            f"{hide_credentials(url)} holds a user name, password or token; leave it out, and give it where the "
            "library of the protocol looks for it, such as AWS_ACCESS_KEY_ID"
        )
    try:
        import fsspec

        return fsspec.filesystem(url.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{url} cannot be opened ({error}); pip install 'voxelocity[remote]', or use a folder on this machine"
        ) from None


def tried(attempt: Callable[[], _T], *, what: str, most_s: float, sleep: Callable[[float], None] = time.sleep) -> _T:
    """What the attempt returns, once it succeeds; waits longer and longer between attempts, and warns once.

    Raises:
        FileNotFoundError: raised by the attempt.
        PermissionError: raised by the attempt, or a web server refused it.
        ConnectionError: it has failed for `most_s` seconds.
    """
    pause_s, waited_s = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return attempt()
        except (FileNotFoundError, PermissionError):
            raise
        # Each library has errors of its own for a connection that is lost.
        except Exception as error:
            if getattr(error, "status", None) in _REFUSALS:
                raise PermissionError(str(error)) from error
            reason = f"{type(error).__name__}: {error}"
            if waited_s >= most_s:
                raise ConnectionError(
                    f"{what} could not be reached for {duration_text(waited_s)} ({reason})"
                ) from error
            if waited_s == 0.0:
                warnings.warn(f"{what} cannot be reached now ({reason}); trying again", stacklevel=2)
        sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2.0 * pause_s, _LONGEST_PAUSE_S)
