"""Whole data sets: the files of nnU-Net's preprocessed folder, complete or absent, resumed, and refused in words."""

import io
import json
import os
import pickle
import re

import nibabel as nib
import numpy as np
import pytest
from rich.console import Console

from voxelocity.core.requests.preprocess import PreprocessRequest
from voxelocity.nnunet.preprocess import run, verify
from voxelocity.nnunet.preprocess.run import preprocess
from voxelocity_observe.core.errors import ConfigError, DatasetError, InputError, OutputError, ScanError

from .small_raw import write_plans, write_raw

blosc2 = pytest.importorskip("blosc2", reason="Blosc2")
pytest.importorskip("SimpleITK", reason="SimpleITK, whose view of headers nnU-Net notes")


def call(dataset="901", **options):
    file = io.StringIO()
    found = preprocess(PreprocessRequest(dataset=dataset, **options), console=Console(file=file, width=200))
    return found, file.getvalue()


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_has_the_files_that_nnunet_needs(places):
    raw = write_raw(places / "raw")
    folder = places / "preprocessed" / raw.name
    write_plans(folder)
    _, said = call(threads=2)
    cases = {f"nnUNetPlans_{kind}/case_{n}{end}" for kind in ("2d", "3d_fullres") for n in range(3)
             for end in (".b2nd", "_seg.b2nd", ".pkl")}  # fmt: skip
    truth = {f"gt_segmentations/case_{n}.nii.gz" for n in range(3)}
    described = {"dataset.json", "nnUNetPlans.json", "dataset_fingerprint.json", "voxelocity_made_from.json"}
    assert files_of(folder) == cases | truth | described
    assert "3d_fullres, 2d: 3 cases" in said or "2d, 3d_fullres: 3 cases" in said
    for number in range(3):
        name = f"case_{number}"
        original = raw / "labelsTr" / f"{name}.nii.gz"
        assert (folder / "gt_segmentations" / original.name).read_bytes() == original.read_bytes()
        stored = [
            blosc2.open(str(folder / "nnUNetPlans_3d_fullres" / f"{name}{end}"), mode="r")
            for end in (".b2nd", "_seg.b2nd")
        ]
        image, label = (array[:] for array in stored)
        notes = pickle.loads((folder / "nnUNetPlans_3d_fullres" / f"{name}.pkl").read_bytes())
        assert (image.dtype, label.dtype, image.shape) == (np.float32, np.int16, label.shape)
        assert set(np.unique(label)) == {-1, 0, 1, 2}
        scan = nib.load(raw / "imagesTr" / f"{name}_0000.nii.gz")
        x, y, z = scan.shape
        # The axes of the plans.
        assert notes["shape_before_cropping"] == (z, x, y)
        assert notes["bbox_used_for_cropping"] == [[2, z - 2], [2, x - 2], [2, y - 2]]
        assert notes["spacing"] == pytest.approx([float(n) for n in scan.header.get_zooms()[::-1]])
        assert notes["sitk_stuff"]["origin"] == pytest.approx((-3.0, 7.5, number))
        for value, voxels in notes["class_locations"].items():
            assert len(voxels) > 100
            assert (label[tuple(voxels.T)] == value).all()


def test_a_fingerprint_has_the_facts_of_all_cases(places):
    raw = write_raw(places / "raw", channels=("T1", "T2"))
    folder = places / "preprocessed" / raw.name
    write_plans(folder, channels=("T1", "T2"))
    call(configurations=("3d_fullres",))
    found = json.loads((folder / "dataset_fingerprint.json").read_text())
    assert found["shapes_after_crop"] == [[10, 15, 18 + n] for n in range(3)]
    assert found["spacings"][1] == pytest.approx([2.2, 0.99, 0.88])
    assert found["median_relative_size_after_cropping"] == pytest.approx(10 * 15 * 19 / (14 * 19 * 23))
    inside = [
        nib.load(path).get_fdata()[nib.load(raw / "labelsTr" / f"{path.name[:6]}.nii.gz").get_fdata() > 0]
        for path in sorted((raw / "imagesTr").glob("*_0001.nii.gz"))
    ]
    facts = found["foreground_intensity_properties_per_channel"]["1"]
    values = np.concatenate([np.random.default_rng(0).choice(part, 100_000) for part in inside])
    assert facts["mean"] == pytest.approx(values.mean(), abs=0.5)
    assert facts["std"] == pytest.approx(values.std(), rel=0.02)
    assert (facts["min"], facts["max"]) == (values.min(), values.max())
    assert facts["percentile_00_5"] < facts["median"] < facts["percentile_99_5"]


