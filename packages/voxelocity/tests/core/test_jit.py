import importlib
import linecache
import os
import subprocess
import sys

import numpy as np
import pytest

from voxelocity.core import jit
from voxelocity.core.jit import exact_kernel, fused_multiply_add, kernel, pair_copier
from voxelocity_observe.core.environment import python_path

copy_pair = pair_copier()


@kernel
def copy_pairs(source, places, target):
    for n in range(places.size):
        copy_pair(source, np.uint64(places[n]), target, np.uint64(1), np.uint64(n))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_pairs_are_copied_from_any_place_and_nothing_else_is_written(dtype):
    source = np.arange(1, 40).astype(dtype)
    places = np.array([0, 7, 7, 2, source.size - 2])
    target = np.zeros((3, 2 * places.size), dtype)
    copy_pairs(source, places, target)
    wanted = np.stack([source[places], source[places + 1]], axis=1).reshape(-1)
    np.testing.assert_array_equal(target[1], wanted)
    assert not target[0].any()
    assert not target[2].any()


def test_pairs_are_copied_from_a_source_that_may_not_be_written():
    source = np.arange(6, dtype=np.int16)
    source.flags.writeable = False
    target = np.zeros((2, 2), np.int16)
    copy_pairs(source[1:], np.array([2]), target)
    assert target[1].tolist() == [3, 4]


fma = fused_multiply_add()


@exact_kernel
def sums(a, b, c, fused, rounded):
    for k in range(a.size):
        fused[k] = fma(a[k], b[k], c[k])
        rounded[k] = a[k] * b[k] + c[k]


def test_a_fused_sum_rounds_once_and_an_exact_kernel_rounds_at_each_operation():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 4000)).astype(np.float32)
    fused, rounded = np.empty((2, 4000), np.float32)
    sums(a, b, c, fused, rounded)
    np.testing.assert_array_equal(fused, (a.astype(np.float64) * b.astype(np.float64) + c).astype(np.float32))
    np.testing.assert_array_equal(rounded, a * b + c)
    assert (fused != rounded).any()


INNER = """
from voxelocity.core.jit import kernel

@kernel
def scaled(value):
    return value * {factor}
"""
OUTER = """
from inner_loops import scaled
from voxelocity.core.jit import kernel

@kernel
def shifted(value):
    return scaled(value) + 1.0
"""


def test_a_kept_kernel_is_compiled_again_when_a_kernel_that_it_calls_changes_in_another_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outer_loops.py").write_text(OUTER)

    def call(factor):
        (tmp_path / "inner_loops.py").write_text(INNER.format(factor=factor))
        linecache.clearcache()
        for name in ("inner_loops", "outer_loops"):
            sys.modules.pop(name, None)
        shifted = importlib.import_module("outer_loops").shifted
        return shifted(2.0), sum(shifted.stats.cache_hits.values())

    assert [call("3.0"), call("3.0"), call("10.0")] == [(7.0, 0), (7.0, 1), (21.0, 0)]
    for name in ("inner_loops", "outer_loops"):
        sys.modules.pop(name)


NO_PLACE = """
import sys, warnings
import numba.core.caching as caching
import numpy as np
for locator in caching.CacheImpl._locator_classes:
    locator.from_function = classmethod(lambda cls, function, file: None)
from concurrent.futures import ThreadPoolExecutor
from voxelocity.data.prepare.resample import interpolate
from voxelocity.data.prepare.interpolate import sample_positions
with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(4) as pool:
    warnings.simplefilter("always")
    array = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    positions = (sample_positions(3, 3, 1.0),) * 3
    for made in pool.map(lambda _: interpolate(array, positions), range(4)):
        assert (made == array).all()
print([str(item.message) for item in caught if "Numba" in str(item.message)])
"""


@pytest.mark.nightly  # compiles for about 10 s
def test_threads_work_where_numba_has_no_place_to_keep_what_it_compiles_and_that_is_said_once():
    source = python_path()
    done = subprocess.run(
        [sys.executable, "-c", NO_PLACE], env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NUMBA_CACHE_DIR") == 1


def test_a_kernel_is_made_without_being_kept_where_there_is_no_place_for_it_and_that_is_said_once(monkeypatch):
    import numba

    asked, real = [], numba.njit

    def njit(*, cache, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'add': no locator available for file 'a.py'")
        return real(cache=False, **options)

    monkeypatch.setattr(numba, "njit", njit)
    jit._warn_of_no_place.cache_clear()
    with pytest.warns(UserWarning, match="set the variable NUMBA_CACHE_DIR to a writable folder") as messages:
        made = [kernel(lambda a: a + 1), exact_kernel(lambda a: a + 1)]
    assert len(messages) == 1
    assert asked == [True, False, True, False]
    assert [loop.py_func(1) for loop in made] == [2, 2]


def test_another_error_of_numba_is_not_taken_for_a_missing_place(monkeypatch):
    import numba

    def njit(**_):
        raise RuntimeError("no such target")

    monkeypatch.setattr(numba, "njit", njit)
    with pytest.raises(RuntimeError, match="no such target"):
        kernel(lambda a: a)
