"""The C loops: that Python and C agree about arguments, that wrong arrays are errors, and that all levels agree."""

import functools
import itertools
import platform
import re
import runpy
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from voxelocity.core import build_loops, native
from voxelocity.core.native import NativeLoop, flatten, interpolate, rows_of, writable_rows
from voxelocity.data.augment import native_loops, params
from voxelocity.data.decode.dicom import lossless_jpeg
from voxelocity.data.prepare import native_resample, native_restore
from voxelocity.data.prepare.interpolate import neighbors
from voxelocity.infer.models import nnunet_labels
from voxelocity.monai.deterministic import native_loops as whole_loops
from voxelocity.monai.steps.intensity import native_loops as intensity_loops
from voxelocity.monai.steps.spatial import native_loops as spatial_loops
from voxelocity.monai.steps.spatial.step import AxisWeights
from voxelocity.step import native_loss, native_norm

_MODULES = (
    *(native, native_loops, native_resample, native_restore, whole_loops, intensity_loops, spatial_loops),
    *(native_norm, native_loss, lossless_jpeg, nnunet_labels),
)
LOOPS = {loop.name: loop for module in _MODULES for loop in vars(module).values() if isinstance(loop, NativeLoop)}
_C_TYPES = {"int": "int64_t", "seed": "uint64_t", "float": "float", "double": "double"}
_C_DTYPES = {"float32": "float", "float64": "double", "stored": "STORED", "any": "void"}
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


def test_a_thread_lets_torch_work_in_it_alone():
    def ask():
        torch.get_num_threads()
        return native.use_one_core(), torch.get_num_threads()

    torch.set_num_threads(2)
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        is_alone, num_threads = pool.submit(ask).result()
        assert num_threads == (1 if is_alone else 2)
        assert other.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    assert is_alone or native.thread_pool() == 0


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


def test_arguments_of_a_stored_type_have_the_same_one():
    along = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)) * 3
    sizes = np.array([1, 1, 1, 1, 1, 1, 1, 1])
    label = np.zeros(1, np.uint16)
    native_resample._resample_label(label, sizes, *along, label.copy())
    with pytest.raises(ValueError, match="loop resample_label: argument 11 is uint8"):
        native_resample._resample_label(label, sizes, *along, label.astype(np.uint8))


def test_shapes_and_indices_beyond_an_array_are_errors():
    f4, image, out = np.float32, np.zeros((1, 4, 4, 4), np.int16), np.zeros((1, 2, 2, 2), np.float32)
    label, out_label = np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 2), np.uint8)
    scale, places = np.ones((1, 3), f4), (np.zeros(3), np.eye(3))
    none = np.zeros((0, 0), f4)
    plain = (np.zeros((3, 0, 0, 0), f4), none, none, np.zeros(0, np.int32), none)
    native_loops.warp(image, label, places, plain, scale, (out, out_label), votes=True)
    with pytest.raises(ValueError, match=r"loop warp: image has shape \(2, 4, 4, 4\), not \(1, 4, 4, 4\)"):
        native_loops.warp(np.zeros((2, 4, 4, 4), np.int16), label, places, plain, scale, (out, out_label), votes=True)
    with pytest.raises(ValueError, match="loop warp: labels are uint16 and uint8, not both"):
        native_loops.warp(image, label.astype(np.uint16), places, plain, scale, (out, out_label), votes=True)
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


