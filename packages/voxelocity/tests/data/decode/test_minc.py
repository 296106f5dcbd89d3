"""MINC beyond the contract of formats: files of nibabel's tests, scaled slice by slice, and headers that lie."""

from __future__ import annotations

import random
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from shared.damage import check_reading, rotten
from shared.examples import examples
from voxelocity.core.volume import Grid
from voxelocity.data.decode import read_scan
from voxelocity_observe.core.errors import ScanError

FILES = Path(nib.__file__).parent / "tests" / "data"


@pytest.mark.parametrize("name", ["tiny.mnc", "minc1_1_scale.mnc", "minc1_4d.mnc", "minc1-no-att.mnc"])
def test_a_file_of_minc_tools_is_what_nibabel_reads(name):
    if not (FILES / name).exists():
        pytest.skip("nibabel was installed without its test data")
    image = nib.load(FILES / name)
    voxels, grid = read_scan(FILES / name)
    expected = np.asarray(image.dataobj)
    expected = expected if expected.ndim == 4 else expected[None]
    assert np.array_equal(voxels.transpose(0, 3, 2, 1), expected.astype(np.float32))
    # nibabel's axes are z, y and x.
    affine = image.affine[:, [2, 1, 0, 3]]
    assert grid.is_close(Grid.of(expected.shape[:0:-1], affine))


def test_a_file_of_minc_2_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "a.mnc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2000))
    with pytest.raises(ScanError, match=r"a\.mnc: this is a file of MINC 2 .*which is not read; convert .*h5py"):
        read_scan(tmp_path / "a.mnc")


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_rotten_files_are_read_or_refused_in_words(tmp_path):
    source = FILES / "tiny.mnc"
    if not source.exists():
        pytest.skip("nibabel was installed without its test data")
    whole, numbers = source.read_bytes(), random.Random("minc")
    check_reading(tmp_path / "a.mnc", (rotten(numbers, whole) for _ in range(examples(200))))
