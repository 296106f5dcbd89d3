"""Quantities as users write them on a command line."""

from __future__ import annotations

import re

from voxelocity.core.errors import ConfigError

_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as "5m", "1h30m" or "90s".

    Raises:
        ConfigError: the text is not a duration, has a number without a unit, or is zero.
    """
    position, seconds = 0, 0.0
    stripped = text.strip().lower()
    if _NUMBER.fullmatch(stripped):
        raise ConfigError(f"config: '{text}' has no unit; write {stripped}s for seconds or {stripped}m for minutes")
    while match := _PART.match(stripped, position):
        seconds += float(match[1]) * _UNITS_S[match[2]]
        position = match.end()
    if position < len(stripped) or seconds <= 0.0:
        raise ConfigError(f"config: '{text}' is not a duration; write it like 90s, 5m or 1h30m")
    return seconds