def test_indices_beyond_an_array_of_the_drop_ins_are_errors():
    f4, image, out = np.float32, np.zeros((1, 4, 4, 4), np.float32), np.zeros((2, 2, 2), np.float32)
    late, weights = np.array([0, 4]), (np.ones(2),) * 2
    beyond = "an index lies beyond its array"
    with pytest.raises(ValueError, match=f"loop positive_box: {beyond}"):
        whole_loops.positive_box(image, np.array([1]), 0.0)
    with pytest.raises(ValueError, match=f"loop sample_nearest: {beyond}"):
        whole_loops.sample_nearest(image[0], out, *[late] * 3)
    with pytest.raises(ValueError, match=f"loop sample_linear: {beyond}"):
        whole_loops.sample_linear(image[0], out, *[(late, late, *weights)] * 3)
    target = spatial_loops.Target(whole=out, part=out[None], scale=np.ones((1, 2), f4))
    table = AxisWeights(index=late[:, None].astype(np.int32), weight=np.ones((2, 1), f4))
    with pytest.raises(ValueError, match=f"loop resize: {beyond}"):
        spatial_loops.resize(image, [table] * 3, target)
    inside = AxisWeights(index=table.index // 2, weight=table.weight)
    spatial_loops.resize(image, [inside] * 3, target)
    elsewhere = spatial_loops.Target(whole=out[1:], part=out[None], scale=target.scale)
    with pytest.raises(ValueError, match="loop resize: voxels -4 to 3 are not all in an array of 4"):
        spatial_loops.resize(image, [inside] * 3, elsewhere)
    lines, rules = [np.array([-9.0, 9.0], f4)] * 3, (False, False, False, "zeros")
    theta, none, box = np.eye(3, 4, dtype=f4), np.zeros(0, f4), ((4, 4, 4), (0, 0, 0))
    places = [(image, target), (np.zeros((1, 4, 4, 4), np.uint8), target)]
    # A box that is smaller than what its places need is not left.
    spatial_loops.sample(lines, theta, np.arange(4), none, none, rules, box, places)
    with pytest.raises(ValueError, match=f"loop sample: {beyond}"):
        spatial_loops.sample(lines, theta, np.arange(1, 5), none, none, rules, box, places)
    for starts, numbers in (([9], [0.0] * 9), ([0], [0.0, 1.0, 7.0, 0.0])):
        code = np.array([intensity_loops.CURVE])
        with pytest.raises(ValueError, match=f"loop run_program: {beyond}"):
            intensity_loops.run_program(out, code, np.array(starts), np.array(numbers, f4), np.zeros(5), 0)
    with pytest.raises(ValueError, match=f"loop fill_outside: {beyond}"):
        intensity_loops.fill_outside(out[None], np.zeros((0, 2, 3), np.int64), np.zeros(7), 0.0, 1.0)


@pytest.mark.parametrize(
    "view", [np.s_[:], np.s_[::-1, :, ::-1], np.s_[1:, ::2, ::-2], np.s_[:, :0], np.s_[2:1:-1, 3:]], ids=str
)
def test_any_view_is_a_line_with_steps(view):
    part = np.arange(60, dtype=np.int16).reshape(3, 4, 5)[view].transpose(2, 0, 1)
    line, (first, *steps) = flatten(part)
    assert part.size == 0 or np.shares_memory(line, part)
    for place in np.ndindex(part.shape):
        assert line[first + sum(index * step for index, step in zip(place, steps, strict=True))] == part[place]


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


def test_all_levels_of_the_drop_ins_give_the_same_bits(monkeypatch):
    rng = np.random.default_rng(1)
    volume = rng.normal(size=(1, 20, 21, 22)).astype(np.float32)
    plain = {
        (module, name): loop
        for module in (whole_loops, intensity_loops, spatial_loops)
        for name, loop in vars(module).items()
        if isinstance(loop, NativeLoop)
    }
    lines = [np.linspace(-1.2, 1.2, side, dtype=np.float32) for side in volume.shape[1:]]
    theta = np.eye(3, 4, dtype=np.float32) + rng.normal(0.0, 0.05, (3, 4)).astype(np.float32)
    weights = [np.array([0.2, 0.6, 0.2], np.float32)] * 3
    codes, starts, numbers = (
        np.array([intensity_loops.POWER]),
        np.array([0]),
        np.array([-4, 0.1, 1.3, 5, 0], np.float32),
    )

    def changed(level):
        for (module, name), loop in plain.items():
            monkeypatch.setattr(module, name, functools.partial(loop, level=level))
        made = []
        for kind, is_fused in itertools.product((np.float32, np.float64), (False, True)):
            out, facts = np.empty((2, *volume.shape[1:]), np.float32), np.empty(5)
            targets = [spatial_loops.Target(whole=p, part=p[None], scale=np.ones((1, 2), np.float32)) for p in out]
            rules = (is_fused, False, is_fused, "reflection")
            parts = list(zip((volume, volume), targets, strict=True))
            box = [np.array(volume.shape[1:]) - 3, (0, 0, 0)]
            spatial_loops.sample(
                lines, theta, np.arange(4), np.ones(3, kind), np.zeros(0, np.float32), rules, box, parts
            )
            intensity_loops.blur_in_zeros(out[0], weights, 0.5)
            intensity_loops.run_program(out, codes, starts, numbers, facts, 1)
            intensity_loops.add_rician(out[0], 0.1, 0.3, 5, (0, 1))
            smoothed = np.empty_like(out[:1])
            intensity_loops.smooth(out[:1], weights[0], smoothed)
            sums = whole_loops.moments(out.reshape(-1), 0.1, is_nonzero_only=True)
            made += [out.tobytes(), facts.tobytes(), smoothed.tobytes(), repr(sums).encode()]
        return b"".join(made)

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
    assert re.fullmatch(
        rf"{library} cannot be used \(.*\); build it for this machine: {build_loops.COMMAND}", why_not()
    )
    header = bytearray(LIBRARY.read_bytes())
    header[18] ^= 0xFF  # the processor of an ELF file
    library.write_bytes(header)
    assert f"{library} cannot be used" in why_not()
    # Last, as a library that was loaded must not change.
    library.write_bytes(LIBRARY.read_bytes().replace(b"loops_stamp", b"other_stamp"))
    assert re.fullmatch(rf"{library} cannot be used \(.*loops_stamp.*\); build it for .*", why_not())
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
    assert not any(tmp_path.iterdir())


def test_builds_side_by_side_leave_one_whole_library(monkeypatch, tmp_path):
    compiler, place = tmp_path / "a compiler", tmp_path / "place"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && echo whole > "$2"; shift; done; exit 0\n')
    compiler.chmod(0o755)
    place.mkdir()
    monkeypatch.setenv("CC", f"'{compiler}' -quick")
    monkeypatch.setattr(build_loops, "LIBRARY", place / "loops.so")
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: build_loops.build().read_text(), range(3)))
    assert made == ["whole\n"] * 3
    assert [path.name for path in place.iterdir()] == ["loops.so"]


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build_loops, "LIBRARY", tmp_path / "none" / "loops.so")
    with pytest.raises(build_loops.BuildError, match=f"{tmp_path}/none cannot be written .*; install into a folder"):
        build_loops.build()


