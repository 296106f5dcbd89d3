"""Our preprocessed cases next to those of nnU-Net's own preprocessor; skipped where nnU-Net is not installed."""

import json
import os

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("nnunetv2", reason="nnU-Net v2")
from nnunetv2.experiment_planning.dataset_fingerprint.fingerprint_extractor import DatasetFingerprintExtractor
from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

from voxelocity.core.requests.preprocess import PreprocessRequest
from voxelocity.nnunet.preprocess.fingerprint import case_facts, new_samples
from voxelocity.nnunet.preprocess.raw import open_raw
from voxelocity.nnunet.preprocess.run import preprocess
from voxelocity.nnunet.preprocess.store import block_and_chunk

from .small_raw import write_plans, write_raw

SETS = {
    "CT": {},
    "two channels, masked": {"channels": ("T1", "T2")},
    "thick slices": {"spacing": (0.8, 0.9, 4.0)},
    "regions": {"labels": {"background": 0, "whole": [1, 2], "kidney": [2]}, "regions_class_order": [1, 2]},
    "ignored voxels": {"labels": {"background": 0, "liver": 1, "ignore": 2}},
    "without a border": {"border": 0},
}


@pytest.mark.parametrize("name", SETS)
def test_stored_cases_are_those_of_nnunet(name, places):
    settings = SETS[name]
    raw = write_raw(places / "raw", num=2, **settings)
    write_plans(places / "preprocessed" / raw.name, channels=settings.get("channels", ("CT",)))
    with open(os.devnull, "w") as nowhere:
        request = PreprocessRequest(dataset=str(raw), verify=2, threads=1)
        found = preprocess(request, console=Console(file=nowhere))
    assert len(found) == 4
    for difference in found:
        assert difference.num_labels == 0
        assert difference.notes == ()
        # The last bit of float32, of numbers that are rounded either way.
        assert difference.intensity <= 5e-7
        assert difference.num_other <= 0.001 * difference.num_voxels
    theirs = nnUNetDatasetBlosc2(str(places / "preprocessed" / raw.name / "nnUNetPlans_3d_fullres"))
    data, label, _, notes = theirs.load_case("case_1")
    assert data.shape[1:] == label.shape[1:]
    assert notes["class_locations"]


def test_facts_of_a_case_are_those_of_nnunets_fingerprint(places):
    raw = open_raw(write_raw(places / "raw", num=2, channels=("T1", "T2")))
    samples = new_samples(raw)
    found = case_facts(raw, 1, "SimpleITKIO", samples)
    ref = raw.refs[1]
    theirs = DatasetFingerprintExtractor.analyze_case(
        [str(path) for path in ref.images], str(ref.label), SimpleITKIO, 30_000
    )
    assert (found.shape, found.share) == (theirs[0], theirs[4])
    assert json.dumps(found.spacing) == json.dumps(theirs[1])
    for ours, own in zip(samples[:, 1], theirs[2], strict=True):
        assert ours.dtype == own.dtype
        assert np.array_equal(ours, own)


def test_chunks_and_blocks_are_those_of_nnunet():
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = (int(rng.integers(1, 4)), *map(int, rng.integers(1, 600, 3)))
        patch = tuple(map(int, rng.integers(1, 260, rng.integers(2, 4))))
        itemsize = int(rng.choice([2, 4]))
        assert block_and_chunk(shape, patch, itemsize) == comp_blosc2_params(shape, patch, itemsize), (shape, patch)
