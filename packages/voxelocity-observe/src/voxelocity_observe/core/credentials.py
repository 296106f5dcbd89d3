"""Commands in a form that is safe to record: without passwords and tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
# Words of a name, as in `PG_PASSWORD`, `authToken` and `--hf-token`.
_SECRET_WORDS = frozenset(
    ("pass", "passes", "password", "passwords", "passwd", "passphrase", "passcode", "pw", "pwd", "secret", "secrets",
     "token", "tokens", "credential", "credentials", "creds", "auth", "authorization", "bearer", "sas", "sig",
     "signature", "apikey", "jwt", "otp", "cookie", "cookies", "dsn", "connstr")
)  # fmt: skip
# Written together with another word: PGPASSWORD, accesstoken, mysqlpwd.
_SECRET_ENDINGS = ("password", "passwd", "passphrase", "passcode", "apikey", "accesskey", "secretkey", "secret", "pwd")
_JOINED = frozenset(
    ("sshpass", "pgpass", "dbpass", "userpass", "mypass", "authtoken", "accesstoken", "connectionstring")
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Only in the query of an address; elsewhere it is a word like any other.
_IN_QUERIES = frozenset({"code", "state", "key", "session"})

_NAME = r"[A-Za-z_][\w.-]*"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
_ASSIGNED = re.compile(
    rf"(?P<before>(?P<sign>[?&])?-{{0,2}}(?P<quote>[\"']?)(?P<name>{_NAME})(?P=quote)(?:=|:(?!//)\s*|\s*:\s*(?=[\"'])))"
    rf"(?:(?P<kind>bearer|basic)\s+)?(?P<value>{_QUOTED}|[^\s&;,'\"}}]+)",
    re.IGNORECASE,
)
_COOKIE = re.compile(r"(?P<name>(?:set-)?cookie:\s*)\S.*", re.IGNORECASE)
_OPTION = re.compile(rf"--?(?P<name>{_NAME})")
# A word of its own ends where the secret does, whatever signs are in that.
_WORD = re.compile(rf"(?P<before>(?:--?)?(?P<name>{_NAME})(?:=|:(?![\s/])))\S.*", re.DOTALL)
# A user with a password, which may hold any sign, or a token alone; a port is not a password.
_USER = re.compile(r"(?<=://)(?:(?!\[?[\w.-]+\]?:\d+(?:/|$))[^\s:@/]*:\S*@(?=[^\s@]+)|[^\s/@]+@)")
_BARE_USER = re.compile(r"(?<![\w:/])([\w.+-]+):[^\s/@:=]+@(?=[\w-]+[.:\w-]*)")
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
# Keys that their makers give a beginning of their own, and JSON web tokens.
_KNOWN = re.compile(
    r"(?<![\w-])(?:sk-|pk-|rk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|eyJ)[\w.-]{6,}(?![\w/])"
)
_USER_OPTIONS, _PASSWORD_OPTION = frozenset({"-u", "--user", "--proxy-user"}), "-p"


def without_credentials(words: Sequence[str]) -> list[str]:
    """The words of a command, with "***" in place of what others must not read.

    It hides the user in an address (`https://user:pass@host`), the value of an option, variable, field or header whose
    name contains password, token, secret, key, cookie and the like in any spelling (`--authToken x`, `--password x`,
    `PGPASSWORD=x`, `https://host?sig=x`, `{"token": "x"}`), what follows "Bearer" and `-u name:`, and
    keys that begin as those of known services do.
    """
    cleaned: list[str] = []
    before = ""
    for word in words:
        option = _OPTION.fullmatch(before)
        assigned = _WORD.fullmatch(word)
        if option and _is_secret(option["name"]) and not word.startswith("--"):
            cleaned.append(HIDDEN)
        elif before == _PASSWORD_OPTION and not word.startswith("-") and not (word.isdigit() and len(word) < 6):
            # Ports are given by it too.
            cleaned.append(HIDDEN)
        elif before in _USER_OPTIONS and ":" in word:
            cleaned.append(f"{word.partition(':')[0]}:{HIDDEN}")
        elif assigned and _is_secret(assigned["name"]):
            cleaned.append(f"{assigned['before']}{HIDDEN}")
        else:
            cleaned.append(hide_credentials(word))
        before = word
    return cleaned


def hide_credentials(text: str) -> str:
    """A word, or a message, with "***" in place of what `without_credentials` hides."""
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _BARE_USER.sub(f"{HIDDEN}@", text)
    text = _COOKIE.sub(rf"\g<name>{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_value, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _KNOWN.sub(HIDDEN, text)


def _hide_value(found: re.Match[str]) -> str:
    is_secret = _is_secret(found["name"]) or (found["sign"] is not None and found["name"].lower() in _IN_QUERIES)
    if not is_secret:
        return found[0]
    value = found["value"]
    quote = value[0] if value[0] in "\"'" else ""
    kind = f"{found['kind']} " if found["kind"] else ""
    return f"{found['before']}{kind}{quote}{HIDDEN}{quote}"


def _is_secret(name: str) -> bool:
    """Whether the value of an option, variable or field of this name must not be read."""
    words = [word.lower() for word in _WORDS.findall(name)]
    letters = [word for word in words if not word.isdigit()]
    if not letters:
        return False
    if (
        letters[-1] in ("key", "keys")
        or ("key" in letters and letters[-1] == "id")
        or letters[-2:] == ["connection", "string"]
    ):
        return True
    return any(word in _SECRET_WORDS or word in _JOINED or word.endswith(_SECRET_ENDINGS) for word in letters)
