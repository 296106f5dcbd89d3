"""A plugin of pytest: new tensors are filled with NaN or the largest integer, so that what nobody writes is noticed."""

from __future__ import annotations

import torch


def pytest_configure() -> None:
    # It also fills what `torch.empty` returns: `torch.utils.deterministic.fill_uninitialized_memory`, on by default.
    torch.use_deterministic_algorithms(True, warn_only=True)
