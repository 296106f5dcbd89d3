"""Importing `voxelocity.monai` leaves the process as it was."""

import logging
import os
import random
import subprocess
import sys
import warnings

import pytest

from voxelocity.core import quiet_import

SNAPSHOT = """
import locale, logging, multiprocessing, os, random, signal, sys, threading, warnings
import matplotlib, numpy as np, torch

matplotlib.use("agg")
warnings.filterwarnings("error", message="mine")
random.seed(1)

def state():
    return {
        "warning filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "environment": dict(os.environ),
        "cudnn": [getattr(torch.backends.cudnn, n) for n in ("benchmark", "deterministic", "allow_tf32", "enabled")],
        "matmul": (torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "numpy errors": (np.geterr(), np.geterrcall(), np.get_printoptions()),
        "matplotlib": matplotlib.rcParams["backend"],
        "signals": {s: signal.getsignal(s) for s in signal.valid_signals()},
        "start method": multiprocessing.get_start_method(allow_none=True),
        "sharing strategy": torch.multiprocessing.get_sharing_strategy(),
        "logging": (logging.root.level, list(logging.root.handlers), list(logging.getLogger("py.warnings").filters)),
        "excepthook": sys.excepthook,
        "threads": [t.name for t in threading.enumerate()],
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "rest": (os.getcwd(), list(sys.path), sys.getrecursionlimit(), locale.getlocale()),
    }

before = state()
import IMPORTED
after = state()
print("changed:", sorted(name for name in before if before[name] != after[name]))
"""


def changed_by(module):
    code = SNAPSHOT.replace("IMPORTED", module)
    clean = {k: v for k, v in os.environ.items() if k not in quiet_import._VARIABLES}
    run = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[-1]


def test_import_changes_no_state_of_the_process():
    assert changed_by("voxelocity.monai") == "changed: []"


@pytest.mark.nightly
def test_the_same_comparison_finds_what_monai_itself_changes():
    found = changed_by("monai")
    assert all(name in found for name in ("environment", "showwarning", "logging", "warning filters")), found


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(text):
        (tmp_path / "noisy_neighbor.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "noisy_neighbor", raising=False)
        return "noisy_neighbor"

    return write


NOISE = """
import logging, os, random, warnings
warnings.simplefilter("ignore", ResourceWarning)
warnings.showwarning = print
os.environ["CUBLAS_WORKSPACE_CONFIG"] = "theirs"
os.environ.setdefault("KMP_INIT_AT_FORK", "theirs")
logging.getLogger("py.warnings").addFilter(lambda record: False)
random.random()
"""


def test_state_is_put_back_and_what_a_person_set_stays(module, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "mine")
    monkeypatch.delenv("KMP_INIT_AT_FORK", raising=False)
    state = [list(warnings.filters), warnings.showwarning, random.getstate()]
    filters = list(logging.getLogger("py.warnings").filters)
    quiet_import.import_quietly(module(NOISE))
    assert state == [list(warnings.filters), warnings.showwarning, random.getstate()]
    assert filters == logging.getLogger("py.warnings").filters
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == "mine"
    assert "KMP_INIT_AT_FORK" not in os.environ


def test_state_is_put_back_although_the_import_fails(module):
    before = warnings.showwarning
    with pytest.raises(ZeroDivisionError):
        quiet_import.import_quietly(module("import warnings\nwarnings.showwarning = print\n1 / 0"))
    assert warnings.showwarning is before


def test_what_is_imported_already_keeps_what_it_changed(module, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "mine")
    name = module(NOISE)
    quiet_import.import_quietly(name)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "set later")
    quiet_import.import_quietly(name)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == "set later"
