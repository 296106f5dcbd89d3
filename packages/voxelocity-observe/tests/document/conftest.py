"""Charts are drawn here, where they are looked at."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _charts_are_blank():
    """Not here, where they are looked at."""
