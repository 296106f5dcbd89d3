"""Streamline files: what is read and written, by nibabel and trx-python, and what is said of bad ones."""

import gzip
import json
import random
import shlex
import subprocess
import zipfile

import nibabel as nib
import numpy as np
import pytest

from shared.damage import rotten
from shared.examples import examples
from voxelocity.data.decode import header
from voxelocity_lab.recipes.tractography.files import read_tracts, tract_files
from voxelocity_lab.recipes.tractography.write import Space, write_tracts
from voxelocity_observe.core.errors import InputError, ScanError

LINES = np.random.default_rng(3).random((7, 5, 3)).astype(np.float32) * 20.0 - 10.0
SPACE = Space(affine=((-2, 0, 0, 30), (0, 2, 0, -30), (0, 0, 2, -20), (0, 0, 0, 1)), shape=(30, 30, 20))


def write(path, lines=LINES):
    return write_tracts(path, iter([(lines[:3], "CST/left"), (lines[3:], "UF")]), space=SPACE)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "t1.nii.gz"
    nib.save(nib.Nifti1Image(np.ones(SPACE.shape, np.float32), np.array(SPACE.affine)), path)
    return path


@pytest.mark.parametrize("ending", ["trk", "tck", "trx"])
def test_what_is_written_is_read_in_the_same_place(ending, tmp_path, image):
    path = tmp_path / f"lines.{ending}"
    assert write(path) == len(LINES)
    found = read_tracts([path], image=image)
    assert found.points == pytest.approx(LINES.reshape(-1, 3), abs=1e-4)
    assert np.array_equal(found.offsets, np.arange(8) * 5)
    assert found.names == (("CST_left", "UF") if ending == "trx" else ("lines",))
    assert np.bincount(found.bundle).tolist() == ([3, 4] if ending == "trx" else [7])


def test_a_trk_of_ours_has_the_space_of_its_image(tmp_path):
    write(tmp_path / "lines.trk")
    header = nib.streamlines.load(tmp_path / "lines.trk").header
    assert np.array_equal(header["voxel_to_rasmm"], np.array(SPACE.affine))
    assert tuple(header["dimensions"]) == SPACE.shape
    assert header["voxel_order"] == b"LAS"


def test_trx_python_reads_what_we_write_and_we_what_it_writes(tmp_path):
    trx = pytest.importorskip("trx.trx_file_memmap")
    write(tmp_path / "ours.trx")
    theirs = trx.load(str(tmp_path / "ours.trx"))
    assert np.array_equal(theirs.streamlines._data, LINES.reshape(-1, 3))
    assert {name: list(group) for name, group in theirs.groups.items()} == {"CST_left": [0, 1, 2], "UF": [3, 4, 5, 6]}
    trx.save(theirs, str(tmp_path / "theirs.trx"))
    theirs.close()
    ours, again = read_tracts([tmp_path / "ours.trx"]), read_tracts([tmp_path / "theirs.trx"])
    assert np.array_equal(ours.points, again.points)
    assert np.array_equal(ours.bundle, again.bundle)


def changed(path, member, change, *, name=None):
    """The TRX file with the bytes of a member changed, and its name where one is given."""
    with zipfile.ZipFile(path) as archive:
        members = {entry: archive.read(entry) for entry in archive.namelist()}
    members[name or member] = change(members[member] if name and name != member else members.pop(member))
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in members.items():
            archive.writestr(entry, content)
    return path


def shifted(content):
    return (np.frombuffer(content, "<u8") - np.uint64(5)).tobytes()


def of(*numbers, dtype):
    return lambda content: np.array(numbers, dtype).tobytes()


@pytest.mark.parametrize(
    ("member", "name", "change", "words"),
    [
        ("offsets.uint64", None, shifted, "offsets for 35 and 7"),
        ("offsets.uint64", "offsets.int64", of(-5, *range(5, 40, 5), dtype="<i8"), "two members hold offsets"),
        ("groups/UF.uint32", None, of(3, 7, dtype="<u4"), "the group UF names streamline 7 of 7"),
        ("groups/UF.uint32", "groups/VF.int32", of(-1, dtype="<i4"), "VF names streamline -1 of 7"),
        ("positions.3.float32", "positions.4.float32", lambda content: content, "two members hold positions"),
    ],
)
def test_trx_files_whose_numbers_point_elsewhere_are_refused(tmp_path, member, name, change, words):
    path = tmp_path / "lines.trx"
    write(path)
    changed(path, member, change, name=name)
    with pytest.raises(ScanError, match=rf"lines\.trx cannot be read \(ValueError: .*{words}"):
        read_tracts([path])


def test_offsets_that_begin_below_zero_are_refused(tmp_path):
    path = tmp_path / "lines.trx"
    write(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if not name.startswith("offsets")}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("offsets.int64", np.array([-5, *range(5, 40, 5)]).tobytes())
    with pytest.raises(ScanError, match="8 offsets for 35 and 7 in its header"):
        read_tracts([path])