def test_what_is_made_already_is_kept_and_what_is_missing_is_made(places, monkeypatch):
    raw = write_raw(places / "raw")
    folder = places / "preprocessed" / raw.name
    write_plans(folder)
    stored, first = [], run.store_case

    def store_two(made, place, identifier):
        if len(stored) == 2:
            raise KeyboardInterrupt
        stored.append(identifier)
        first(made, place, identifier)

    monkeypatch.setattr(run, "store_case", store_two)
    with pytest.raises(KeyboardInterrupt):
        call(configurations=("3d_fullres",), threads=1)
    assert not (folder / "nnUNetPlans_3d_fullres").exists(), "nnU-Net finds all cases or none"
    assert len(list((folder / "nnUNetPlans_3d_fullres.unfinished").glob("*.pkl"))) == 2
    stored.clear()
    monkeypatch.setattr(run, "store_case", lambda *given: (stored.append(given[2]), first(*given)))
    _, said = call(configurations=("3d_fullres",), threads=1)
    assert len(stored) == 1
    assert "2 cases of them from a run before" in said
    assert len(list((folder / "nnUNetPlans_3d_fullres").glob("*.pkl"))) == 3
    assert not list(folder.glob("*.unfinished"))
    _, said = call(configurations=("3d_fullres",))
    assert len(stored) == 1
    assert "made from the same files and plans; --overwrite" in said
    call(configurations=("3d_fullres",), overwrite=True)
    assert len(stored) == 4


def test_cases_from_other_plans_are_replaced_only_if_asked_for(places):
    raw = write_raw(places / "raw")
    folder = places / "preprocessed" / raw.name
    write_plans(folder)
    call(configurations=("3d_fullres",))
    write_plans(folder, spacing=(2.0, 2.0, 2.0))
    with pytest.raises(
        OutputError, match=r"nnUNetPlans_3d_fullres is there, made from other files or plans, .* --overwrite"
    ):
        call(configurations=("3d_fullres",))
    call(configurations=("3d_fullres",), overwrite=True)
    shape = blosc2.open(str(folder / "nnUNetPlans_3d_fullres" / "case_0.b2nd"), mode="r").shape
    assert shape == (1, 10, 7, 7)
    assert not list(folder.glob("*.replaced"))


