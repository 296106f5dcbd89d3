"""VTK and TinyTrack files: the points that were written, in every form of them; and what is said of damaged ones."""

import csv
import gzip
import itertools
import random

import numpy as np
import pytest
import scipy.io
from recipes.tractography.test_files import tracts_or_refusal

from shared.damage import rotten
from shared.examples import examples
from voxelocity_lab.recipes.tractography.files import read_tracts
from voxelocity_observe.core.errors import ScanError

LINES = [
    np.random.default_rng(seed).random((count, 3)).astype(np.float32) * 20.0 for seed, count in enumerate((5, 3, 9))
]
POINTS = np.concatenate(LINES)
OFFSETS = np.cumsum([0, *map(len, LINES)])
MRTRIX = "Data values for Tracks"


def vtk(path, *, is_binary=True, version="3.0", title=MRTRIX, kind="float", order=None, extra=b""):
    """A legacy VTK file; from version 5 on, its cells are offsets and points."""

    def numbers(values, of):
        if not is_binary:
            return " ".join(map(str, np.asarray(values).ravel())).encode() + b"\n"
        return (
            np.asarray(values)
            .astype({"float": ">f4", "double": ">f8", "int": ">i4", "vtktypeint64": ">i8"}[of])
            .tobytes()
            + b"\n"
        )

    members = np.arange(len(POINTS)) if order is None else np.asarray(order)
    points = POINTS[np.argsort(members)]
    text = f"# vtk DataFile Version {version}\n{title}\n{'BINARY' if is_binary else 'ASCII'}\nDATASET POLYDATA\n"
    content = text.encode() + f"POINTS {len(points)} {kind}\n".encode() + numbers(points, kind) + extra
    if version.startswith("5"):
        content += f"LINES {len(OFFSETS)} {len(members)}\nOFFSETS vtktypeint64\n".encode()
        content += numbers(OFFSETS, "vtktypeint64") + b"CONNECTIVITY vtktypeint64\n" + numbers(members, "vtktypeint64")
    else:
        cells = [n for start, stop in itertools.pairwise(OFFSETS) for n in (stop - start, *members[start:stop])]
        content += f"LINES {len(LINES)} {len(cells)}\n".encode() + numbers(cells, "int")
    path.write_bytes(content + f"POINT_DATA {len(points)}\nSCALARS fa float\n".encode())
    return path


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("version", ["3.0", "5.1"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_lines_of_vtk_are_streamlines(tmp_path, is_binary, version, kind):
    order = np.random.default_rng(1).permutation(len(POINTS))
    metadata = b"METADATA\nINFORMATION 0\n\nVERTICES 1 2\n" if not is_binary and version == "3.0" else b""
    extra = metadata + (b"1 0\n" if metadata else b"")
    found = read_tracts(
        [vtk(tmp_path / "a.vtk", is_binary=is_binary, version=version, kind=kind, order=order, extra=extra)]
    )
    assert found.points == pytest.approx(POINTS, abs=1e-5)
    assert np.array_equal(found.offsets, OFFSETS)
    assert (found.names, found.left_out) == (("a",), "")


@pytest.mark.parametrize(
    ("title", "sign", "is_said"),
    [
        ("3D Slicer output. SPACE=LPS", -1.0, False),
        ("vtk SPACE=RAS", 1.0, False),
        ("vtk output", 1.0, True),
        ("", 1.0, True),
    ],
)
def test_the_space_of_vtk_is_what_its_title_says(tmp_path, title, sign, is_said):
    found = read_tracts([vtk(tmp_path / "a.vtk", title=title)])
    assert found.points == pytest.approx(POINTS * (sign, sign, 1.0))
    assert ("does not say whether its x goes to the right (RAS) or to the left" in found.left_out) == is_said


@pytest.mark.data
def test_a_real_vtk_file_has_all_its_points(real_data):
    found = read_tracts([real_data / "dwi_small" / "tract.FAT_R.vtk"])
    assert len(found.points) == 60


def tiny_track(path, lines, *, cluster=None, affine=None, **more):
    """A .tt.gz file as DSI Studio writes it: 32 steps a voxel, the first point whole, then differences of a byte."""
    content = b""
    for line in lines:
        steps = np.rint(line).astype(np.int64)
        content += (3 * len(line)).to_bytes(4, "little") + steps[0].astype("<i4").tobytes()
        content += np.diff(steps, axis=0).astype(np.int8).tobytes()
    values = {
        "dimension": np.array([[157, 189, 136]], np.int32),
        "voxel_size": np.ones((1, 3), np.float32),
        "trans_to_mni": np.array(AFFINE if affine is None else affine, np.float32).reshape(1, -1),
        "track": np.frombuffer(content, np.uint8)[None],
        **(
            {}
            if cluster is None
            else {"cluster": np.array([cluster], np.uint16 if max(cluster) < 1 << 16 else np.int32)}
        ),
        **more,
    }
    plain = path.with_suffix(".mat")
    scipy.io.savemat(plain, values, format="4")
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


AFFINE = ((-1, 0, 0, 78), (0, -1, 0, 76), (0, 0, 1, -50), (0, 0, 0, 1))
STEPS = [
    np.cumsum(np.random.default_rng(seed).integers(-100, 100, (count, 3)), axis=0)
    for seed, count in enumerate((4, 2, 6))
]


def test_tiny_tracks_lie_where_their_matrix_puts_them(tmp_path):
    found = read_tracts([tiny_track(tmp_path / "a.tt.gz", STEPS)])
    expected = np.concatenate(STEPS) / 32.0 * (-1, -1, 1) + (78, 76, -50)
    assert found.points == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(found.offsets, [0, 4, 6, 12])
    assert found.names == ("a",)


def test_clusters_are_bundles_with_the_names_next_to_the_file(tmp_path):
    path = tiny_track(tmp_path / "a.tt.gz", STEPS, cluster=[2, 0, 2])
    found = read_tracts([path])
    assert (found.names, found.bundle.tolist()) == (("bundle 0", "bundle 2"), [1, 0, 1])
    (tmp_path / "a.tt.gz.txt").write_text("UF_L\nUF_R\nCST\n")
    assert read_tracts([path]).names == ("UF_L", "CST")


def test_numbers_of_clusters_may_be_of_any_size(tmp_path):
    path = tiny_track(tmp_path / "a.tt.gz", STEPS, cluster=[2_000_000_000, 7, 7])
    found = read_tracts([path])
    assert (found.names, found.bundle.tolist()) == (("bundle 7", "bundle 2000000000"), [1, 0, 0])


@pytest.mark.data
def test_the_real_atlas_has_the_streamlines_that_its_array_was_made_from(real_data):
    folder = real_data / "tracts_hcp1065"
    found = read_tracts([folder / "hcp1065_tracts.tt.gz"])
    array = read_tracts([folder / "hcp1065_32points.npz"])
    assert (len(found), len(found.names)) == (10_403, 106)
    with (folder / "bundles.csv").open() as file:
        counts = {int(row["index"]): int(row["streamlines"]) for row in csv.DictReader(file)}
    assert np.bincount(found.bundle).tolist() == [counts[index] for index in range(106)]
    ends = np.stack([found.points[found.offsets[:-1]], found.points[found.offsets[1:] - 1]])
    expected = array.points.reshape(-1, 32, 3)[:, [0, -1]].transpose(1, 0, 2)
    assert np.abs(ends - expected).max() < 0.05


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda content: b"# vtp" + content, "does not begin as a legacy VTK file"),
        (lambda content: content.replace(b"POLYDATA", b"STRUCTURED_GRID"), "it holds DATASET STRUCTURED_GRID"),
        (lambda content: content.replace(b"POINTS 17", b"POINTS 99999999"), "299999997 numbers are announced, and"),
        (lambda content: content.replace(b"POINTS 17 float", b"POINTS 17 bit"), "numbers of type 'bit' are not known"),
        (lambda content: content.replace(b"LINES 3", b"LINES 4"), "cell 3 of 4 does not say how many points"),
        (lambda content: content.replace(b"LINES 3", b"LINES 2"), "2 cells take 10 numbers, and there are 20"),
        (lambda content: content[: content.index(b"LINES")], "it holds no lines"),
        (lambda content: content.replace(b"LINES", b"CURVES"), "the line 'CURVES 3 20' is not known"),
        (lambda content: content.replace(MRTRIX.encode(), b"x" * 5000), "a line has more than 1024 characters"),
    ],
)
def test_damaged_vtk_is_named_with_the_reason(tmp_path, edit, words):
    path = vtk(tmp_path / "a.vtk")
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(ScanError, match=rf"a\.vtk cannot be read \(ValueError: .*{words}"):
        read_tracts([path])