def test_a_small_archive_with_a_large_member_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "lines.trx"
    write(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("groups/all.uint32", bytes(1 << 20))
    monkeypatch.setattr(header, "_LARGE_BYTES", 1000)
    monkeypatch.setattr(header, "available_memory_bytes", lambda: 99_999)
    with pytest.raises(ScanError, match=r"lines\.trx.* GB of memory"):
        read_tracts([path])


def test_an_interrupted_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "lines.trx"
    write(path)
    before = path.read_bytes()

    def ends():
        yield LINES, "UF"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tracts(path, ends(), space=SPACE)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["lines.trx"]


def test_streamlines_that_cannot_be_used_are_left_out_and_counted(tmp_path):
    path = tmp_path / "odd.tck"
    lines = [LINES[0], LINES[1, :1], np.where(np.arange(5)[:, None] == 2, np.inf, LINES[2]), LINES[3]]
    with path.open("wb") as file:
        nib.streamlines.TckFile(nib.streamlines.Tractogram(lines[:2] + lines[3:], affine_to_rasmm=np.eye(4))).save(file)
    found = read_tracts([path])
    assert len(found) == 2
    assert "1 of 3 streamlines" in found.left_out
    assert "odd.tck" in found.left_out
    np.savez(tmp_path / "nan.npz", points=np.stack([LINES[0], lines[2]]))
    found = read_tracts([tmp_path / "nan.npz"])
    assert len(found) == 1
    assert "number 1" in found.left_out


def test_bad_files_are_named_with_the_cure(tmp_path, image):
    np.savez(tmp_path / "none.npz", points=np.full((1, 5, 3), np.nan))
    np.savez(tmp_path / "other.npz", shapes=LINES)
    np.savez(tmp_path / "flat.npz", points=LINES[0])
    np.savez(tmp_path / "far.npz", points=LINES + 500.0)
    np.savez(tmp_path / "names.npz", points=LINES, bundle=np.full(7, 4), names=np.array(["a"]))
    (tmp_path / "cut.trk").write_bytes(b"TRACK" + bytes(100))
    write(tmp_path / "whole.trx")
    with zipfile.ZipFile(tmp_path / "whole.trx") as whole, zipfile.ZipFile(tmp_path / "lies.trx", "w") as lies:
        for name in whole.namelist():
            content = whole.read(name)
            if name == "header.json":
                content = json.dumps({**json.loads(content), "NB_VERTICES": 3}).encode()
            lies.writestr(name, content)
    for name, words in {
        "none.npz": "no streamline of two or more finite points; leave it out",
        "other.npz": "arrays shapes, but neither points",
        "flat.npz": r"shape \(5, 3\)",
        "far.npz": r"100 % of the points of .* lie outside the image .*register",
        "names.npz": "bundle 4, but 1 names",
        "cut.trk": "cannot be read .* repair or replace",
        "lies.trx": "35 points and 8 offsets for 3 and 7",
    }.items():
        with pytest.raises(ScanError, match=words) as caught:
            read_tracts([tmp_path / name], image=image)
        assert name in str(caught.value)
    with pytest.raises(InputError, match=r"image.nii is not a \.trk"):
        read_tracts([tmp_path / "image.nii"])


def test_a_trk_without_a_place_in_space_is_refused(tmp_path):
    path = tmp_path / "old.trk"
    write(path)
    content = bytearray(path.read_bytes())
    content[440:504] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(ScanError, match="no voxel-to-RAS matrix"):
        read_tracts([path])


def test_a_folder_is_its_one_array_or_its_streamline_files(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        tract_files(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no \.trk"):
        tract_files(tmp_path)
    write(tmp_path / "a.trk")
    write(tmp_path / "b.tck")
    # As archives from a Mac leave them.
    for name in ("._a.trk", "._c.npz"):
        (tmp_path / name).write_bytes(b"Mac OS X")
    assert [path.name for path in tract_files(tmp_path)] == ["a.trk", "b.tck"]
    np.savez(tmp_path / "c.npz", points=LINES)
    assert [path.name for path in tract_files(tmp_path)] == ["c.npz"]
    np.savez(tmp_path / "d.npz", points=LINES)
    with pytest.raises(InputError, match=r"2 \.npz files"):
        tract_files(tmp_path)


def test_packed_streamlines_are_those_in_the_file(tmp_path):
    for ending in ("trk", "tck"):
        write(tmp_path / f"a b.{ending}")
        plain = read_tracts([tmp_path / f"a b.{ending}"])
        packed = tmp_path / f"a b.{ending}.gz"
        packed.write_bytes(gzip.compress((tmp_path / f"a b.{ending}").read_bytes()))
        (tmp_path / f"a b.{ending}").unlink()
        assert tract_files(tmp_path) == [packed]
        found = read_tracts([packed])
        assert np.array_equal(found.points, plain.points)
        assert found.names == ("a b",)
        packed.write_bytes(packed.read_bytes()[:-20])
        with pytest.raises(ScanError, match="the file is truncated: its packed content ends"):
            read_tracts([packed])
        packed.unlink()


def test_packed_archives_are_read_after_the_command_that_is_proposed(tmp_path):
    write(tmp_path / "a b.trx")
    packed = tmp_path / "a b.trx.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a b.trx").read_bytes()))
    (tmp_path / "a b.trx").unlink()
    with pytest.raises(
        InputError, match=r"holds no \.trk, .*it holds 1 in other forms; unpack it: gunzip -k "
    ) as caught:
        tract_files(tmp_path)
    with pytest.raises(InputError, match=r"gunzip -k "):
        read_tracts([packed])
    subprocess.run(shlex.split(str(caught.value).partition("unpack it: ")[2]), check=True)
    assert len(read_tracts(tract_files(tmp_path))) > 0
    (tmp_path / "vtp").mkdir()
    (tmp_path / "vtp" / "a.vtp").touch()
    with pytest.raises(InputError, match=r"write it as \.vtk in 3D Slicer.*load_polydata\('.*a\.vtp'\), '.*a\.vtk'\)"):
        tract_files(tmp_path / "vtp")


