"""NRRD and MHA give what the NIfTI file of the same scan gives; every file of a scan counts for the cache."""

from __future__ import annotations

import bz2
import gzip
import os
import subprocess
import sys
import zlib

import nibabel as nib
import numpy as np
import pytest
import SimpleITK

from shared.dicom_series import write_series
from shared.examples import examples
from voxelocity.core import staging
from voxelocity.core.volume import Grid, VolumeRef
from voxelocity.data.decode import read_case, read_header, read_scan, source_files, write_scan
from voxelocity_observe.core.errors import ScanError

OBLIQUE = np.array([[0.9, -0.1, 0.2, -10.0], [0.1, 1.1, 0.1, 5.0], [-0.2, 0.3, 2.0, 7.0], [0, 0, 0, 1.0]])
ENDINGS = (".nrrd", ".nhdr", ".mha", ".mhd")


def itk_image(path):
    """Four planes of five rows of six, whose affine is not a diagonal."""
    image = SimpleITK.GetImageFromArray(np.arange(120, dtype=np.int16).reshape(4, 5, 6))
    image.SetSpacing((0.5, 0.75, 3.0))
    image.SetOrigin((10.0, -20.0, 30.0))
    image.SetDirection((0, 1, 0, -1, 0, 0, 0, 0, 1))
    SimpleITK.WriteImage(image, str(path), True)
    return image


@pytest.mark.data
def test_real_nrrd_lies_on_the_series_that_it_was_drawn_on(real_data):
    case = real_data / "dicom_ct_seg"
    ref = VolumeRef(case_id="a", images=(case / "ct",), label=case / "nrrd" / "liver_spine_seg.nrrd")
    volume = read_case(ref, label_values=(0, 1, 2))
    assert np.unique(volume.label).tolist() == [0, 1, 2]
    # The liver is brighter than water, and bone is brighter than the liver.
    liver, spine = (float(np.median(volume.image[0][volume.label == index])) for index in (1, 2))
    assert 30 < liver < 200 < spine


@pytest.mark.parametrize("name", ["v.nrrd", "v.mha"])
def test_components_of_voxels_and_a_fourth_axis_are_channels(tmp_path, name):
    array = np.arange(2 * 60, dtype=np.float32).reshape(3, 4, 5, 2)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array, isVector=True), str(tmp_path / name))
    voxels, _ = read_scan(tmp_path / name)
    assert np.array_equal(voxels, array.transpose(3, 2, 1, 0))
    array = np.arange(2 * 60, dtype=np.uint8).reshape(2, 3, 4, 5)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array, isVector=False), str(tmp_path / f"t{name}"))
    header, (voxels, _) = read_header(tmp_path / f"t{name}"), read_scan(tmp_path / f"t{name}")
    assert header.num_channels == 2
    assert np.array_equal(voxels, array.transpose(0, 3, 2, 1))


def test_an_nrrd_file_without_a_space_is_not_placed(tmp_path):
    path = tmp_path / "a.nrrd"
    path.write_bytes(b"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 2 2 2\nencoding: raw\n\n12345678")
    assert read_header(path).placement.form == "none"


def test_voxel_types_that_are_no_numbers_are_refused(tmp_path):
    image = SimpleITK.Image([2, 2, 2], SimpleITK.sitkComplexFloat32)
    SimpleITK.WriteImage(image, str(tmp_path / "a.nrrd"))
    with pytest.raises(ScanError, match=r"a\.nrrd: the voxel type is complex of 32-bit float"):
        read_header(tmp_path / "a.nrrd")


def test_every_file_of_a_scan_is_named(tmp_path):
    for ending in ENDINGS:
        itk_image(tmp_path / f"a{ending}")
    assert source_files(tmp_path / "a.mha") == (tmp_path / "a.mha",)
    assert source_files(tmp_path / "a.mhd") == (tmp_path / "a.mhd", tmp_path / "a.zraw")
    assert source_files(tmp_path / "a.nhdr") == (tmp_path / "a.nhdr", tmp_path / "a.raw.gz")
    files = write_series(tmp_path / "ct", np.zeros((3, 4, 5), np.int16))
    (tmp_path / "ct" / ".DS_Store").touch()
    assert source_files(tmp_path / "ct") == source_files(files[0]) == tuple(sorted(files))
    # By name alone: nothing is opened.
    assert source_files(tmp_path / "gone.nii.gz") == (tmp_path / "gone.nii.gz",)


