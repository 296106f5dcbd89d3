"""Series of several volumes at the same places: divided by what tells them apart, each a channel, or refused."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.dicom_series import write_enhanced, write_series
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import read_case, read_header, read_scan
from voxelocity.data.decode.dicom import series
from voxelocity_observe.core.errors import ScanError

pytest.importorskip("pydicom")

VOXELS = np.random.default_rng(0).integers(-500, 500, (3, 4, 5, 6)).astype(np.int16)
"""Three volumes (t, z, y, x) of four planes."""
NUM, NUM_PLANES = 3, 4
pytestmark = pytest.mark.filterwarnings("ignore:.*the series holds 3 volumes.*:UserWarning")


def planes(order):
    """Index of volume and plane of each file: one volume after the other, or one place after the other."""
    pairs = [(volume, plane) for volume in range(NUM) for plane in range(NUM_PLANES)]
    return pairs if order == "volumes" else sorted(pairs, key=lambda pair: pair[1])


def write(folder, values, order="volumes", **extra):
    """A 4-D series; `values` gives, for volume and plane, the attributes that tell it apart."""
    pairs = planes(order)

    def edit(index, dataset):
        for keyword, value in values(*pairs[index]).items():
            setattr(dataset, keyword, value)

    stored = np.stack([VOXELS[pair] for pair in pairs])
    return write_series(folder, stored, places=[plane for _, plane in pairs], edit=edit, **extra)


@pytest.mark.parametrize("order", ["volumes", "places"])
@pytest.mark.parametrize(
    ("keyword", "given", "words"),
    [
        ("TemporalPositionIdentifier", (1, 2, 3), r"time point \(TemporalPositionIdentifier 1, 2, 3\)"),
        ("DiffusionBValue", (0.0, 500.0, 1000.0), r"b-value \(DiffusionBValue 0, 500, 1000\)"),
        ("EchoTime", (10, 20, 30), r"echo time \(EchoTime 10, 20, 30\)"),
        ("TriggerTime", (0, 55, 110), r"trigger time \(TriggerTime 0, 55, 110\)"),
        ("InstanceCreatorUID", ("1.2", "1.2", "1.2"), r"their order \(InstanceNumber\)"),
    ],
)
def test_each_volume_is_a_channel_in_the_order_of_the_scanner(tmp_path, order, keyword, given, words):
    write(tmp_path, lambda volume, plane: {keyword: given[volume]}, order)
    header = read_header(tmp_path)
    voxels, grid = read_scan(tmp_path)
    assert np.array_equal(voxels.transpose(0, 3, 2, 1), VOXELS)
    assert (header.num_channels, grid.shape, header.data_bytes) == (NUM, (6, 5, 4), voxels.nbytes)
    assert header.channel_words.startswith("3 volumes, which differ in ")
    with pytest.raises(ScanError, match=rf"has no volume 4, but 3 volumes.*{words}"):
        read_case(VolumeRef(case_id="a", images=(tmp_path,), volume=4), label_values=())


def test_two_attributes_together_may_tell_volumes_apart(tmp_path):
    pairs = ((0.0, 10), (1000.0, 10), (0.0, 20))
    write(tmp_path, lambda volume, plane: {"DiffusionBValue": pairs[volume][0], "EchoTime": pairs[volume][1]})
    header = read_header(tmp_path)
    assert "DiffusionBValue 0, 1000" in header.channel_words
    assert "EchoTime 10, 20" in header.channel_words
    assert np.array_equal(read_scan(tmp_path)[0].transpose(0, 3, 2, 1), VOXELS)


def test_one_volume_of_a_case_is_taken_by_its_number(tmp_path):
    write(tmp_path / "series", lambda volume, plane: {"TemporalPositionIdentifier": volume + 1})
    nib.save(nib.Nifti1Image(VOXELS.transpose(3, 2, 1, 0), np.eye(4)), tmp_path / "a.nii")
    for path in (tmp_path / "series", tmp_path / "a.nii"):
        for number in (1, 3):
            found = read_case(VolumeRef(case_id="a", images=(path,), volume=number), label_values=())
            assert np.array_equal(found.image[0].T, VOXELS[number - 1])
    with pytest.raises(ScanError, match=r"case 'a': .*a\.nii has no volume 4, but 3 volumes; choose one from 1 to 3"):
        read_case(VolumeRef(case_id="a", images=(tmp_path / "a.nii",), volume=4), label_values=())


def test_a_warning_says_once_what_the_channels_are(tmp_path):
    write(tmp_path / "mr", lambda volume, plane: {"EchoTime": volume + 1})
    with pytest.warns(UserWarning, match=r"holds 3 volumes, which differ in echo time .* `predict --volume N` takes"):
        read_header(tmp_path / "mr")
    read_header(tmp_path / "mr")


def test_volumes_that_are_incomplete_are_refused_with_what_tells_them_apart(tmp_path):
    files = write(tmp_path, lambda volume, plane: {"EchoTime": 10 * (volume + 1)})
    files[-1].unlink()
    with pytest.raises(
        ScanError, match=r"one position, 2 to 3 at each, which differ in echo time \(EchoTime 10, 20, 30\)"
    ):
        read_header(tmp_path)


def test_an_order_that_would_mix_kinds_of_images_is_not_guessed(tmp_path):
    # Of each place, the same kinds, but in another order of numbers, and twice.
    kinds = (0.0, 0.0, 1000.0)
    write(tmp_path, lambda volume, plane: {"DiffusionBValue": kinds[(volume + plane) % NUM]})
    with pytest.raises(ScanError, match=r"3 at each, which differ in b-value .*do not make whole volumes"):
        read_header(tmp_path)


def test_copies_are_no_volumes(tmp_path):
    for file in write(tmp_path, lambda volume, plane: {})[:NUM_PLANES]:
        (tmp_path / f"again_{file.name}").write_bytes(file.read_bytes())
    with pytest.raises(ScanError, match="they are copies: remove one of each"):
        read_header(tmp_path)


def test_volumes_that_moved_are_no_channels(tmp_path):
    def values(volume, plane):
        return {"EchoTime": volume, "ImagePositionPatient": [float(volume), 0.0, 2.5 * plane]}

    write(tmp_path, values)
    with pytest.raises(ScanError, match=r"holds 3 volumes, which lie up to 2 mm apart, so that they are not channels"):
        read_header(tmp_path)


def frames_of(dataset, sequence, keyword, values):
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    for group, value in zip(dataset.PerFrameFunctionalGroupsSequence, values, strict=True):
        item = Dataset()
        setattr(item, keyword, value)
        setattr(group, sequence, Sequence([item]))


@pytest.mark.parametrize(
    ("sequence", "keyword", "words"),
    [
        ("FrameContentSequence", "TemporalPositionIndex", "TemporalPositionIdentifier 1, 2, 3"),
        ("MRDiffusionSequence", "DiffusionBValue", "DiffusionBValue 1, 2, 3"),
        ("MREchoSequence", "EffectiveEchoTime", "EchoTime 1, 2, 3"),
    ],
)
def test_frames_of_several_volumes_are_channels(tmp_path, sequence, keyword, words):
    numbers = [volume + 1 for volume in range(NUM) for _ in range(NUM_PLANES)]
    order = [2, 5, 11, 0, 8, 3, 1, 4, 10, 7, 6, 9]
    kind = int if keyword.endswith("Index") else float

    def edit(dataset):
        frames_of(dataset, sequence, keyword, [kind(numbers[plane]) for plane in order])

    path = write_enhanced(
        tmp_path / "a.dcm", VOXELS.reshape(-1, 5, 6), order=order, places=[0, 1, 2, 3] * NUM, edit=edit
    )
    header = read_header(path)
    assert words in header.channel_words
    # In the order of their first frames: the first frame stored is of the first volume, the second of the second.
    assert np.array_equal(read_scan(path)[0].transpose(0, 3, 2, 1), VOXELS)


def siemens(name):
    """A mosaic of nibabel's tests, unpacked into a folder."""
    return Path(nib.__file__).parent / "nicom" / "tests" / "data" / f"{name}.dcm.gz"


