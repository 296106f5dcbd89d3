"""Quantities as people write them on a command line."""

from __future__ import annotations

import re

from voxelocity.core.errors import ConfigError

_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s|)\s*")


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as "5m", "1h30m", "90s" or "90".

    Raises:
        ConfigError: the text is no duration, or it is zero.
    """
    position, seconds, units = 0, 0.0, []
    stripped = text.strip().lower()
    while position < len(stripped):
        match = _PART.match(stripped, position)
        if match is None:
            break
        units.append(match[2])
        seconds += float(match[1]) * _UNITS_S[match[2]]
        position = match.end()
    # "1h30" might be meant as minutes or as seconds.
    is_unclear = len(units) > 1 and "" in units
    if position < len(stripped) or is_unclear or seconds <= 0.0:
        raise ConfigError(f"config: '{text}' is no duration; write it like 90s, 5m or 1h30m")
    return seconds
