"""What holds a PyTorch program back, on which machine, and what a change would bring; trains and predicts nothing.

Importing this package imports neither torch nor NumPy; each name below is loaded at its first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxelocity_observe.monitor.gpu_stats import GPUStats as GPUStats
    from voxelocity_observe.monitor.monitor import Monitor as Monitor
    from voxelocity_observe.spans import SpanRecorder as SpanRecorder
    from voxelocity_observe.spans import end_range as end_range
    from voxelocity_observe.spans import phase as phase
    from voxelocity_observe.spans import span as span
    from voxelocity_observe.spans import start_range as start_range

__version__ = "0.1.0"

__all__ = [
    "GPUStats",
    "Monitor",
    "SpanRecorder",
    "__version__",
    "end_range",
    "phase",
    "span",
    "start_range",
]

_WHERE = {
    "GPUStats": "voxelocity_observe.monitor.gpu_stats",
    "Monitor": "voxelocity_observe.monitor.monitor",
    "SpanRecorder": "voxelocity_observe.spans",
    "end_range": "voxelocity_observe.spans",
    "phase": "voxelocity_observe.spans",
    "span": "voxelocity_observe.spans",
    "start_range": "voxelocity_observe.spans",
}


def unsupported_platform() -> str:
    """Why this system cannot run the package, in one sentence; empty if it can."""
    system: str = sys.platform
    if system in ("linux", "darwin"):
        return ""
    return f"Voxelocity runs on Linux, and on macOS without a GPU, not on {system}; on Windows use WSL 2"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'voxelocity_observe' has no attribute '{name}'")
    if why := unsupported_platform():
        raise ImportError(f"voxelocity_observe.{name}: {why}")
    return getattr(importlib.import_module(_WHERE[name]), name)