def test_a_detached_header_without_its_voxels_is_refused(tmp_path):
    itk_image(tmp_path / "a.mhd")
    (tmp_path / "a.zraw").unlink()
    with pytest.raises(ScanError, match=r"a\.mhd: .*'a\.zraw', the file of its voxels, is not there; copy both files"):
        read_header(tmp_path / "a.mhd")
    text = (tmp_path / "a.mhd").read_text().replace("a.zraw", "LIST")
    (tmp_path / "a.mhd").write_text(text)
    with pytest.raises(ScanError, match=r"the voxels are in several files \('LIST'\); save the scan as one"):
        read_header(tmp_path / "a.mhd")


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
@pytest.mark.parametrize("name", ["a=b.raw", "lists.raw", os.fsdecode("Schädel.raw".encode("latin-1"))])
def test_a_detached_header_may_name_any_file(tmp_path, ending, name):
    image = SimpleITK.GetImageFromArray(np.arange(120, dtype=np.int16).reshape(4, 5, 6))
    SimpleITK.WriteImage(image, str(tmp_path / f"a{ending}"))
    (tmp_path / "a.raw").rename(tmp_path / name)
    header = (tmp_path / f"a{ending}").read_bytes().replace(b"a.raw", os.fsencode(name))
    (tmp_path / f"a{ending}").write_bytes(header)
    assert source_files(tmp_path / f"a{ending}") == (tmp_path / f"a{ending}", tmp_path / name)
    assert np.array_equal(read_scan(tmp_path / f"a{ending}")[0][0].T, np.arange(120).reshape(4, 5, 6))