def write_mosaics(folder):
    """Two mosaics with known pixels; their own were removed.

    Raises:
        FileNotFoundError: nibabel was installed without its test data.
    """
    import pydicom

    numbers = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for name in ("siemens_dwi_0", "siemens_dwi_1000"):
        dataset = pydicom.dcmread(io.BytesIO(gzip.decompress(siemens(name).read_bytes())))
        dataset.PixelData = numbers.integers(0, 4096, (dataset.Rows, dataset.Columns)).astype("<u2").tobytes()
        dataset.save_as(folder / f"{name}.dcm")


@pytest.fixture
def mosaics(tmp_path):
    try:
        write_mosaics(tmp_path / "dwi")
    except FileNotFoundError:
        pytest.skip("nibabel was installed without its test data")
    return tmp_path / "dwi"


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_mosaic_has_the_voxels_and_the_place_that_nibabel_gives_it(mosaics):
    from nibabel.nicom.dicomwrappers import wrapper_from_file

    voxels, grid = read_scan(mosaics)
    for channel, name in enumerate(("siemens_dwi_0", "siemens_dwi_1000")):
        wrapped = wrapper_from_file(mosaics / f"{name}.dcm")
        expected = wrapped.get_unscaled_data()
        to_ras = np.diag([-1.0, -1.0, 1.0, 1.0]) @ wrapped.affine
        # nibabel's axes are rows, columns and planes.
        expected = expected.transpose(1, 0, 2)
        to_ras = to_ras[:, [1, 0, 2, 3]]
        index = np.array(np.nonzero(expected > 3500))
        places = np.linalg.inv(grid.matrix) @ to_ras @ np.vstack([index, np.ones(index.shape[1])])
        assert np.abs(places - places.round()).max() < 1e-2
        found = voxels[channel][tuple(places[:3].round().astype(int))]
        assert np.array_equal(found, expected[tuple(index)])
    assert "DiffusionBValue 0, 1000" in read_header(mosaics).channel_words


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_mosaic_whose_private_header_is_gone_is_refused(mosaics):
    import pydicom

    for file in mosaics.iterdir():
        dataset = pydicom.dcmread(file)
        dataset.remove_private_tags()
        dataset.save_as(file)
    with pytest.raises(ScanError, match=r"mosaic, .* does not say how many and where .*\(CSA header\).*dcm2niix"):
        read_header(mosaics)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("content", [b"", b"SV10", b"\xff" * 200, b"SV10\4\3\2\1\1\0\0\0M\0\0\0" + b"x" * 90])
