"""Object stores and web servers, through fsspec: what a URL is, and attempts that outlast a lost connection."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import socket
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from voxelocity_observe.core.credentials import hide_credentials
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.quantities import duration_text

_T = TypeVar("_T")
# A path that once was a URL may have lost a slash.
_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+]+):/{1,2}(?P<rest>[^/].*)", re.DOTALL)
_REFUSALS, _ABSENT = (401, 403, 407), (404, 410)
# HTTP's answers that trying again may change: timeouts, too many requests, and whatever ails the server.
_PASSING = frozenset((408, 425, 429, *range(500, 600))) - {501, 505}
# What the system reports of a connection; any other number is about files of this machine.
_OF_CONNECTIONS = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "EIO", "ENETDOWN", "ENETRESET",
        "ENETUNREACH", "ENOTCONN", "EPIPE", "EPROTO", "EREMOTEIO", "ESHUTDOWN", "ETIMEDOUT", "EAGAIN", "EINTR",
    )
    if hasattr(errno, name)
)  # fmt: skip
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# Classes of aiohttp, botocore, paramiko and urllib3, which are imported only where they are used.
_LOST_BY_NAME = frozenset(
    ("ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ConnectionClosedError", "SSHException",
     "gaierror", "IncompleteRead", "FSTimeoutError")
)  # fmt: skip
# For errors that do not look like a lost connection: a server may be about to recover, or never.
_MOST_DOUBTFUL_S = 20.0


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
            f"{hide_credentials(url)} holds a user name, password or token; leave it out, and store it where the "
            "protocol's library reads it, such as AWS_ACCESS_KEY_ID"
        )
    try:
        import fsspec

        options = {"client_kwargs": {"trace_configs": [_watched_redirects()]}} if url.startswith("http") else {}
        return fsspec.core.url_to_fs(url, **options)[0]
    except (ImportError, ValueError, TypeError) as error:
        raise InputError(
            f"{url} cannot be opened ({excerpt(error)}); pip install 'voxelocity[remote]', or use a folder on this "
            "machine"
        ) from None


@functools.cache
def _watched_redirects() -> Any:
    """For aiohttp: refuses redirects from a server elsewhere to an address of this machine or of its network.

    Services there, such as those that give credentials to machines of a cloud, trust anyone who reaches them.
    """
    import aiohttp

    async def refuse(session: Any, context: Any, request: Any) -> None:
        headers = request.response.headers
        target = request.url.join(type(request.url)(headers.get("Location") or headers.get("URI") or ""))
        depth, allowed = _nearness(target.host or ""), _nearness(request.url.host or "")
        if depth > allowed:
            raise PermissionError(
                f"the server at {request.url.host} leads to {target.host}, an address in the local network, which is "
                "not followed"
            )

    watched = aiohttp.TraceConfig()
    watched.on_request_redirect.append(refuse)
    return watched


def _nearness(host: str) -> int:
    """0 for an address elsewhere, 1 in a private network, 2 on this machine, 3 for services of the network link."""
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return 0
    return max(map(_depth_of, found), default=0)


def _depth_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> int:
    # An IPv6 address can stand for one of IPv4.
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_link_local:
        return 3
    # The unspecified address, 0.0.0.0, leads to this machine.
    return 2 if address.is_loopback or address.is_unspecified else int(address.is_private)


class ContentError(Exception):
    """A server sent something other than the file that it describes."""


def retry(attempt: Callable[[], _T], *, what: str, most_s: float, sleep: Callable[[float], None] = time.sleep) -> _T:
    """What the attempt returns, once it succeeds; waits longer and longer between attempts, and warns once.

    Only a lost connection is waited for. Other errors of a server get 20 s, because some servers recover.

    Raises:
        FileNotFoundError: raised by the attempt, or a web server has no such file.
        PermissionError: raised by the attempt, or a web server refused it.
        ContentError: raised by the attempt for 20 s, or the server rejects the request.
        ConnectionError: the connection was lost for `most_s` seconds.
        OSError: the disk is full, or another error of this machine.
    """
    pause_s, waited_s = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return attempt()
        # Each library has errors of its own.
        except Exception as error:
            _raise_if_final(error)
            is_lost = _is_lost_connection(error)
            reason = f"{type(error).__name__}: {excerpt(error)}" if str(error) else type(error).__name__
            if waited_s + pause_s > (most_s if is_lost else min(most_s, _MOST_DOUBTFUL_S)):
                if is_lost:
                    raise ConnectionError(
                        f"{what} could not be reached for {duration_text(waited_s)} ({reason})"
                    ) from error
                raise ContentError(f"{what} cannot be read ({reason})") from error
            if waited_s == 0.0:
                warnings.warn(f"{what} cannot be reached now ({reason}); trying again", stacklevel=2)
        sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2.0 * pause_s, _LONGEST_PAUSE_S)


def _raise_if_final(error: Exception) -> None:
    """Raises what trying again cannot change."""
    status = getattr(error, "status", None)
    if status in _REFUSALS:
        raise PermissionError(excerpt(error)) from error
    if status in _ABSENT:
        raise FileNotFoundError(excerpt(error)) from error
    if isinstance(status, int) and 300 <= status < 500 and status not in _PASSING:
        raise ContentError(f"the server answers {status}: {excerpt(error)}") from error
    is_local = isinstance(error, OSError) and error.errno is not None and error.errno not in _OF_CONNECTIONS
    if isinstance(error, FileNotFoundError | PermissionError) or (is_local and not _is_lost_connection(error)):
        raise error


def _is_lost_connection(error: BaseException) -> bool:
    """Whether it may come back by itself: as Python, asyncio, aiohttp and botocore report it, or a busy server."""
    if isinstance(error, ContentError):
        return False
    if isinstance(error, ConnectionError | TimeoutError) or getattr(error, "status", None) in _PASSING:
        return True
    if isinstance(error, OSError) and error.errno in _OF_CONNECTIONS:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(_LOST_BY_NAME)
