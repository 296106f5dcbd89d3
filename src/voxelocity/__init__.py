"""Voxelocity: training and inference of volumetric medical-imaging networks, as fast as the machine allows.

Importing this package imports neither torch nor MONAI; each name below is loaded at its first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxelocity.data.feed import ThreadBuffer as ThreadBuffer
    from voxelocity.data.pipeline import Feed as Feed
    from voxelocity.data.source import open_cases as open
    from voxelocity.evaluation import evaluate as evaluate
    from voxelocity.infer import predict_files as predict
    from voxelocity.monitoring.monitor import Monitor as Monitor
    from voxelocity.observe import SpanRecorder as SpanRecorder
    from voxelocity.observe import end_range as end_range
    from voxelocity.observe import phase as phase
    from voxelocity.observe import span as span
    from voxelocity.observe import start_range as start_range
    from voxelocity.planning import make_plan as plan
    from voxelocity.training import train as train
    from voxelocity.training import train_folds as train_folds
    from voxelocity.tuning.tune import tune as tune

__version__ = "0.1.0"

__all__ = [
    "Feed",
    "Monitor",
    "SpanRecorder",
    "ThreadBuffer",
    "__version__",
    "end_range",
    "evaluate",
    "open",
    "phase",
    "plan",
    "predict",
    "span",
    "start_range",
    "train",
    "train_folds",
    "tune",
]


def unsupported_platform() -> str:
    """Why this system cannot run the package, in one sentence; empty if it can."""
    system: str = sys.platform
    if system in ("linux", "darwin"):
        return ""
    return f"Voxelocity runs on Linux, and on macOS without a GPU, not on {system}; on Windows use WSL 2"


_WHERE = {
    "ThreadBuffer": ("voxelocity.data.feed", "ThreadBuffer"),
    "Feed": ("voxelocity.data.pipeline", "Feed"),
    "Monitor": ("voxelocity.monitoring.monitor", "Monitor"),
    "open": ("voxelocity.data.source", "open_cases"),
    "plan": ("voxelocity.planning", "make_plan"),
    "evaluate": ("voxelocity.evaluation", "evaluate"),
    "predict": ("voxelocity.infer", "predict_files"),
    "train": ("voxelocity.training", "train"),
    "train_folds": ("voxelocity.training", "train_folds"),
    "tune": ("voxelocity.tuning.tune", "tune"),
    "SpanRecorder": ("voxelocity.observe", "SpanRecorder"),
    "end_range": ("voxelocity.observe", "end_range"),
    "phase": ("voxelocity.observe", "phase"),
    "span": ("voxelocity.observe", "span"),
    "start_range": ("voxelocity.observe", "start_range"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'voxelocity' has no attribute '{name}'")
    if why := unsupported_platform():
        raise ImportError(f"voxelocity.{name}: {why}")
    module, attribute = _WHERE[name]
    return getattr(importlib.import_module(module), attribute)