def test_a_line_to_a_point_that_is_not_there_is_refused(tmp_path):
    path = vtk(tmp_path / "a.vtk", is_binary=False)
    path.write_bytes(path.read_bytes().replace(b"16\nPOINT_DATA", b"17\nPOINT_DATA"))
    with pytest.raises(ScanError, match="a line names point 17 of 17"):
        read_tracts([path])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trans_to_mni": np.zeros((1, 3), np.float32)}, "no trans_to_mni, the affine of its voxels"),
        ({"trans_to_mni": np.full((1, 16), np.nan, np.float32)}, "its trans_to_mni is not an affine"),
        ({"track": np.arange(30, dtype=np.uint8)[None]}, "a streamline has 50462976 bytes"),
        ({"track": np.zeros((1, 5), np.uint8)}, "it ends within a streamline"),
        ({"track": np.zeros((1, 0), np.uint8)}, "no streamline of two or more finite points"),
    ],
)
def test_damaged_tiny_tracks_are_named_with_the_reason(tmp_path, more, words):
    with pytest.raises(ScanError, match=rf"a\.tt\.gz .*{words}"):
        read_tracts([tiny_track(tmp_path / "a.tt.gz", STEPS, **more)])


def test_matrices_of_another_version_are_refused(tmp_path):
    (tmp_path / "a.tt.gz").write_bytes(gzip.compress(b"MATLAB 5.0 MAT-file" + bytes(200)))
    with pytest.raises(ScanError, match=r"a\.tt\.gz cannot be read \(ValueError: "):
        read_tracts([tmp_path / "a.tt.gz"])


@pytest.mark.parametrize("name", ["a.vtk", "b.vtk", "a.tt.gz"])
def test_rotten_files_are_read_or_refused_in_words(tmp_path, name):
    path, numbers = tmp_path / name, random.Random(name)
    if name == "a.tt.gz":
        tiny_track(path, STEPS)
        whole = gzip.decompress(path.read_bytes())
    else:
        whole = vtk(path, is_binary=name == "a.vtk", version="5.1").read_bytes()
    for _ in range(examples(200)):
        content = rotten(numbers, whole)
        path.write_bytes(gzip.compress(content, 0) if name == "a.tt.gz" else content)
        found = tracts_or_refusal(path)
        assert found is None or found.offsets[-1] == len(found.points)
