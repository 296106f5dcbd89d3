"""The C loops: that Python and C agree about arguments, that wrong arrays are errors, and that all levels agree."""

import functools
import re
import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from voxelocity.core import build_loops, native
from voxelocity.core.native import NativeLoop, interpolate, rows_of, writable_rows
from voxelocity.data.augment import native_loops, params
from voxelocity.data.prepare import native_resample, native_restore
from voxelocity.data.prepare.interpolate import neighbors
from voxelocity.step import native_loss, native_norm

_MODULES = (native, native_loops, native_resample, native_restore, native_norm, native_loss)
LOOPS = {loop.name: loop for module in _MODULES for loop in vars(module).values() if isinstance(loop, NativeLoop)}
_C_TYPES = {"int": "int64_t", "seed": "uint64_t", "float": "float", "double": "double"}
_C_DTYPES = {"float32": "float", "float64": "double", "stored": "STORED"}
LIBRARY, why_not = build_loops.LIBRARY, build_loops.why_not


def c_type(kind):
    if kind in _C_TYPES:
        return _C_TYPES[kind]
    use, dtype = kind.split()
    return ("const " if use == "in" else "") + _C_DTYPES.get(dtype, f"{dtype}_t") + " *"


def test_each_loop_in_c_takes_what_python_passes():
    found = {}
    for path in build_loops.sources():
        for name, arguments in re.findall(r"^int (?:TYPED_)?LOOP\((\w+)\)\(([^)]*)\)", path.read_text(), re.MULTILINE):
            found[name] = [re.sub(r"\w+$", "", " ".join(part.split())).strip() for part in arguments.split(",")]
    assert set(found) == set(LOOPS)
    for name, loop in LOOPS.items():
        assert found[name] == [c_type(kind).strip() for kind in loop.kinds], name


def test_each_stored_type_has_its_loop_in_c():
    for loop in LOOPS.values():
        for dtype in loop.stored:
            assert loop._function("", dtype) is not None


ARRAY = np.zeros(8, np.float32)
READ_ONLY = ARRAY.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("flat", "facts"),
    [
        (ARRAY.astype(np.float64), "argument 0 is float64"),
        (ARRAY.astype(">f4"), "argument 0 is >f4"),
        (ARRAY[::2], "with steps"),
        (READ_ONLY, "read-only"),
        ([1.0], "a list, not an array"),
    ],
)
def test_an_array_that_a_loop_cannot_take_is_an_error(flat, facts):
    with pytest.raises(ValueError, match=f"loop spread: .*{facts}|loop spread: {facts}"):
        native_loops._spread(flat, 8, 1.5)


def test_shapes_and_indices_beyond_an_array_are_errors():
    f4, image, out = np.float32, np.zeros((1, 4, 4, 4), np.int16), np.zeros((1, 2, 2, 2), np.float32)
    label, out_label = np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 2), np.uint8)
    scale, places = np.ones((1, 3), f4), (np.zeros(3), np.eye(3))
    none = np.zeros((0, 0), f4)
    plain = (np.zeros((3, 0, 0, 0), f4), none, none, np.zeros(0, np.int32), none)
    native_loops.warp(image, label, places, plain, scale, (out, out_label), votes=True)
    with pytest.raises(ValueError, match=r"loop warp: image has shape \(2, 4, 4, 4\), not \(1, 4, 4, 4\)"):
        native_loops.warp(np.zeros((2, 4, 4, 4), np.int16), label, places, plain, scale, (out, out_label), votes=True)
    control, along = np.zeros((3, 4, 4, 4), f4), params.spline_weights(2, 4)
    late = (control, along, along, np.array([0, 1], np.int32), params.four_weights(2, 4)[1])
    with pytest.raises(ValueError, match="loop warp: an index lies beyond its array"):
        native_loops.warp(image, label, places, late, scale, (out, out_label), votes=True)
    memory = (image.reshape(-1), (64, 16, 4)), (label.reshape(-1), (16, 4))
    with pytest.raises(ValueError, match=r"loop crop: image of 64 voxels .* does not hold \(0, 0, 0\) to \(5, 4, 4\)"):
        native_loops.crop(*memory, ((0, 0, 0), (5, 4, 4)), (False,) * 3, scale, (out, out_label))
    with pytest.raises(ValueError, match="loop fill_boxes: an index"):
        native_loops.fill_boxes(out, np.array([[[0, 0, 0], [1, 1, 3]]]), np.empty(0), 0.0, 0.0)
    with pytest.raises(ValueError, match="loop blur_mirrored: an index"):
        native_loops.blur_mirrored(out[0], np.empty_like(out[0]), np.ones(5, f4), 2)
    line = (np.array([0, 4]), np.array([1, 1]), np.zeros(2, f4))
    with pytest.raises(ValueError, match="loop interpolate: an index"):
        interpolate(image[0], out[0], [line] * 3)
    with pytest.raises(ValueError, match=r"loop interpolate: below has shape \(2,\), not \(3,\)"):
        interpolate(image[0], np.zeros((3, 2, 2), f4), [line] * 3)


