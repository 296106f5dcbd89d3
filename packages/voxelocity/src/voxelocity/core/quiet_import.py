"""Imports a package that changes the process, such as MONAI, and restores what the import changed.

MONAI and its dependencies replace `warnings.showwarning`, filter warnings and the logger "py.warnings", set environment
variables and draw from `random`. All of that belongs to the process, so it is restored as soon as the import is over; a
lock keeps two threads from doing so at once. What another thread changes during the seconds of the import stays, except
the list of warning filters and the state of `random`, which are restored.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NO_TELEMETRY = "MLFLOW_DISABLE_TELEMETRY"
# Of MONAI (for deterministic cuBLAS), of scikit-learn (for two copies of OpenMP), and of MLflow, which MONAI imports
# where it is installed, and which then asks its makers whether to send them usage statistics.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "_MLFLOW_TELEMETRY_SESSION_ID",
    _NO_TELEMETRY,
)
_lock = threading.Lock()


def import_quietly(name: str) -> None:
    """Imports a module and restores the process state that this changes; does nothing if it is already imported."""
    with _lock:
        if name not in sys.modules:
            with _as_found():
                importlib.import_module(name)


@contextmanager
def _as_found() -> Iterator[None]:
    show, filters = warnings.showwarning, list(warnings.filters)
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    drawn = random.getstate()
    logger = logging.getLogger("py.warnings")
    log_filters = list(logger.filters)
    os.environ.setdefault(_NO_TELEMETRY, "true")
    try:
        yield
    finally:
        warnings.showwarning = show
        # In place: other code holds the list itself.
        warnings.filters[:] = filters  # type: ignore[index]  # typed as a Sequence, and a list
        warnings._filters_mutated()  # type: ignore[attr-defined]  # else warnings that were seen keep their old verdict
        for variable, value in variables.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
        random.setstate(drawn)
        for entry in [log_filter for log_filter in logger.filters if log_filter not in log_filters]:
            logger.removeFilter(entry)
