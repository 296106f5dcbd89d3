"""What every test shares: real data by name, and a guard against what a test leaves behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real scans; tests that need it are skipped where it is absent."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("VOXELOCITY_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; name its folder in VOXELOCITY_DATA")
    return folder


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(timeout=5)
    still = [thread.name for thread in left if thread.is_alive()]
    assert not still, f"threads left running: {still}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """With REQUIRE_GPU=1 a GPU test that would be skipped fails instead."""
    report = yield
    if report.skipped and item.get_closest_marker("gpu") and os.environ.get("REQUIRE_GPU") == "1":
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_GPU=1, but this test was skipped: {report.longrepr}"
    return report