@pytest.mark.data
def test_real_files_lie_in_their_images(real_data):
    hcp, person = real_data / "tracts_hcp1065", real_data / "tracts_stanford_hardi"
    atlas = read_tracts(tract_files(hcp), image=hcp / "icbm152_t1_2mm.nii.gz")
    assert (len(atlas), len(atlas.names)) == (10_403, 106)
    assert (
        atlas.points[np.repeat(atlas.bundle == atlas.names.index("Association_UncinateFasciculusL"), 32), 0].max() < 0
    )
    trk, tck = (read_tracts([hcp / "bundles" / f"UF_L.{ending}"]) for ending in ("trk", "tck"))
    assert trk.points == pytest.approx(tck.points, abs=1e-3)
    arcuate = read_tracts([person / "afq_arcuate.trx"], image=person / "b0_2mm.nii.gz")
    assert np.bincount(arcuate.bundle).tolist() == [486, 22]
    with pytest.raises(ScanError, match="lie outside the image"):
        read_tracts([person / "afq_arcuate.trx"], image=real_data / "dwi_small" / "small_101D.nii.gz")


@pytest.mark.data
def test_odd_real_files_are_read_or_refused_with_a_reason(real_data):
    odd = real_data / "dwi_small"
    assert len(read_tracts([odd / "tiny_dpv.trx"])) == 2
    assert len(read_tracts([odd / "tract.SLF1_R.tck"])) == 13
    with pytest.raises(ScanError, match=r"old_spec_dps.trx cannot be read .*460 offsets"):
        read_tracts([odd / "old_spec_dps.trx"])
    thalamic = read_tracts([odd / "TR_S_R.tt.gz"])
    # The right one.
    assert thalamic.points[:, 0].min() > -5.0
    assert "tract.FAT_R.vtk does not say whether" in read_tracts([odd / "tract.FAT_R.vtk"]).left_out


def test_bundles_keep_apart_whose_names_differ_in_signs_that_members_cannot_have(tmp_path):
    made = [(LINES[:1], "CST left"), (LINES[1:3], "CST_left_2"), (LINES[3:], "CST/left")]
    write_tracts(tmp_path / "lines.trx", iter(made), space=SPACE)
    found = read_tracts([tmp_path / "lines.trx"])
    counts = dict(zip(found.names, np.bincount(found.bundle).tolist(), strict=True))
    assert counts == {"CST_left": 1, "CST_left_2": 2, "CST_left_3": 4}


def test_rotten_trx_files_are_the_same_or_refused_in_words(tmp_path):
    """Members have checksums, so nothing may change without a word; names and times in the archive have none."""
    path, numbers = tmp_path / "lines.trx", random.Random("trx")
    write(path)
    whole, expected = path.read_bytes(), read_tracts([path])
    for trial in range(examples(400)):
        path.write_bytes(rotten(numbers, whole))
        found = tracts_or_refusal(path)
        assert found is None or np.array_equal(found.points, expected.points), f"trial {trial} changed points silently"


def test_crafted_trx_files_are_read_or_refused_in_words(tmp_path):
    path, numbers = tmp_path / "lines.trx", random.Random("crafted")
    write(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    for _ in range(examples(400)):
        path.write_bytes(whole)
        member = numbers.choice(names)
        name = numbers.choice(
            [None, None, None, member.replace("32", "64"), member.replace("3", "x"), f"{member}.int8"]
        )
        changed(
            path, member, lambda content: numbers.choice([rotten(numbers, content), numbers.randbytes(40)]), name=name
        )
        found = tracts_or_refusal(path)
        assert found is None or (found.offsets[0] == 0 and found.offsets[-1] == len(found.points))


def tracts_or_refusal(path):
    """The streamlines, or None after an error of ours; any other is raised."""
    try:
        return read_tracts([path])
    except InputError as error:
        refusal = str(error)
    assert 0 < len(refusal) < 1500
    return None


def test_numbers_of_bundles_may_be_of_any_size(tmp_path):
    np.savez(tmp_path / "a.npz", points=LINES[:3], bundle=np.array([2_000_000_000, 7, 7]))
    found = read_tracts([tmp_path / "a.npz"])
    assert (found.names, found.bundle.tolist()) == (("bundle 7", "bundle 2000000000"), [1, 0, 0])
