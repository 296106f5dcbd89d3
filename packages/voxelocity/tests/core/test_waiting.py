"""Kernels that are not waited for: in a process of its own each, as Numba keeps what it has compiled."""

import subprocess
import sys
import textwrap

import pytest

from shared.limits import HANGS_S

LOOPS = """
from voxelocity.core.jit import kernel

@kernel
def twice(values):
    for n in range(values.size):
        values[n] *= 2

@kernel
def wrong(values):
    return values.no_such_thing
"""
BEGIN = """
import sys, threading, time
import numpy as np
import some_loops
from voxelocity.core import waiting
from voxelocity.core.waiting import without_waiting

def compiler():
    return [thread for thread in threading.enumerate() if thread.name == "voxelocity-compile"]

def made(kernel=some_loops.twice, dtype=np.float32):
    values = np.ones(3, dtype)
    return without_waiting(lambda: (kernel(values), "kernel")[1], lambda: "plain")
"""


@pytest.fixture
def says(tmp_path, monkeypatch):
    """What a fresh Python says to some lines, with the same kernels and the same place for what Numba keeps."""
    (tmp_path / "some_loops.py").write_text(LOOPS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))

    def run(lines):
        (tmp_path / "program.py").write_text(BEGIN + textwrap.dedent(lines))
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=HANGS_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_plain_code_works_until_the_thread_has_compiled_and_the_next_process_finds_it(says):
    lines = """
    before = sys.getswitchinterval()
    print(made())
    for thread in compiler():
        thread.join()
    print(made(), len(some_loops.twice.signatures), sys.getswitchinterval() == before)
    """
    assert says(lines) == ["plain", "kernel", "1", "True"]
    assert says("print(made(), len(compiler()))") == ["kernel", "0"]


def test_outside_of_it_a_kernel_is_compiled_when_it_is_called_for_each_kind_of_argument_by_itself(says):
    assert says("""
    some_loops.twice(np.ones(3, np.float32))
    print(len(some_loops.twice.signatures), len(compiler()))
    print(made(), made(dtype=np.int16))
    """) == ["1", "0", "kernel", "plain"]


def test_a_caller_waits_neither_for_another_kernel_that_is_being_compiled(says):
    assert says("""
    with waiting._behind._compiles:
        print(made(), made(dtype=np.int16), len(waiting._behind._asked))
    """) == ["plain", "plain", "1"]


def test_the_error_of_a_kernel_that_cannot_be_compiled_reaches_the_caller(says):
    assert says("""
    print(made(some_loops.wrong))
    for thread in compiler():
        thread.join()
    try:
        made(some_loops.wrong)
    except Exception as error:
        print(type(error).__name__, made())
    """) == ["plain", "TypingError", "plain"]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_compiles_by_itself_while_the_parent_does(says):
    assert says("""
    import os
    made()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        some_loops.twice(np.ones(3))
        print(made(dtype=np.int16), len(compiler()))
        sys.stdout.flush()
        for thread in compiler():
            thread.join()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    """) == ["plain", "1", "0"]
