"""TractoDiff's monitor of the GPU under its own names."""

import tempfile
import time
from pathlib import Path

import voxelocity as vx

with tempfile.TemporaryDirectory() as folder:
    stats = vx.GPUStats(log_dir=folder)
    stats.start_monitoring()
    time.sleep(2.5)
    stats.stop_monitoring()
    stats.plot_stats()
    written = sorted(path.name for path in Path(folder).rglob("*"))
    print(written)
    assert any(name.endswith(".png") for name in written)
    assert any(name.endswith(".csv") for name in written)
