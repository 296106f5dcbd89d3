from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from voxelocity.core.volume import Grid, Volume
from voxelocity_observe.core.environment import python_path


@pytest.fixture
def sized_volume():
    """Makes a volume of this many bytes, filled with a number of its own."""

    def make(number=0, num_bytes=10_000):
        image = np.full((1, num_bytes, 1, 1), number, np.uint8)
        return Volume(case_id=f"case_{number}", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))

    return make


@pytest.fixture
def memory_place(tmp_path):
    """A folder of this test alone in main memory, or on disk where that is not available."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    place = Path("/dev/shm") / f"voxelocity-test-{os.getpid()}-{secrets.token_hex(6)}"
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def run_python():
    """Starts Python on some code with arguments; what it prints can be read while it runs."""
    started = []

    def start(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
