from __future__ import annotations

import re

import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import NibabelReader, NumpyReader
from monai.transforms import LoadImage, LoadImaged

from shared.examples import examples
from voxelocity.monai.deterministic import faster, why_not

STORED = ["uint8", "int16", ">i2", "uint16", "int32", "float32", "float64", "int64"]


def _write(path, shape, dtype, *, scaling=None, seed=0, kind=nib.Nifti1Image):
    values = np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)
    image = kind(
        values, np.diag([0.8, 1.5, 2.5, 1.0]), kind.header_class(endianness=np.dtype(dtype).str[0].replace("|", "<"))
    )
    image.set_data_dtype(dtype)
    if scaling:
        image.header.set_slope_inter(*scaling)
    image.to_filename(path)
    return path


@settings(max_examples=examples(80))
@given(
    shape=st.one_of(
        st.tuples(*[st.integers(1, 7)] * 3), st.tuples(*[st.integers(1, 5)] * 4), st.tuples(*[st.integers(1, 5)] * 2)
    ),
    stored=st.sampled_from(STORED),
    scaling=st.sampled_from([None, (1.0, -1024.0), (0.37, 11.5)]),
    dtype=st.sampled_from([np.float32, np.float32, np.float64, np.int16, None, torch.float32]),
    ending=st.sampled_from([".nii", ".nii.gz"]),
    channel_first=st.booleans(),
    simple_keys=st.booleans(),
)
def test_results_are_those_of_monai(
    tmp_path_factory, assert_same, shape, stored, scaling, dtype, ending, channel_first, simple_keys
):
    path = _write(tmp_path_factory.mktemp("load") / f"a{ending}", shape, stored, scaling=scaling)
    loader = LoadImage(dtype=dtype, ensure_channel_first=channel_first, simple_keys=simple_keys)
    try:
        theirs = loader(path)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            faster(loader)(path)
        return
    ours = faster(loader)(path)
    assert_same(ours, theirs)
    assert ours.is_contiguous() == theirs.is_contiguous()


@pytest.mark.parametrize("stored", [["int16"] * 4, ["int16", "float32"], ["int64", "float32"]])
def test_several_files_of_one_key_are_stacked(tmp_path, assert_same, stored):
    paths = [_write(tmp_path / f"{i}.nii.gz", (4, 5, 6), dtype, seed=i) for i, dtype in enumerate(stored)]
    loader = LoadImage(reader="NibabelReader")
    ours = faster(loader)(paths)
    assert ours.shape == (len(stored), 4, 5, 6)
    assert_same(ours, loader(paths))


def test_the_dictionary_form_keeps_metadata_next_to_the_image(tmp_path, assert_same):
    item = {"image": str(_write(tmp_path / "a.nii.gz", (4, 5, 6), "int16", scaling=(2.0, 1.0))), "id": 3}
    transform = LoadImaged("image", image_only=False)
    assert_same(faster(transform)(item), transform(item))
    assert item["image"] == str(tmp_path / "a.nii.gz")


def test_a_header_of_the_second_version_is_read(tmp_path, assert_same):
    path = _write(tmp_path / "a.nii.gz", (4, 5, 6), "int16", kind=nib.Nifti2Image)
    assert_same(faster(LoadImage())(path), LoadImage()(path))


def test_voxels_are_not_read_by_nibabel(tmp_path, monkeypatch):
    path = _write(tmp_path / "a.nii.gz", (4, 5, 6), "int16")
    monkeypatch.setattr(nib.arrayproxy.ArrayProxy, "__array__", None)
    assert faster(LoadImage())(path).shape == (4, 5, 6)


def test_a_truncated_file_raises_what_it_raises_under_monai(tmp_path):
    path = _write(tmp_path / "a.nii.gz", (40, 40, 40), "int16")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(EOFError) as theirs:
        LoadImage()(path)
    with pytest.raises(EOFError) as ours:
        faster(LoadImage())(path)
    assert str(ours.value) == str(theirs.value)


def test_other_files_and_readers_given_at_the_call_are_left_to_monai(tmp_path, assert_same):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(1, 2, 3))
    loader = LoadImage()
    assert_same(faster(loader)(tmp_path / "a.npy"), loader(tmp_path / "a.npy"))
    assert_same(faster(loader)(tmp_path / "a.npy", NumpyReader()), loader(tmp_path / "a.npy", NumpyReader()))


def test_what_is_left_to_monai_is_reported_in_words():
    class Mine(NibabelReader):
        pass

    only_numpy = LoadImage()
    only_numpy.readers = [NumpyReader(), Mine()]
    assert why_not(only_numpy) == "none of its readers is MONAI's NibabelReader"
    assert why_not(LoadImaged("a", reader=NibabelReader(as_closest_canonical=True))) == (
        "its reader reorients while reading (as_closest_canonical=True); use Orientationd instead"
    )
    gpu = NibabelReader()
    gpu.to_gpu = True
    assert why_not(LoadImage(gpu)) == "its reader reads into the memory of a GPU (to_gpu=True)"


@pytest.mark.data
def test_real_scans_are_loaded_as_monai_loads_them(real_data, assert_same):
    paths = sorted((real_data / "small_ct_mr_samples").rglob("*.nii.gz"))[:6]
    paths += [real_data / "hippocampus" / kind / "hippocampus_190.nii.gz" for kind in ("imagesTr", "labelsTr")]
    assert len(paths) > 2
    for path in paths:
        assert_same(faster(LoadImage())(path), LoadImage()(path), where=path.name)


def test_a_damaged_file_that_monai_takes_is_warned_of(tmp_path):
    path = tmp_path / "a.nii.gz"
    nib.save(nib.Nifti1Image(np.random.default_rng(0).random((9, 8, 7)), np.eye(4)), path)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"a\.nii\.gz: the gzip data is damaged .*MONAI's code reads it, and its"):
        found = faster(LoadImage())(path)
    assert np.array_equal(found, LoadImage()(path))
