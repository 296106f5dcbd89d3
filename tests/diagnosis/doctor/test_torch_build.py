from __future__ import annotations

import sys

import pytest
import torch

from voxelocity.diagnosis.doctor.torch_build import see_torch


def child(script):
    return [sys.executable, "-I", "-S", "-c", script]


def test_a_fresh_process_tells_what_torch_is():
    seen = see_torch()
    assert (seen.version, seen.error) == (str(torch.__version__), "")
    assert (seen.cuda, seen.sees_cuda) == (torch.version.cuda or "", torch.cuda.is_available())
    assert seen.num_gpus == torch.cuda.device_count()
    assert seen.num_threads > 0
    assert seen.import_s > 0
    assert seen.import_cpu_s > 0


def test_a_torch_that_cannot_be_imported_is_told_with_its_own_words(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    import voxelocity.diagnosis.doctor.torch_child as child_module

    run = f"runpy.run_path({child_module.__file__!r}, {{}}, '__main__')"
    script = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); {run}"
    assert see_torch(child(script)).error == "OSError: libcudart.so.12: cannot open shared object file"


def test_words_that_libraries_print_before_the_answer_do_no_harm():
    assert see_torch(child("""print('hello'); print('{"version": "2.99", "warnings": ["old"]}')""")).version == "2.99"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("raise SystemExit('no torch today')", "ended with status 1: no torch today"),
        ("print('no json')", "ended with status 0: no message"),
        ("", "ended with status 0: no message"),
    ],
)
def test_a_process_that_breaks_off_is_told_and_ends_nothing(script, words):
    assert words in see_torch(child(script)).error


def test_a_process_that_hangs_is_ended():
    assert see_torch(child("import time; time.sleep(60)"), timeout_s=0.2).error.endswith("took more than 0 s")


def test_a_python_that_cannot_be_started_is_told(tmp_path):
    assert "no process could be started" in see_torch([str(tmp_path / "missing")]).error