def detached(folder, ending, name, before=""):
    """A header whose voxels are in the file of this name, with these lines before that line."""
    itk_image(folder / f"a{ending}")
    own = source_files(folder / f"a{ending}")[1].name
    lines = (folder / f"a{ending}").read_text().replace(own, name).splitlines(keepends=True)
    where = next(n for n, line in enumerate(lines) if name in line)
    (folder / f"a{ending}").write_text("".join([*lines[:where], before, *lines[where:]]))
    return folder / f"a{ending}"


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
@pytest.mark.parametrize(
    "name", ["../secret.raw", "/proc/self/environ", "sub/../../secret.raw", "{folder}/../secret.raw"]
)
def test_voxels_outside_of_the_folder_of_their_header_are_not_read(tmp_path, ending, name):
    (tmp_path / "scans" / "sub").mkdir(parents=True)
    (tmp_path / "secret.raw").write_bytes(bytes(5000))
    path = detached(tmp_path / "scans", ending, name.format(folder=tmp_path / "scans"))
    with pytest.raises(ScanError, match=rf"a\{ending}: its header names a file outside of its folder"):
        read_header(path)


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
def test_voxels_lie_next_to_what_a_link_to_their_header_leads_to(tmp_path, ending):
    (tmp_path / "store").mkdir()
    itk_image(tmp_path / "store" / f"a{ending}")
    own = source_files(tmp_path / "store" / f"a{ending}")[1]
    before, path = read_scan(tmp_path / "store" / f"a{ending}")[0], tmp_path / f"case_1{ending}"
    path.symlink_to(tmp_path / "store" / f"a{ending}")
    assert np.array_equal(read_scan(path)[0], before)
    assert source_files(path) == (path, own)
    # A folder that is a link changes nothing.
    (tmp_path / "linked").symlink_to(tmp_path / "store")
    assert np.array_equal(read_scan(tmp_path / "linked" / f"a{ending}")[0], before)
    own.unlink()
    with pytest.raises(ScanError, match="is not there; copy both files of the scan into one folder"):
        read_scan(path)


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
@pytest.mark.parametrize("name", ["before.raw", r"C:\data\a.raw", "../data/a.raw"])
def test_voxels_under_another_name_are_found_for_the_user(tmp_path, ending, name):
    path = detached(tmp_path, ending, name)
    for file in tmp_path.iterdir():
        if file != path:
            file.unlink()
    (tmp_path / "a.raw").touch()
    with pytest.raises(ScanError, match=r"'a\.raw' lies next to the header: if it holds the voxels, write that name"):
        read_header(path)


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
def test_voxels_on_a_server_are_brought_here_under_any_name(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(staging, "_stages", {})
    (tmp_path / "content").mkdir()
    (tmp_path / "mirror").mkdir()
    itk_image(tmp_path / "content" / f"a{ending}")
    own = source_files(tmp_path / "content" / f"a{ending}")[1]
    other = own.rename(own.with_name("other.bin"))
    header = tmp_path / "content" / f"a{ending}"
    header.write_text(header.read_text().replace(own.name, other.name))
    before, brought = read_scan(header)[0], []
    for file in (header, other):
        (tmp_path / "mirror" / file.name).touch()

    def bring(path, is_whole):
        brought.append(path.name)
        return tmp_path / "content" / path.name

    staging.register(tmp_path / "mirror", bring)
    assert np.array_equal(read_scan(tmp_path / "mirror" / header.name)[0], before)
    assert {*brought} == {header.name, other.name}


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
def test_voxels_below_the_folder_or_behind_a_link_are_read(tmp_path, ending):
    itk_image(tmp_path / f"a{ending}")
    own = source_files(tmp_path / f"a{ending}")[1]
    before = read_scan(tmp_path / f"a{ending}")[0]
    # As git-annex keeps files.
    (tmp_path / ".git" / "annex" / "objects").mkdir(parents=True)
    real = own.rename(tmp_path / ".git" / "annex" / "objects" / "SHA256-1")
    own.symlink_to(real)
    assert np.array_equal(read_scan(tmp_path / f"a{ending}")[0], before)
    (tmp_path / "sub").mkdir()
    own.rename(tmp_path / "sub" / own.name)
    header = (tmp_path / f"a{ending}").read_text().replace(own.name, f"sub/{own.name}")
    (tmp_path / f"a{ending}").write_text(header)
    assert np.array_equal(read_scan(tmp_path / f"a{ending}")[0], before)


def test_voxels_that_are_a_link_to_a_file_of_the_system_are_not_read(tmp_path):
    path = detached(tmp_path, ".mhd", "own.raw")
    (tmp_path / "own.raw").symlink_to("/proc/self/environ")
    with pytest.raises(ScanError, match="which is a system file"):
        read_header(path)


@pytest.mark.parametrize(
    ("ending", "before"),
    [
        (".nhdr", "# x\r\r\n"),
        (".mhd", "\n"),
        (".mhd", "ELEMENTDATAFILE = LOCAL\n"),
        (".mhd", "elementdatafile = LOCAL\n" + "Comment = x\n" * 7000),
        (".nhdr", "# x\n" * 20_000),
    ],
)
def test_no_line_hides_where_the_voxels_are(tmp_path, ending, before):
    (tmp_path / "scans").mkdir()
    (tmp_path / "secret.raw").write_bytes(bytes(5000))
    path = detached(tmp_path / "scans", ending, "../secret.raw", before)
    with pytest.raises(ScanError, match=r"outside of its folder|more than once|does not end within|truncated"):
        read_scan(path)


def test_a_path_that_is_not_utf8_is_refused_before_simpleitk_ends_the_process(tmp_path):
    itk_image(tmp_path / "a.nrrd")
    path = (tmp_path / "a.nrrd").rename(tmp_path / os.fsdecode("Schädel.nrrd".encode("latin-1")))
    with pytest.raises(ScanError, match=r"del\.nrrd: .* cannot open a path that is not UTF-8; rename it"):
        read_header(path)


def test_reading_one_format_imports_no_library_of_another(tmp_path):
    names = ("a.nii.gz", "a.mgz")
    for name in names:
        write_scan(tmp_path / name, np.zeros((3, 4, 5), np.uint8), Grid.of((3, 4, 5), OBLIQUE))
    program = (
        "import sys; from voxelocity.data.decode import read_scan, source_files; from pathlib import Path\n"
        "for path in map(Path, sys.argv[1:]): read_scan(path), source_files(path)\n"
        # nibabel itself imports pydicom.
        "assert not {'SimpleITK', 'highdicom', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program, *(tmp_path / name for name in names)], check=True)


def test_written_nrrd_is_read_at_its_place_by_simpleitk_and_by_us(tmp_path):
    labels = np.random.default_rng(0).integers(0, 300, (3, 4, 5)).astype(np.uint16)
    write_scan(tmp_path / "a.nrrd", labels, Grid.of(labels.shape, OBLIQUE))
    voxels, grid = read_scan(tmp_path / "a.nrrd")
    assert np.array_equal(voxels[0], labels)
    assert grid.is_close(Grid.of(labels.shape, OBLIQUE), atol_mm=1e-9)
    image = SimpleITK.ReadImage(str(tmp_path / "a.nrrd"))
    assert np.array_equal(SimpleITK.GetArrayFromImage(image), labels.T)
    rows = np.array(nib.affines.apply_affine(OBLIQUE, [0, 0, 0])) * [-1, -1, 1]
    assert image.GetOrigin() == pytest.approx(rows)


def test_channels_may_come_in_different_formats(tmp_path):
    itk_image(tmp_path / "a_0000.nrrd")
    SimpleITK.WriteImage(itk_image(tmp_path / "b.mha"), str(tmp_path / "a_0001.nii.gz"))
    ref = VolumeRef(case_id="a", images=(tmp_path / "a_0000.nrrd", tmp_path / "a_0001.nii.gz"))
    volume = read_case(ref, label_values=(0,))
    assert np.array_equal(volume.image[0], volume.image[1])


VOXELS = np.random.default_rng(5).integers(-900, 900, (5, 6, 7)).astype(np.int16)
NRRD = "NRRD0004\ntype: int16\ndimension: 3\nsizes: 7 6 5\nendian: little\nencoding: {}\n"
MHA = (
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = True\n"
    "ElementSpacing = 1 1 2\nDimSize = 7 6 5\nElementType = MET_SHORT\n"
)


def packed_scan(folder, kind):
    """A compressed file of `VOXELS` (z, y, x): where its header is, and the file and start of the packed bytes."""
    raw = VOXELS.tobytes()
    packed = gzip.compress(raw) if kind in ("nrrd", "nhdr", "mha.gz") else zlib.compress(raw)
    name = {"mha.gz": "a.mha"}.get(kind, f"a.{kind}")
    header = NRRD.format("gzip") if kind in ("nrrd", "nhdr") else MHA
    if kind in ("nhdr", "mhd"):
        own = {"nhdr": "a.raw.gz", "mhd": "a.zraw"}[kind]
        (folder / own).write_bytes(packed)
        (folder / name).write_text(header + {"nhdr": f"data file: {own}\n", "mhd": f"ElementDataFile = {own}\n"}[kind])
        return folder / name, folder / own, 0
    start = (header + ("\n" if kind == "nrrd" else "ElementDataFile = LOCAL\n")).encode()
    (folder / name).write_bytes(start + packed)
    return folder / name, folder / name, len(start)


PACKED = ("nrrd", "nhdr", "mha", "mha.gz", "mhd")


@pytest.mark.parametrize("kind", PACKED)
def test_packed_voxels_are_read_from_where_the_header_says(tmp_path, kind):
    path, _, _ = packed_scan(tmp_path, kind)
    assert np.array_equal(read_scan(path)[0][0].T, VOXELS)


@pytest.mark.parametrize("kind", PACKED)
def test_every_changed_bit_and_every_cut_of_packed_voxels_is_refused(tmp_path, kind):
    path, file, start = packed_scan(tmp_path, kind)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    # The 10 bytes at the start of gzip hold a time and a system, which no checksum protects.
    first = start + (10 if whole[start:].startswith(b"\x1f\x8b") else 0)
    for place in rng.integers(first, len(whole), examples(60)):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        with pytest.raises(ScanError, match=r"damaged|truncated|do not belong together"):
            read_scan(path)
        file.write_bytes(whole[:place])
        with pytest.raises(ScanError, match=r"damaged|truncated"):
            read_scan(path)
    file.write_bytes(whole[:start] + rng.bytes(len(whole) - start))
    with pytest.raises(ScanError, match="damaged"):
        read_scan(path)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("7 6 4", "are more than 336 bytes, and the header expects 336"),
        ("7 6 6", "are 420 bytes, and the header expects 504"),
        ("7000 6000 5000", r"are [\d,]+ bytes, and the header expects 420,000,000,000"),
    ],
)
@pytest.mark.parametrize("kind", ["nrrd", "mha"])
def test_packed_voxels_of_another_number_than_the_header_says_are_refused(tmp_path, kind, sizes, words):
    path, _, _ = packed_scan(tmp_path, kind)
    path.write_bytes(path.read_bytes().replace(b"7 6 5", sizes.encode(), 1))
    with pytest.raises(ScanError, match=words):
        read_scan(path)


