"""Lossless JPEG: every predictor, shift and restart, and what SimpleITK compresses, voxel by voxel."""

from __future__ import annotations

import struct
from unittest import mock

import numpy as np
import pytest

from shared.dicom_series import write_enhanced, write_series
from voxelocity.core.native import has_loops
from voxelocity.data.decode import read_scan
from voxelocity.data.decode.dicom import lossless_jpeg
from voxelocity.data.decode.dicom.lossless_jpeg import _PREDICTORS, SYNTAXES, decode_lossless_jpeg
from voxelocity_observe.core.errors import ScanError

pytest.importorskip("pydicom")


def segment(kind, content):
    return bytes([0xFF, kind]) + struct.pack(">H", len(content) + 2) + content


def encode(values, *, predictor=1, point=0, rows_between_restarts=0, precision=16):
    """A JPEG of values (rows, columns) uint16, with one code of five bits for each category."""
    rows, columns = values.shape
    shifted = (values.astype(int) >> point).tolist()
    bits, parts, is_begin = "", [], True
    for i in range(rows):
        if rows_between_restarts and i and i % rows_between_restarts == 0:
            parts, bits, is_begin = [*parts, bits], "", True
        for j in range(columns):
            left = shifted[i][j - 1] if j else 0
            above, corner = (shifted[i - 1][j], shifted[i - 1][j - 1]) if i else (0, 0)
            if is_begin:
                guess = left if j else 1 << (precision - point - 1)
            else:
                guess = _PREDICTORS[predictor](left, above, corner) if j else above
            step = ((shifted[i][j] - guess + 32767) & 0xFFFF) - 32767
            category = abs(step).bit_length()
            bits += f"{category:05b}"
            if 0 < category < 16:
                bits += f"{step if step > 0 else step + (1 << category) - 1:0{category}b}"
        is_begin = False
    coded = b""
    for number, part in enumerate([*parts, bits]):
        padded = part + "1" * (-len(part) % 8)
        content = int(padded, 2).to_bytes(len(padded) // 8, "big").replace(b"\xff", b"\xff\x00")
        coded += (bytes([0xFF, 0xD0 + (number - 1) % 8]) if number else b"") + content
    table = bytes([0, 0, 0, 0, 0, 17, *[0] * 11]) + bytes(range(17))
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xC4, table),
            segment(0xDD, struct.pack(">H", rows_between_restarts * columns)),
            segment(0xC3, struct.pack(">BHHB3B", precision, rows, columns, 1, 1, 0x11, 0)),
            segment(0xDA, bytes([1, 1, 0, predictor, 0, point])),
            coded,
            b"\xff\xd9",
        ]
    )


@pytest.fixture(params=["loop", "reference"])
def way(request):
    if request.param == "loop" and not has_loops():
        pytest.skip("no loops")
    with mock.patch.object(lossless_jpeg, "has_loops", return_value=request.param == "loop"):
        yield request.param


@pytest.mark.parametrize("predictor", range(1, 8))
@pytest.mark.parametrize(("point", "restarts"), [(0, 0), (3, 0), (0, 1), (2, 3)])
def test_all_predictors_shifts_and_restarts_give_the_values_back(way, predictor, point, restarts):
    values = np.random.default_rng(predictor).integers(0, 1 << 16, (7, 9)).astype(np.uint16) >> point << point
    values[0, :3] = 0, 0xFFFF >> point << point, 0
    stream = encode(values, predictor=predictor, point=point, rows_between_restarts=restarts)
    assert np.array_equal(decode_lossless_jpeg(stream, (7, 9), where=""), values)


def test_what_simpleitk_compresses_is_read_as_simpleitk_reads_it(tmp_path, way):
    sitk = pytest.importorskip("SimpleITK")
    pixels = np.random.default_rng(0).normal(0, 300, (40, 50)).astype(np.int16)
    writer = sitk.ImageFileWriter()
    writer.SetImageIO("GDCMImageIO")
    writer.UseCompressionOn()
    writer.SetCompressor("JPEG")
    writer.SetFileName(str(tmp_path / "a.dcm"))
    writer.Execute(sitk.GetImageFromArray(pixels[None]))
    import pydicom
    from pydicom.encaps import get_frame

    dataset = pydicom.dcmread(tmp_path / "a.dcm")
    assert dataset.file_meta.TransferSyntaxUID in SYNTAXES
    stream = get_frame(dataset.PixelData, 0, number_of_frames=1)
    assert np.array_equal(decode_lossless_jpeg(stream, (40, 50), where="").view(np.int16), pixels)


def compress(dataset, voxels_zyx):
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID

    dataset.file_meta.TransferSyntaxUID = UID(SYNTAXES[1])
    dataset.PixelData = encapsulate([encode(plane.view(np.uint16) & 0xFFF, precision=12) for plane in voxels_zyx])
    dataset["PixelData"].is_undefined_length = True


def test_a_compressed_series_and_compressed_frames_are_the_plain_ones(tmp_path):
    voxels_zyx = np.random.default_rng(0).integers(-900, 900, (4, 6, 7)).astype(np.int16)
    write_series(tmp_path / "plain", voxels_zyx)
    write_series(tmp_path / "packed", voxels_zyx, edit=lambda index, dataset: compress(dataset, voxels_zyx[[index]]))
    file = write_enhanced(tmp_path / "all.dcm", voxels_zyx, edit=lambda dataset: compress(dataset, voxels_zyx))
    expected, _ = read_scan(tmp_path / "plain")
    for path in (tmp_path / "packed", file):
        assert np.array_equal(read_scan(path)[0], expected)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda stream: stream[:-40], "cannot be read"),
        (lambda stream: stream[:30], "truncated"),
        (lambda stream: stream[:2], "cannot be read"),
        (lambda stream: b"", "cannot be read"),
        (lambda stream: stream.replace(b"\xff\xc3", b"\xff\xc0"), "another kind of JPEG"),
        (lambda stream: stream.replace(b"\xff\xc3", b"\xff\xe3"), "no size before the values"),
        (lambda stream: stream.replace(b"\x10\x00\x07\x00\x09", b"\x10\x00\x08\x00\x09"), "8 x 9 values"),
    ],
)
def test_damage_is_named(way, damage, text):
    stream = encode(np.random.default_rng(0).integers(0, 4096, (7, 9)).astype(np.uint16))
    with pytest.raises(ScanError, match=f"^here: .*{text}"):
        decode_lossless_jpeg(damage(stream), (7, 9), where="here:")


def test_damaged_streams_end_no_process_and_both_ways_agree():
    if not has_loops():
        pytest.skip("no loops")
    rng = np.random.default_rng(0)
    stream = encode(rng.integers(0, 4096, (6, 5)).astype(np.uint16), rows_between_restarts=2)
    for _ in range(300):
        spoiled = bytearray(stream)
        for place in rng.integers(0, len(stream), rng.integers(1, 4)):
            spoiled[place] = rng.integers(256)
        found = []
        for is_loop in (True, False):
            with mock.patch.object(lossless_jpeg, "has_loops", return_value=is_loop):
                try:
                    found.append(decode_lossless_jpeg(bytes(spoiled), (6, 5), where="").tolist())
                except ScanError:
                    found.append(None)
        assert found[0] == found[1]
