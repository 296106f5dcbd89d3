from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    ConvertToMultiChannelBasedOnBratsClassesd,
    CropForegroundd,
    EnsureChannelFirstd,
    FgBgToIndicesd,
    Invertd,
    LoadImaged,
    MapTransform,
    NormalizeIntensityd,
    Orientationd,
    ScaleIntensityRanged,
    Spacingd,
)

from voxelocity.monai.deterministic import faster


class TumourRegionsd(MapTransform):
    """What a BraTS script brings along: the three overlapping regions of a label."""

    def __call__(self, data):
        item = dict(data)
        for key in self.key_iterator(item):
            label = item[key]
            item[key] = torch.cat([(label == 1) | (label == 3), label > 0, label == 3]).to(torch.float32)
        return item


def spleen():
    keys = ["image", "label"]
    return Compose(
        [
            LoadImaged(keys),
            EnsureChannelFirstd(keys),
            Orientationd(keys, axcodes="RAS", labels=None),
            Spacingd(keys, pixdim=(1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
            ScaleIntensityRanged("image", a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True),
            CropForegroundd(keys, source_key="image"),
            FgBgToIndicesd("label", image_key="image"),
        ]
    )


def brats(regions):
    keys = ["image", "label"]
    return Compose(
        [
            LoadImaged(keys),
            EnsureChannelFirstd(keys),
            regions,
            Orientationd(keys, axcodes="RAS", labels=None),
            Spacingd(keys, pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest")),
            NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        ]
    )


def compiled(chain):
    return [faster(transform) or transform for transform in chain.transforms]


def run(transforms, item):
    for transform in transforms:
        item = transform(item)
    return item


def _affine(steps, flips):
    affine = np.diag([*(np.array(steps) * np.where(flips, -1, 1)), 1.0])
    affine[:3, 3] = (40.0, -12.5, 3.0)
    return affine


@pytest.fixture
def ct(tmp_path):
    rng = np.random.default_rng(4)
    image = np.full((26, 24, 10), -1024, np.int16)
    image[4:22, 5:20, 1:9] = rng.normal(40, 60, (18, 15, 8))
    label = np.zeros(image.shape, np.uint8)
    label[8:14, 9:16, 3:7] = 1
    for name, array in {"image": image, "label": label}.items():
        nib.save(nib.Nifti1Image(array, _affine((0.8, 0.8, 2.5), (1, 1, 0))), tmp_path / f"{name}.nii.gz")
    return {"image": str(tmp_path / "image.nii.gz"), "label": str(tmp_path / "label.nii.gz")}


@pytest.fixture
def mr(tmp_path):
    rng = np.random.default_rng(5)
    head = np.zeros((18, 16, 12), bool)
    head[3:15, 2:14, 2:11] = True
    affine = _affine((1.2, 1.0, 0.9), (1, 0, 0))
    for index in range(4):
        image = np.where(head, rng.integers(1, 900 + 100 * index, head.shape), 0).astype(np.int16)
        nib.save(nib.Nifti1Image(image, affine), tmp_path / f"{index}.nii.gz")
    label = np.where(head, rng.integers(0, 4, head.shape), 0).astype(np.uint8)
    nib.save(nib.Nifti1Image(label, affine), tmp_path / "label.nii.gz")
    return {"image": [str(tmp_path / f"{i}.nii.gz") for i in range(4)], "label": str(tmp_path / "label.nii.gz")}


def test_the_spleen_chain_ends_in_what_monai_ends_in(ct, assert_same):
    chain = spleen()
    ours, theirs = run(compiled(chain), ct), run(chain.transforms, ct)
    assert sum(faster(transform) is not None for transform in chain.transforms) == 6
    assert ours["label_fg_indices"].numel() > 0
    assert_same(ours, theirs, rtol=2.4e-7, atol=1e-9)


@pytest.mark.parametrize(
    "regions", [ConvertToMultiChannelBasedOnBratsClassesd("label"), TumourRegionsd("label")], ids=["monai", "own"]
)
def test_the_chain_of_four_contrasts_ends_in_what_monai_ends_in(mr, assert_same, regions):
    chain = brats(regions)
    ours, theirs = run(compiled(chain), mr), run(chain.transforms, mr)
    assert sum(faster(transform) is not None for transform in chain.transforms) == 4
    assert ours["image"].shape[0] == 4
    assert ours["label"].shape[0] == 3
    assert_same(ours, theirs, rtol=2e-5, atol=2e-5)


def test_monai_inverts_what_a_fast_chain_made(ct, assert_same):
    chain = spleen()
    invert = Invertd("label", chain, orig_keys="image", nearest_interp=True)
    back = []
    for transforms in (compiled(chain), chain.transforms):
        item = run(transforms, ct)
        # A prediction on the prepared grid, which knows nothing but its image.
        prediction = MetaTensor(item["label"].as_tensor().clone())
        back.append(invert({"image": item["image"], "label": prediction})["label"])
    assert back[0].shape[1:] == nib.load(ct["image"]).shape
    assert_same(*back)


def test_one_chain_serves_several_threads(ct, mr, assert_same):
    chain = compiled(spleen())
    alone = run(chain, ct)
    with ThreadPoolExecutor(4) as pool:
        for ours in pool.map(lambda _: run(chain, ct), range(12)):
            assert_same(ours, alone)


@pytest.mark.data
def test_real_scans_come_out_as_monai_makes_them(real_data, assert_same):
    folder = real_data / "hippocampus"
    for case in ("hippocampus_190", "hippocampus_075"):
        item = {
            "image": str(folder / "imagesTr" / f"{case}.nii.gz"),
            "label": str(folder / "labelsTr" / f"{case}.nii.gz"),
        }
        for chain in (spleen(), brats(TumourRegionsd("label"))):
            assert_same(run(compiled(chain), item), run(chain.transforms, item), rtol=2e-5, atol=2e-5, where=case)


@pytest.mark.data
@pytest.mark.nightly  # twelve scans
def test_oblique_and_odd_axes_of_real_scans_come_out_as_monai_makes_them(real_data, assert_same):
    paths = sorted((real_data / "small_ct_mr_samples").rglob("*.nii.gz"))[:12]
    chain = Compose([
        LoadImaged("image"), EnsureChannelFirstd("image"), Orientationd("image", "RAS", labels=None),
        Spacingd("image", (1.7, 1.7, 2.2)), CropForegroundd("image", "image", margin=2),
    ])  # fmt: skip
    assert paths
    for path in paths:
        if len(nib.load(path).shape) == 3:
            item = {"image": str(path)}
            largest = float(np.abs(nib.load(path).get_fdata()).max())
            assert_same(
                run(compiled(chain), item),
                run(chain.transforms, item),
                rtol=2.4e-7,
                atol=1e-9 * largest,
                where=path.name,
            )
