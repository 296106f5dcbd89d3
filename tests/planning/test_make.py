import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import yaml

import voxelocity
from voxelocity.core.errors import ConfigError, DatasetError, ScanError
from voxelocity.planning import Plan, make_plan, read_overrides


def test_a_plan_survives_the_way_through_its_record(tiny_msd):
    planned = make_plan(voxelocity.open(tiny_msd), device="cpu")
    record = yaml.safe_load(yaml.safe_dump(planned.to_record()))
    assert Plan.parse(record["plan"]) == planned.plan
    assert record["dataset"]["classes"] == ["background", "ball", "core"]
    assert (record["dataset"]["num_training"], record["dataset"]["num_validation"]) == (4, 2)


def test_the_fingerprint_says_what_the_data_are(tiny_msd):
    facts = make_plan(voxelocity.open(tiny_msd), device="cpu").fingerprint
    assert facts.shape_voxel.median == (20, 22, 18)
    assert facts.spacing_mm.low == facts.spacing_mm.high == (1, 1, 1)
    assert facts.stored_dtypes == {"float32": 6}
    assert sum(facts.class_shares.values()) == pytest.approx(1.0)
    assert facts.class_shares["ball"] > facts.class_shares["core"] > 0
    assert 150 < facts.intensity[0].median < 220, "of the foreground, whose mean lies at 180 and 260"


def test_auto_gives_a_key_back_to_its_rule():
    assert read_overrides({"data": {"batch_size": "auto"}, "seed": 3}) == {"seed": 3}


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown key 'data\.batchsize'; did you mean 'data\.batch_size'\?"):
        read_overrides({"data.batchsize": 4})


def test_a_patch_the_network_cannot_take_is_refused_in_words(tiny_msd):
    overrides = {"data.patch.shape_voxel": [17, 16, 16], "network.widths": [4, 8, 8]}
    overrides |= {"network.strides": [[2, 2, 2]] * 2, "window.shape_voxel": [16, 16, 16]}
    with pytest.raises(ConfigError, match=r"data\.patch\.shape_voxel \(17, 16, 16\) must be a multiple of \(4, 4, 4\)"):
        make_plan(voxelocity.open(tiny_msd), device="cpu", overrides=overrides)


def test_a_csv_gets_its_classes_and_channels_from_the_files(tmp_path, tiny_scan):
    for index in range(2):
        image, label = tiny_scan(index)
        nib.save(nib.Nifti1Image(np.stack([image, image], axis=-1), np.eye(4)), tmp_path / f"i{index}.nii.gz")
        nib.save(nib.Nifti1Image((label * 100).astype(np.int16), np.eye(4)), tmp_path / f"l{index}.nii.gz")
    rows = "".join(f"i{index}.nii.gz,l{index}.nii.gz\n" for index in range(2))
    (tmp_path / "cases.csv").write_text("image,label\n" + rows)
    cases = make_plan(voxelocity.open(tmp_path / "cases.csv"), device="cpu").cases
    assert cases.label_values == (0, 100, 200)
    assert cases.class_names == ("background", "label_100", "label_200")
    assert cases.channels == ("channel_0", "channel_1")


def test_a_case_with_another_number_of_channels_is_named(tmp_path, tiny_msd, tiny_scan):
    root = shutil.copytree(tiny_msd, tmp_path / "set")
    image, _ = tiny_scan(3)
    nib.save(nib.Nifti1Image(np.stack([image, image], axis=-1), np.eye(4)), root / "imagesTr" / "case_3.nii.gz")
    with pytest.raises(ScanError, match=r"case 'case_3' holds 2 channels .*case_3\.nii\.gz.*, the data set 1 \(MRI\)"):
        make_plan(voxelocity.open(root), device="cpu")


def test_a_declaration_that_contradicts_the_files_is_refused(tmp_path, tiny_msd):
    root = shutil.copytree(tiny_msd, tmp_path / "set")
    description = json.loads((root / "dataset.json").read_text())
    description["modality"] = {"0": "T1", "1": "T2"}
    (root / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=r"declares 2 channels \(T1, T2\), but case 'case_0' holds 1"):
        make_plan(voxelocity.open(root), device="cpu")