def test_rows_are_views_where_they_can_be_and_only_then_written_to():
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    kinds = frozenset([array.dtype])
    for part, steps, is_view in ((array[1:, :2], [20, 5], True), (array[..., ::2], [12, 3], False)):
        line, found = rows_of(part, kinds)
        assert found == steps
        assert np.shares_memory(line, array) == is_view
        assert not line.flags.writeable
        assert line[found[0] + found[1] + 1] == part[1, 1, 1]
    line, steps = writable_rows(array[1:, :2])
    line[steps[0]] = -1
    assert array[2, 0, 0] == -1
    with pytest.raises(ValueError, match="no loop can write to an array with steps"):
        writable_rows(array[..., ::2])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64", "int8", "float16", ">i2"])
def test_every_number_type_is_interpolated(dtype):
    source = np.arange(60).reshape(3, 4, 5).astype(dtype)
    out = np.empty((5, 4, 9), np.float32)
    places = [np.linspace(0, n - 1, m) for n, m in zip(source.shape, out.shape, strict=True)]
    interpolate(source, out, [neighbors(place, n) for place, n in zip(places, source.shape, strict=True)])
    wanted = places[0][:, None, None] * 20 + places[1][:, None] * 5 + places[2]
    np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_all_levels_give_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    image, label = rng.normal(size=(2, 20, 21, 22)).astype(np.float32), rng.integers(0, 4, (20, 21, 22), np.uint8)
    places = np.full(3, 1.5), np.array([[0.9, 0.1, 0.0], [-0.1, 0.8, 0.2], [0.0, 0.1, 0.9]])
    control, shape = rng.normal(size=(3, 5, 5, 5)).astype(np.float32), (19, 18, 17)
    elastic = (control, params.spline_weights(19, 5), params.spline_weights(18, 5), *params.four_weights(17, 5))
    scale = np.array([[1.1, 0.3, 0.2], [0.7, 0.0, 0.0]], np.float32)
    plain = {name: loop for name, loop in vars(native_loops).items() if isinstance(loop, NativeLoop)}

    def changed(level):
        for name, loop in plain.items():
            monkeypatch.setattr(native_loops, name, functools.partial(loop, level=level))
        out = np.full((2, *shape), np.nan, np.float32), np.empty(shape, np.uint8)
        native_loops.warp(image, label, places, elastic, scale, out, votes=True)
        flat = out[0].reshape(-1)
        native_loops.add_noise(flat, 0.3, 12345678901, 2)
        native_loops.bend(flat, 1.3, is_inverted=True, keeps_moments=True)
        native_loops.spread(flat, 1.4)
        return out[0].tobytes() + out[1].tobytes()

    assert len({changed(level) for level in native.levels()}) == 1


def test_nan_stays_nan_where_it_is_and_makes_means_nan():
    flat = np.array([np.nan, 1.0, 2.0], np.float32)
    native_loops.scale_and_shift(flat, 2.0, 1.0)
    np.testing.assert_array_equal(flat, [np.nan, 3.0, 5.0])
    native_loops.bend(flat, 1.5, is_inverted=False, keeps_moments=False)
    assert np.isnan(flat).tolist() == [True, False, False]
    native_loops.spread(flat, 1.5)
    assert np.isnan(flat).all()


def test_a_library_that_is_missing_damaged_or_older_says_so_with_the_cure(tmp_path, monkeypatch):
    library, current = tmp_path / "loops.so", build_loops.stamp()
    monkeypatch.setattr(build_loops, "LIBRARY", library)
    assert re.fullmatch(rf"{library} does not exist; build it with a C compiler: {build_loops.COMMAND}", why_not())
    library.write_bytes(b"no library")
    assert why_not().endswith(f"; build it for this machine: {build_loops.COMMAND}")
    monkeypatch.setattr(build_loops, "LIBRARY", LIBRARY)
    monkeypatch.setattr(build_loops, "stamp", lambda: "another" + current)
    assert why_not() == f"{LIBRARY} was built from other sources; build it again: {build_loops.COMMAND}"


def test_a_build_without_a_compiler_or_with_one_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(build_loops, "LIBRARY", tmp_path / "loops.so")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build_loops.BuildError, match=r"no C compiler .* was found; install one"):
        build_loops.build()
    for compiler, message in (("false", "false .*: exit status 1"), (str(tmp_path / "none"), "none: .*No such file")):
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(build_loops.BuildError, match=message):
            build_loops.build()
    assert not build_loops.LIBRARY.exists()


def test_the_build_needs_no_package_of_ours():
    # As the hook of the wheel and the doctor run it.
    assert runpy.run_path(build_loops.__file__)["stamp"]() == build_loops.stamp()


def test_freed_memory_is_kept_where_the_c_library_can(monkeypatch):
    asked = []
    options = SimpleNamespace(mallopt=lambda *option: asked.append(option) or 1)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda name: options)
    assert native.keep_freed_memory()
    assert asked == [(-3, 2**25), (-1, 2**31 - 1)]
    monkeypatch.setattr(native.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not native.keep_freed_memory()