def test_without_loops_a_warning_says_once_what_that_costs_and_cures_it(monkeypatch):
    monkeypatch.setattr(native, "why_not", lambda: "loops.so does not exist; build it with a C compiler: COMMAND")
    native.has_loops.cache_clear()
    with pytest.warns(
        UserWarning, match=r"loops are missing: loops.so does not exist, .*slower; build it with .*COMMAND"
    ):
        assert not native.has_loops()
    with warnings.catch_warnings(action="error"):
        assert not native.has_loops()
    native.has_loops.cache_clear()


@pytest.mark.parametrize(
    ("system", "symbols", "named"),
    [
        ("linux-x86_64", b"GLIBC_2.2.5 GLIBC_2.27", "manylinux_2_27_x86_64"),
        ("linux-aarch64", b"GLIBC_2.17", "manylinux_2_17_aarch64"),
        ("linux-x86_64", b"", "linux_x86_64"),  # musl
        ("macosx-11.0-universal2", b"", f"macosx_11_0_{platform.machine()}"),
    ],
)
def test_a_wheel_is_named_after_the_oldest_system_that_can_load_its_library(
    monkeypatch, tmp_path, system, symbols, named
):
    (tmp_path / "loops.so").write_bytes(symbols)
    monkeypatch.setattr(build_loops, "LIBRARY", tmp_path / "loops.so")
    monkeypatch.setattr("sysconfig.get_platform", lambda: system)
    assert build_loops.platform_tag() == named


def test_the_build_needs_no_package_of_ours():
    # As the hook of the wheel and the doctor run it.
    by_path = runpy.run_path(build_loops.__file__)
    assert by_path["stamp"]() == build_loops.stamp()
    assert by_path["LIBRARY"] == LIBRARY == Path(native.__file__).parent / "loops.so"


def test_freed_memory_is_kept_where_the_c_library_can(monkeypatch):
    asked = []
    options = SimpleNamespace(mallopt=lambda *option: asked.append(option) or 1)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda name: options)
    assert native.keep_freed_memory()
    assert asked == [(-3, 2**25), (-1, 2**31 - 1)]
    monkeypatch.setattr(native.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not native.keep_freed_memory()
