"""How much tests try. Of the examples of hypothesis a quarter, unless VOXELOCITY_THOROUGH=1, as in `make test-all`."""

import os

is_thorough = os.environ.get("VOXELOCITY_THOROUGH") == "1"


def examples(thorough: int) -> int:
    """The `max_examples` of a test for which this many are thorough."""
    return thorough if is_thorough else max(10, thorough // 4)