def test_packed_channels_are_the_components_whichever_axis_holds_them(tmp_path):
    channels = np.stack([VOXELS, VOXELS + 1])
    for place, kinds in enumerate(
        ("list domain domain domain", "domain list domain domain", "domain domain domain list")
    ):
        where = (0, 1, 3)[place]
        sizes = [7, 6, 5]
        sizes.insert(where, 2)
        text = NRRD.format("gzip").replace("dimension: 3", "dimension: 4").replace("7 6 5", " ".join(map(str, sizes)))
        stored = np.moveaxis(channels, 0, 3 - where)
        path = tmp_path / f"{place}.nrrd"
        path.write_bytes(f"{text}kinds: {kinds}\n\n".encode() + gzip.compress(np.ascontiguousarray(stored).tobytes()))
        assert np.array_equal(read_scan(path)[0].transpose(0, 3, 2, 1), channels), kinds


@pytest.mark.parametrize("encoding", ["bzip2", "bz2"])
def test_voxels_packed_by_bzip2_are_read_and_verified(tmp_path, encoding):
    packed = bz2.compress(VOXELS.tobytes()[:200]) + bz2.compress(VOXELS.tobytes()[200:])
    path = tmp_path / "a.nrrd"
    path.write_bytes(NRRD.format(encoding).encode() + b"\n" + packed)
    assert np.array_equal(read_scan(path)[0][0].T, VOXELS)
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ScanError, match=r"a\.nrrd: the bzip2 data is damaged"):
        read_scan(path)
    path.write_bytes(content[:-60])
    with pytest.raises(ScanError, match="the file is truncated: the packed voxels end"):
        read_scan(path)


