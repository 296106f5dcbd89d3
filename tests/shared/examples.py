"""How many examples hypothesis tries: a quarter of many, unless VOXELOCITY_THOROUGH=1, as in `make test-all`."""

import os

_IS_THOROUGH = os.environ.get("VOXELOCITY_THOROUGH") == "1"


def examples(thorough: int) -> int:
    """The `max_examples` of a test for which this many are thorough."""
    return thorough if _IS_THOROUGH else max(10, thorough // 4)
