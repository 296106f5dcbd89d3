"""Voxelocity: training and inference of volumetric medical-imaging networks, as fast as the machine allows.

Importing this package imports neither torch nor MONAI; each name below is loaded at its first use.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

from voxelocity_observe import unsupported_platform

if TYPE_CHECKING:
    from voxelocity.data.feed import ThreadBuffer as ThreadBuffer
    from voxelocity.data.pipeline import Feed as Feed
    from voxelocity.data.source import open_cases as open
    from voxelocity.infer import predict_files as predict
    from voxelocity.infer.evaluation import evaluate as evaluate
    from voxelocity.report.own_run import diagnose as diagnose
    from voxelocity.training import plan as plan
    from voxelocity.training import train as train
    from voxelocity.training import train_folds as train_folds
    from voxelocity.tuning.tune import tune as tune
    from voxelocity_observe.monitor.gpu_stats import GPUStats as GPUStats
    from voxelocity_observe.monitor.monitor import Monitor as Monitor
    from voxelocity_observe.spans import SpanRecorder as SpanRecorder
    from voxelocity_observe.spans import end_range as end_range
    from voxelocity_observe.spans import phase as phase
    from voxelocity_observe.spans import span as span
    from voxelocity_observe.spans import start_range as start_range

__version__ = "0.1.0"

__all__ = [
    "Feed",
    "GPUStats",
    "Monitor",
    "SpanRecorder",
    "ThreadBuffer",
    "__version__",
    "diagnose",
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


_WHERE = {
    "ThreadBuffer": ("voxelocity.data.feed", "ThreadBuffer"),
    "Feed": ("voxelocity.data.pipeline", "Feed"),
    "GPUStats": ("voxelocity_observe.monitor.gpu_stats", "GPUStats"),
    "Monitor": ("voxelocity_observe.monitor.monitor", "Monitor"),
    "open": ("voxelocity.data.source", "open_cases"),
    "plan": ("voxelocity.training", "plan"),
    "diagnose": ("voxelocity.report.own_run", "diagnose"),
    "evaluate": ("voxelocity.infer.evaluation", "evaluate"),
    "predict": ("voxelocity.infer", "predict_files"),
    "train": ("voxelocity.training", "train"),
    "train_folds": ("voxelocity.training", "train_folds"),
    "tune": ("voxelocity.tuning.tune", "tune"),
    "SpanRecorder": ("voxelocity_observe.spans", "SpanRecorder"),
    "end_range": ("voxelocity_observe.spans", "end_range"),
    "phase": ("voxelocity_observe.spans", "phase"),
    "span": ("voxelocity_observe.spans", "span"),
    "start_range": ("voxelocity_observe.spans", "start_range"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'voxelocity' has no attribute '{name}'")
    if why := unsupported_platform():
        raise ImportError(f"voxelocity.{name}: {why}")
    module, attribute = _WHERE[name]
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, FunctionType):
        # What help shows, and where pickle finds it.
        found.__module__, found.__name__, found.__qualname__ = __name__, name, name
    return found