def test_big_endian_packed_voxels_are_read(tmp_path):
    packed = zlib.compress(VOXELS.astype(">i2").tobytes())
    header = MHA.replace("MSB = False", "MSB = True") + "ElementDataFile = LOCAL\n"
    (tmp_path / "a.mha").write_bytes(header.encode() + packed)
    assert np.array_equal(read_scan(tmp_path / "a.mha")[0][0].T, VOXELS)


def test_headers_that_cannot_be_meant_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "a.nrrd"
    path.write_bytes(NRRD.format("lzma").encode() + b"\n" + bytes(420))
    with pytest.raises(ScanError, match="encoded as 'lzma', which is not read; save the file with gzip"):
        read_header(path)
    path.write_bytes(NRRD.format("raw").encode() + b"byte skip: -5\n\n" + VOXELS.tobytes())
    with pytest.raises(ScanError, match=r"byte skip is -5; NRRD knows numbers of bytes, and -1 .* correct the number"):
        read_header(path)
    four = NRRD.format("raw").replace("dimension: 3", "dimension: 4").replace("7 6 5", "1 7 6 5")
    space = "space: left-posterior-superior\nspace directions: none (1,0,0) (0,1,0) (0,0,1)\n\n"
    path.write_bytes((four + space).encode() + bytes(420))
    with pytest.raises(ScanError, match="say in its header which axis holds the channels"):
        read_header(path)
    path = tmp_path / "a.mha"
    for line, words in (
        ("CompressedData = False\n", "compresseddata twice, 'True' and 'False'"),
        ("HeaderSize = -1\n", "HeaderSize is -1 for packed voxels"),
    ):
        path.write_bytes(f"{MHA}{line}ElementDataFile = LOCAL\n".encode() + zlib.compress(VOXELS.tobytes()))
        with pytest.raises(ScanError, match=words):
            read_scan(path)
    path.write_bytes(f"{MHA}ElementDataFile = LOCAL\n".replace("Data = True", "Data = Prue").encode())
    with pytest.raises(ScanError, match="is 'Prue', neither True nor False"):
        read_scan(path)


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
def test_a_file_of_voxels_with_a_name_of_five_thousand_characters_is_refused(tmp_path, ending):
    header = NRRD.format("raw") + "data file: " if ending == ".nhdr" else f"{MHA}ElementDataFile = "
    path = tmp_path / f"a{ending}"
    path.write_text(header + "x" * 5000 + "\n")
    for read in (read_header, source_files):
        with pytest.raises(
            ScanError, match=r"its header names 'x{37}\.\.\.x{38}' as the file .* \(File name too long\)"
        ) as refused:
            read(path)
        assert len(str(refused.value)) < 400