def test_the_cases_of_a_cascade_are_those_of_its_full_resolution(places):
    raw = write_raw(places / "raw", num=1)
    folder = places / "preprocessed" / raw.name
    described = write_plans(folder)
    described["configurations"]["3d_cascade_fullres"] = {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"}
    (folder / "nnUNetPlans.json").write_text(json.dumps(described))
    _, said = call(configurations=("3d_cascade_fullres", "3d_fullres"))
    assert said.count("1 case in") == 1
    for name in ("3d_cascade_fullres", "3d_fullres"):
        _, said = call(configurations=(name,))
        assert f"{name}: {folder / 'nnUNetPlans_3d_fullres'} is there, made from the same files and plans" in said


def test_labels_for_validation_are_those_of_now_even_if_their_files_are_older(places):
    raw = write_raw(places / "raw", num=1)
    folder = places / "preprocessed" / raw.name
    write_plans(folder)
    call(configurations=("2d",))
    path = raw / "labelsTr" / "case_0.nii.gz"
    label = nib.load(path)
    nib.save(nib.Nifti1Image(np.roll(np.asarray(label.dataobj), 1, axis=0), label.affine), path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    call(configurations=("2d",), overwrite=True)
    assert (folder / "gt_segmentations" / path.name).read_bytes() == path.read_bytes()


def test_a_scan_without_thick_slices_is_not_changed_where_its_spacing_is_that_of_the_plan(places):
    raw = write_raw(places / "raw", num=1, channels=("nonorm",), border=0, spacing=(1.0, 1.0, 1.0))
    folder = places / "preprocessed" / raw.name
    write_plans(folder, channels=("nonorm",), spacing=(1.0, 1.0, 1.0), transpose_forward=[0, 1, 2],
                configuration={"normalization_schemes": ["NoNormalization"], "use_mask_for_norm": [False]})  # fmt: skip
    call(configurations=("3d_fullres",))
    image = blosc2.open(str(folder / "nnUNetPlans_3d_fullres" / "case_0.b2nd"), mode="r")[:]
    assert np.array_equal(image[0], nib.load(raw / "imagesTr" / "case_0_0000.nii.gz").get_fdata().T)


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_notes_that_would_run_code_are_refused(tmp_path, capsys):
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps({"spacing": Evil()}))
    with pytest.raises(InputError, match=r"the properties of a case contain builtins.print, which may run code"):
        verify._read(path)
    assert capsys.readouterr().out == ""
    notes = {"spacing": [np.float64(1.5)], "class_locations": {(1, 2): np.zeros((2, 4), np.int64)}}
    path.write_bytes(pickle.dumps(notes))
    assert verify._is_equal(verify._read(path), notes)


REFUSED = {
    "preprocessor": ({"preprocessor_name": "MyPreprocessor"}, "preprocessor_name"),
    "resampling": ({"resampling_fn_seg": "resample_torch_fornnunet"}, "resampling_fn_seg"),
    "scheme": ({"normalization_schemes": ["MyNormalization"]}, "normalization_schemes"),
    "folder": ({"data_identifier": "../elsewhere"}, "data_identifier"),
    "channels": ({"normalization_schemes": ["CTNormalization"] * 2}, "is for 2 channels, and Dataset901_Small has 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plans_that_ask_for_something_else_are_refused_by_name(places, name):
    changes, fact = REFUSED[name]
    raw = write_raw(places / "raw", num=1)
    write_plans(places / "preprocessed" / raw.name, configuration=changes)
    with pytest.raises(InputError, match=re.escape(fact)) as refused:
        call(configurations=("3d_fullres",))
    assert "3d_fullres" in str(refused.value)


def test_plans_of_another_data_set_are_refused(places):
    raw = write_raw(places / "raw", num=1)
    write_plans(places / "preprocessed" / raw.name, dataset_name="Dataset902_Other")
    with pytest.raises(
        InputError, match=r"is of Dataset902_Other, .*; plan Dataset901_Small again with --clean, or take"
    ):
        call()


def test_data_sets_that_cannot_be_used_are_refused_in_words(places, monkeypatch):
    raw = write_raw(places / "raw", num=1)
    folder = places / "preprocessed" / raw.name
    with pytest.raises(DatasetError, match=r"holds no data set '777'; name one of Dataset901_Small"):
        call("777")
    unnumbered = raw.rename(raw.with_name("small"))
    with pytest.raises(DatasetError, match=r"small has no name such as Dataset001_Liver, .*; rename the folder"):
        call(str(unnumbered))
    unnumbered.rename(raw)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"has no plans, which nnU-Net's own planner makes, and nnunetv2 is not"):
        call()
    monkeypatch.undo()
    monkeypatch.setenv("nnUNet_preprocessed", "")
    with pytest.raises(ConfigError, match=r"nnUNet_preprocessed is not set; export nnUNet_preprocessed=FOLDER"):
        call(str(raw))
    monkeypatch.setenv("nnUNet_preprocessed", str(folder.parent))
    monkeypatch.setenv("nnUNet_raw", "")
    with pytest.raises(ConfigError, match=r"nnUNet_raw is not set; .* or name the folder of the data set"):
        call()
    write_plans(folder)
    with pytest.raises(InputError, match=r"has no configuration '3d_lowres'; choose with -c among 3d_fullres, 2d"):
        call(str(raw), configurations=("3d_lowres",))
    path = raw / "labelsTr" / "case_0.nii.gz"
    label = nib.load(path)
    for values, fact in (
        (label.get_fdata()[1:], r"has the shape \(14, 19, 21\), but its image \(14, 19, 22\)"),
        (label.get_fdata() + 0.5, "labels that are not whole numbers"),
        (label.get_fdata() - 3, r"holds labels from -3\.?0? to -1\.?0?; nnU-Net stores 0 to 32767"),
    ):
        nib.save(nib.Nifti1Image(values.astype(np.float32), label.affine), path)
        with pytest.raises(ScanError, match=fact):
            call(str(raw), clean=False, configurations=("2d",))
