"""Commands in a form that is safe to record: without passwords and tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_SECRET = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|auth(?:orization)?|bearer|(?:api|access|private|secret|account)[-_]?key|"
    r"apikey|access[-_]?key[-_]?id|sas|sig(?:nature)?)"
)
_NAME = rf"[\w.-]*?(?<![a-z]){_SECRET}(?![a-z])[\w.-]*"
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
# A word of its own ends where the secret does, whatever signs are in that.
_WORD = re.compile(rf"((?:--?)?{_NAME}=).+", re.IGNORECASE | re.DOTALL)
_ASSIGNED = re.compile(rf"(?<![\w-])((?:--?)?{_NAME})(=|:\s*)(?:(bearer|basic)\s+)?([^\s&;,]+)", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@]+@")
_BARE_USER = re.compile(r"(?<![\w:/])([\w.+-]+):[^\s/@:=]+@(?=[\w-]+[.:\w-]*)")
_BEARER = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)


def without_credentials(words: Sequence[str]) -> list[str]:
    """The words of a command, with "***" in place of what others must not read.

    It hides the user in an address (`https://user:pass@host`), the value of an option or variable whose name contains
    password, token, secret, API key and the like (`--token=x`, `--password x`, `WANDB_API_KEY=x`,
    `https://host?sig=x`), and what follows "Bearer".
    """
    cleaned: list[str] = []
    is_secret = False
    for word in words:
        follows = is_secret and not word.startswith("-")
        assigned = _WORD.fullmatch(word)
        cleaned.append(HIDDEN if follows else f"{assigned[1]}{HIDDEN}" if assigned else hide_credentials(word))
        is_secret = _OPTION.fullmatch(word) is not None
    return cleaned


def hide_credentials(text: str) -> str:
    """A word, or a message, with "***" in place of what `without_credentials` hides."""
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _BARE_USER.sub(f"{HIDDEN}@", text)
    text = _ASSIGNED.sub(lambda found: f"{found[1]}{found[2]}{found[3] + ' ' if found[3] else ''}{HIDDEN}", text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)
