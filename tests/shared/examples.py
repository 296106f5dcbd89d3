"""How much tests try. Of the examples of hypothesis a quarter, unless VOXELOCITY_THOROUGH=1, as in `make test-all`."""

import os

is_thorough = os.environ.get("VOXELOCITY_THOROUGH") == "1"


def examples(thorough: int) -> int:
    """The `max_examples` of a test for which this many are thorough."""
    return thorough if is_thorough else max(10, thorough // 4)


def widths() -> tuple[int, ...]:
    """Columns of terminals, 40 to 200, at which nothing may lose a letter: some, or all if tests are thorough."""
    return tuple(range(40, 201)) if is_thorough else (40, 47, 60, 79, 80, 99, 100, 101, 102, 117, 140, 200)