def test_a_garbled_private_header_is_no_error_of_a_library(mosaics, content):
    import pydicom

    for file in mosaics.iterdir():
        dataset = pydicom.dcmread(file)
        dataset[0x0029, 0x1010].value = content
        if (0x0019, 0x100A) in dataset:
            del dataset[0x0019, 0x100A]
        dataset.save_as(file)
    with pytest.raises(ScanError, match="mosaic"):
        read_header(mosaics)


def test_of_one_volume_only_its_own_files_are_read(tmp_path, monkeypatch):
    files = write(tmp_path, lambda volume, plane: {"EchoTime": 10 * (volume + 1)})
    read, read_frames = [], series.read_frames
    monkeypatch.setattr(series, "read_frames", lambda slice_: read.append(slice_.path) or read_frames(slice_))
    found = read_case(VolumeRef(case_id="a", images=(tmp_path,), volume=2), label_values=()).image
    assert np.array_equal(found[0].T, VOXELS[1])
    assert sorted(read) == sorted(files[NUM_PLANES : 2 * NUM_PLANES])


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.mgz"])
def test_of_one_volume_memory_holds_no_other(tmp_path, name):
    voxels = np.zeros((64, 64, 32, 40), np.float32)
    voxels[..., 7] = 7.0
    kind = nib.MGHImage if name.endswith(".mgz") else nib.Nifti1Image
    nib.save(kind(voxels, np.eye(4)), tmp_path / name)
    volume_bytes = voxels[..., 0].nbytes
    del voxels
    tracemalloc.start()
    found = read_case(VolumeRef(case_id="a", images=(tmp_path / name,), volume=8), label_values=()).image
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.min() == found.max() == 7.0
    # The volume, its values in this machine's order, and a piece of the file.
    assert peak_bytes < 3 * volume_bytes + (10 << 20) < 40 * volume_bytes