UNITS = [("mm", 1.0), ("m", 1e3), ("um", 1e-3), ("\N{MICRO SIGN}m", 1e-3), ("cm", 10.0), ("micrometer", 1e-3)]


@pytest.mark.filterwarnings("ignore:.*its header gives lengths in:UserWarning")
@pytest.mark.parametrize(("unit", "mm"), UNITS)
def test_units_of_nrrd_are_read(tmp_path, unit, mm):
    path = tmp_path / "a.nrrd"
    space = "space: left-posterior-superior\nspace directions: ({0},0,0) (0,{0},0) (0,0,{1})\nspace origin: ({2},0,0)\n"
    space = space.format(0.5 / mm, 2.0 / mm, 10.0 / mm) + f'space units: "{unit}" "{unit}" "{unit}"\n'
    path.write_bytes((NRRD.format("raw") + space + "\n").encode() + VOXELS.tobytes())
    grid = read_header(path).grid
    assert grid.spacing_mm == pytest.approx((0.5, 0.5, 2.0))
    assert grid.matrix[:3, 3] == pytest.approx((-10.0, 0.0, 0.0))
    axes = f'spacings: {0.5 / mm} {0.5 / mm} {2.0 / mm}\nunits: "{unit}" "{unit}" "{unit}"\n'
    path.write_bytes((NRRD.format("raw") + axes + "\n").encode() + VOXELS.tobytes())
    assert read_header(path).grid.spacing_mm == pytest.approx((0.5, 0.5, 2.0))


def test_units_that_are_converted_or_not_known_are_said_once(tmp_path):
    for unit, words in (
        ("um", r"gives lengths in um \(DistanceUnits\); they are read as 0\.001 mm"),
        ("furlong", "'furlong'"),
    ):
        (tmp_path / unit).mkdir()
        path = tmp_path / unit / "a.mha"
        header = f"DistanceUnits = {unit}\n{MHA}ElementDataFile = LOCAL\n"
        path.write_bytes(header.encode() + zlib.compress(VOXELS.tobytes()))
        with pytest.warns(UserWarning, match=words):
            header = read_header(path)
        assert header.grid.spacing_mm == pytest.approx((1e-3, 1e-3, 2e-3) if unit == "um" else (1, 1, 2))
        read_scan(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"dimension: {'x' * 5000}", r"a line of the header has 5,011 characters \('dimension: x+\.\.\.x+'\), and 480"),
        (f"type:={'x' * 5000}", "a line of the header has 5,006 characters"),
        (f"kinds: {'domain ' * 300}", "a line of the header has"),
        ("x" * 1000, "a line of the header has 1,000 characters"),
    ],
)
def test_lines_of_nrrd_that_would_end_the_process_are_refused(tmp_path, line, words):
    (tmp_path / "a.nrrd").write_bytes(f"{NRRD.format('raw')}{line}\n\n".encode() + VOXELS.tobytes())
    with pytest.raises(ScanError, match=words):
        read_header(tmp_path / "a.nrrd")


def test_long_comments_and_values_of_other_programs_are_read(tmp_path):
    lines = "".join(f"{name}{'x' * 5000}\n" for name in ("# ", "Segment0_Extent:=", "content: "))
    (tmp_path / "a.nrrd").write_bytes(f"{NRRD.format('raw')}{lines}\n".encode() + VOXELS.tobytes())
    assert np.array_equal(read_scan(tmp_path / "a.nrrd")[0][0].T, VOXELS)


@pytest.mark.parametrize("num_axes", ["-1", "100", "4294967296", "3 3", "x"])
def test_numbers_of_axes_of_mha_that_would_end_the_process_are_refused(tmp_path, num_axes):
    header = MHA.replace("NDims = 3", f"NDims = {num_axes}") + "ElementDataFile = LOCAL\n"
    (tmp_path / "a.mha").write_bytes(header.encode() + zlib.compress(VOXELS.tobytes()))
    with pytest.raises(ScanError, match=rf"NDims is '{num_axes}', not a number of axes"):
        read_header(tmp_path / "a.mha")


