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

def finish():
    for thread in compiler():
        thread.join()

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
    finish()
    print(made(), len(some_loops.twice.signatures), sys.getswitchinterval() == before)
    """
    assert says(lines) == ["plain", "kernel", "1", "True"]
    assert says("print(made(), len(compiler()))") == ["kernel", "0"]


def test_kinds_of_arguments_and_errors_are_kept_apart(says):
    printed = says("""
    # Outside of it, a kernel is compiled when it is called.
    some_loops.twice(np.ones(3, np.float32))
    print(len(some_loops.twice.signatures), len(compiler()), made())
    # A caller waits neither for its own kernel nor for another one that is being compiled.
    with waiting._behind._compiles:
        print(made(dtype=np.int16), made(dtype=np.int32), len(waiting._behind._asked))
    finish()
    print(made(some_loops.wrong))
    finish()
    try:
        made(some_loops.wrong)
    except Exception as error:
        print(type(error).__name__, made(dtype=np.int8))
    """)
    assert printed == ["1", "0", "kernel", "plain", "plain", "1", "plain", "TypingError", "plain"]


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
        finish()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    """) == ["plain", "1", "0"]
