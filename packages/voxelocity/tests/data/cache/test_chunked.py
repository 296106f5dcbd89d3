import sys
import threading

import numpy as np
import pytest

from voxelocity.data.cache import chunked
from voxelocity.data.cache.chunked import UndecodableError, decode, encode
from voxelocity_observe.core.errors import CacheError


def voxels(shape=(1, 70, 65, 33), dtype=np.int16):
    return np.random.default_rng(0).integers(0, 50, shape).astype(dtype)


def test_encoded_bytes_are_a_blosc2_array_that_the_python_package_reads():
    import blosc2

    array = voxels()
    read = blosc2.ndarray_from_cframe(bytes(encode(array)), copy=True)
    assert (read.dtype, read.chunks, read.blocks) == (array.dtype, (1, 64, 64, 33), (1, 32, 32, 32))
    np.testing.assert_array_equal(read[:], array)


def test_smooth_voxels_take_less_than_half():
    x, y, z = np.ogrid[:64, :64, :64]
    assert len(encode((x * y + z).astype(np.int16))) < 0.5 * 2 * 64**3


def test_a_part_of_an_encoding_stays_when_the_whole_is_dropped():
    whole = encode(voxels())
    wanted, part = bytes(whole)[10:20], whole[10:20]
    del whole
    assert bytes(part) == wanted


def test_bytes_that_are_no_array_and_a_dtype_narrower_than_the_stored_one_are_errors():
    with pytest.raises(UndecodableError, match="64 bytes are not a Blosc2 array"):
        decode(memoryview(bytes(64)), [0], [1], "int16")
    with pytest.raises(UndecodableError, match="do not decode"):
        decode(encode(voxels()), [0, 0, 0, 0], [1, 70, 65, 33], "uint8")


def test_mangled_bytes_end_in_an_error_or_in_other_voxels_never_worse():
    good, rng = bytes(encode(voxels())), np.random.default_rng(0)
    ends = []
    for _ in range(300):
        mangled = bytearray(good)
        mangled[int(rng.choice([rng.integers(200), len(good) - 1 - rng.integers(200)]))] ^= int(rng.integers(1, 256))
        try:
            ends.append(decode(memoryview(mangled), [0, 3, 60, 1], [1, 69, 65, 33], "int16").shape)
        except UndecodableError:
            ends.append("found")
    assert set(ends) == {"found", (1, 66, 5, 32)}


def test_other_threads_run_while_one_decodes(monkeypatch):
    content = encode(voxels((1, 256, 256, 128)))
    decode(content, [0] * 4, [1, 1, 1, 1], "int16")
    # A switch by force would take longer than the whole test, so the counter runs only where the GIL is let go.
    interval = sys.getswitchinterval()
    inside, counted = threading.Event(), threading.Event()

    def count():
        inside.wait()
        counted.set()

    thread = threading.Thread(target=count)
    thread.start()
    real = chunked._library().b2nd_get_slice_cbuffer

    class Watched:
        def __getattr__(self, name):
            return getattr(library, name)

        def b2nd_get_slice_cbuffer(self, *arguments):
            inside.set()
            assert not counted.is_set()
            code = real(*arguments)
            seen.append(counted.is_set())
            return code

    library, seen = chunked._library(), []
    monkeypatch.setattr(chunked, "_library", Watched)
    sys.setswitchinterval(60)
    try:
        decode(content, [0] * 4, [1, 256, 256, 128], "int16")
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert seen == [True]


@pytest.mark.parametrize("version", ["2.18.9", "4.0.0", "of tomorrow"])
def test_a_version_of_the_library_that_was_not_tried_is_left_alone_and_its_python_package_does_the_work(
    monkeypatch, tmp_path, version
):
    class Settable:
        def __call__(self):
            return version.encode()

    class Library:
        blosc2_get_version_string = Settable()

    array = voxels()
    known = bytes(encode(array))
    with monkeypatch.context() as patched:
        patched.setattr(chunked.ctypes, "CDLL", lambda _: Library())
        with pytest.warns(UserWarning, match=rf"Blosc2 is {version}, and .*2\.19 .*4\.0.*data\.cache\.format to raw"):
            assert chunked._library.__wrapped__() is None
    monkeypatch.setattr(chunked, "_library", lambda: None)
    content = encode(array)
    assert bytes(content) == known
    (tmp_path / "entry").write_bytes(b"head" + content)
    for box in (
        decode(content, [0, 3, 60, 1], [1, 69, 65, 33], "int16"),
        chunked.decode_file(tmp_path / "entry", 4, [0, 3, 60, 1], [1, 69, 65, 33], "int16"),
    ):
        np.testing.assert_array_equal(box, array[:, 3:69, 60:65, 1:33])
    with pytest.raises(UndecodableError, match="do not decode"):
        decode(content, [0] * 4, [1, 70, 65, 33], "uint8")
    with pytest.raises(UndecodableError, match="do not decode"):
        decode(memoryview(bytes(64)), [0] * 4, [1] * 4, "int16")


def test_missing_library_is_named_with_its_cure(monkeypatch):
    monkeypatch.setattr(chunked.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CacheError, match=r"Blosc2 library is not installed; pip install blosc2 .*data\.cache\.format"):
        chunked._library_path()


def test_library_of_the_system_is_taken_where_the_package_brings_none(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(chunked.importlib.util, "find_spec", lambda _: Spec)
    monkeypatch.setattr(chunked.ctypes.util, "find_library", lambda name: f"lib{name}.so.9")
    assert chunked._library_path() == "libblosc2.so.9"