@pytest.mark.parametrize("num_read", [7, 64, 1 << 22])
def test_gzip_of_several_members_is_read_whatever_the_pieces(tmp_path, monkeypatch, num_read):
    monkeypatch.setattr("voxelocity.data.decode.gunzip._READ_BYTES", num_read)
    raw = VOXELS.tobytes()
    members = b"".join(gzip.compress(raw[start : start + 100]) for start in range(0, len(raw), 100))
    (tmp_path / "a.nrrd").write_bytes(NRRD.format("gzip").encode() + b"\n" + members + bytes(7))
    assert np.array_equal(read_scan(tmp_path / "a.nrrd")[0][0].T, VOXELS)


BEHIND = [(b"x", True), (bytes(4096), False), (bytes(4097), True)]
"""Bytes behind voxels, and whether they are more than the padding of a block."""


@pytest.mark.parametrize(("behind", "is_said"), BEHIND)
@pytest.mark.parametrize("name", ["a.nrrd", "a.mha", "a.nii", "a.nii.gz"])
def test_bytes_behind_the_voxels_are_said_unless_they_are_padding(tmp_path, recwarn, name, behind, is_said):
    image = SimpleITK.GetImageFromArray(VOXELS)
    path = tmp_path / name
    SimpleITK.WriteImage(image, str(path), False)
    content = path.read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(content) + behind) if name.endswith(".gz") else content + behind)
    assert np.array_equal(read_scan(path)[0][0].T, VOXELS)
    words = f"{path}: {len(behind):,} bytes follow the {420 if name in ('a.nrrd', 'a.mha') else 772} that its header"
    assert [words in str(warning.message) for warning in recwarn] == [True] * is_said


@pytest.mark.parametrize("line", ["line skip: 1000000000000", "line skip: -1", "byte skip: 99999999999999999999999"])
def test_lines_and_bytes_to_skip_that_no_file_has_are_refused_at_once(tmp_path, line):
    (tmp_path / "a.nhdr").write_text(f"{NRRD.format('gzip')}{line}\ndata file: a.gz\n")
    (tmp_path / "a.gz").write_bytes(gzip.compress(VOXELS.tobytes()))
    with pytest.raises(ScanError, match=r"line skip is|byte skip is|cannot read the file"):
        read_scan(tmp_path / "a.nhdr")


@pytest.mark.parametrize(
    ("space", "form"),
    [("left-posterior-superior", "patient"), ("RAS", "patient"), ("scanner-xyz", "none"), ("3D-right-handed", "none")],
)
def test_only_a_space_of_the_patient_places_an_nrrd_file(tmp_path, space, form):
    places = f"space: {space}\nspace directions: (1,0,0) (0,1,0) (0,0,2)\nspace origin: (0,0,0)\n\n"
    (tmp_path / "a.nrrd").write_bytes((NRRD.format("raw") + places).encode() + VOXELS.tobytes())
    assert read_header(tmp_path / "a.nrrd").placement.form == form


@pytest.mark.parametrize(("slope", "is_said"), [("2.5", True), ("1", False), ("1.000", False), ("x", True)])
def test_a_scale_of_mha_that_no_program_applies_is_said(tmp_path, recwarn, slope, is_said):
    header = f"{MHA}ElementToIntensityFunctionSlope = {slope}\nElementDataFile = LOCAL\n"
    (tmp_path / "a.mha").write_bytes(header.encode() + zlib.compress(VOXELS.tobytes()))
    assert np.array_equal(read_scan(tmp_path / "a.mha")[0][0].T, VOXELS)
    assert [f"is '{slope}', which is not applied" in str(warning.message) for warning in recwarn] == [True] * is_said


@pytest.mark.parametrize("read", [read_header, source_files])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, read):
    (tmp_path / "a.mhd").write_text(f"{MHA}ElementDataFile = a\0b\n")
    with pytest.raises(ScanError, match=r"names 'a\\x00b' as the file of its voxels, which cannot be looked up"):
        read(tmp_path / "a.mhd")
