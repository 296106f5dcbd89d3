"""nnU-Net's models beyond one 3-D network: planes, cascades, archives, parts, sums in float16, postprocessing."""

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from infer.models.nnunet_reference import labels_as_nnunet, logits_as_nnunet, mean_as_nnunet
from infer.models.test_nnunet import (
    ARCHITECTURE,
    CLASSES,
    CPU,
    FLAT,
    LABELS,
    REGIONS,
    labels_of,
    phantom,
    plans,
    save,
    trained,
)
from infer.models.test_nnunet_labels import as_batchgenerators
from scipy.ndimage import binary_fill_holes

from voxelocity.infer import Predictor, open_model
from voxelocity.infer.memory import model_memory, scan_memory
from voxelocity.infer.model import placed
from voxelocity.infer.models.nnunet_sums import with_float16_sums
from voxelocity.infer.models.open import open_models
from voxelocity.infer.window_config import FLOAT16_SUMS
from voxelocity_observe.core.errors import InputError

PLANAR = {
    "patch_size": [16, 12],
    "spacing": [1.0, 1.2],
    "architecture": {"network_class_name": f"{CLASSES}PlainConvUNet", "arch_kwargs": FLAT},
}
NAMES = "nnUNetTrainer__nnUNetPlans__"


def agreement(found, expected):
    foreground = (found > 0) | (expected > 0)
    assert foreground.sum() > 500
    return 1.0 - (found != expected).sum() / foreground.sum()


def planar(folder, **options):
    described = plans(configuration={**PLANAR, **options.pop("changes", {})})
    network = {"architecture": described["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]}
    checkpoint = {"inference_allowed_mirroring_axes": (0, 1), "network": network, **options}
    return save(folder, described=described, **checkpoint)


def test_a_network_of_planes_has_windows_of_one_plane_and_keeps_the_distance_of_slices(tmp_path):
    model = open_model(planar(tmp_path / "m"))
    window = model.spec.window
    assert (window.shape_voxel, window.mirror_axes) == ((1, 16, 12), (1, 2))
    scan = phantom()
    prepared = model.preparation(scan)
    # Three planes are empty along x, the last axis of nnU-Net's.
    assert prepared.grid.shape == (14, round(26 * 1.3), round(27 * 0.9 / 1.2))
    assert prepared.grid.spacing_mm[0] == pytest.approx(4.0)


@pytest.mark.parametrize("blocks", [False, True])
def test_labels_of_planes_are_nnunets(tmp_path, blocks):
    architecture = dict(FLAT)
    if blocks:
        architecture["n_blocks_per_stage"] = architecture.pop("n_conv_per_stage")
    name = f"{CLASSES}{'ResidualEncoderUNet' if blocks else 'PlainConvUNet'}"
    changes = {"architecture": {"network_class_name": name, "arch_kwargs": architecture}}
    folder, scan = planar(tmp_path / "m", changes=changes), phantom()
    network = trained(seed=0, num_classes=3, architecture=architecture)
    expected = labels_as_nnunet([network], open_model(folder).preparation(scan), (16, 12), (0, 1), thick=0)
    assert agreement(labels_of(open_model(folder), scan), expected) > 0.99
    assert agreement(labels_of(open_models([folder], float16_sums=True), scan), expected) > 0.999


def test_plans_of_planes_before_2_3_are_understood(tmp_path):
    earlier = {
        **PLANAR,
        "UNet_class_name": "PlainConvUNet",
        "UNet_base_num_features": 4,
        "unet_max_num_features": 6,
        "n_conv_per_stage_encoder": FLAT["n_conv_per_stage"],
        "n_conv_per_stage_decoder": FLAT["n_conv_per_stage_decoder"],
        "conv_kernel_sizes": FLAT["kernel_sizes"],
        "pool_op_kernel_sizes": FLAT["strides"],
        "architecture": None,
    }
    network = {"architecture": {**FLAT, "features_per_stage": [4, 6, 6]}}
    model = open_model(
        save(
            tmp_path / "m",
            described=plans(configuration=earlier),
            network=network,
            inference_allowed_mirroring_axes=None,
        )
    )
    image = torch.rand(2, 1, 1, 16, 12)
    assert torch.equal(model.network(image), trained(seed=0, num_classes=3, **network)(image))


@pytest.mark.parametrize(
    ("changes", "options", "thick"),
    [
        ({}, {}, 0),
        ({}, {"folds": (0, 1, 2)}, 0),
        ({"configuration": {"spacing": [2.0, 1.1, 1.2]}}, {"labels": REGIONS, "order": [1, 2]}, 0),
        ({"configuration": {"spacing": [4.0, 1.3, 0.9]}}, {}, None),
    ],
    ids=["thick slices", "folds", "regions", "not resampled"],
)
def test_with_float16_sums_labels_are_nnunets_to_a_few_voxels(tmp_path, changes, options, thick):
    folder, scan = save(tmp_path / "m", described=plans(**changes), **options), phantom()
    num = len(options.get("order") or range(3))
    networks = [trained(seed=fold, num_classes=num) for fold in options.get("folds", (0,))]
    model = open_models([folder], float16_sums=True)
    assert model.spec.window.blend == FLOAT16_SUMS
    volume = model.preparation(scan)
    expected = labels_as_nnunet(networks, volume, (8, 16, 12), (0, 2), order=options.get("order", ()), thick=thick)
    assert agreement(labels_of(model, scan), expected) > 0.9995


def test_float16_sums_are_those_of_nnunets_models_alone(tmp_path):
    model = open_model(save(tmp_path / "m"))
    window = model.spec.window.model_copy(update={"blend": "gaussian"})
    other = replace(model, spec=model.spec.model_copy(update={"window": window}))
    with pytest.raises(InputError, match=r"is not a model of nnU-Net, .* leave --float16-sums out"):
        with_float16_sums(other)


def cascade(folder, *, folds=(0,), **changes):
    described = plans()
    configurations = described["configurations"]
    configurations["3d_lowres"] = {"inherits_from": "3d_fullres", "spacing": [4.5, 1.9, 1.7]}
    configurations["3d_cascade_fullres"] = {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres", **changes}
    first = save(folder / f"{NAMES}3d_lowres", described=described, configuration="3d_lowres", folds=folds)
    second = save(
        folder / f"{NAMES}3d_cascade_fullres",
        described=described,
        configuration="3d_cascade_fullres",
        folds=folds,
        network={"num_channels": 3},
    )
    return first, second


def test_the_second_network_of_a_cascade_sees_the_classes_of_the_first(tmp_path):
    first, second = cascade(tmp_path)
    scan, model = phantom(), open_model(second)
    assert model.spec.channels == ("CT",)
    prepared = placed(model.preparation, CPU)(scan)
    found = labels_of(open_model(first), scan)
    # As nnU-Net's preprocessor brings a label there: turned, cropped with the image, -1 outside, resampled.
    image, label = scan.image[0].T, found.T.astype(np.int16)
    inside = binary_fill_holes(image != 0)
    box = tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in np.nonzero(inside))
    label = label[box]
    label[(label == 0) & ~inside[box]] = -1
    # Slices of 4 mm are resampled one by one, and then the nearest is taken.
    planes = np.stack([as_batchgenerators(plane[None], (1, *prepared.grid.shape[1:]))[0] for plane in label])
    num = prepared.grid.shape[0]
    nearest = np.clip(np.round(len(label) / num * (np.arange(num) + 0.5) - 0.5), 0, len(label) - 1).astype(int)
    expected = planes[nearest]
    for channel, value in zip(prepared.image[1:], (1, 2), strict=True):
        assert channel.any()
        assert np.array_equal(channel, expected == value)
    network = trained(seed=0, num_classes=3, num_channels=3)
    labels = labels_as_nnunet([network], prepared, (8, 16, 12), (0, 2), thick=0)
    assert agreement(labels_of(open_models([second], float16_sums=False), scan), labels) > 0.99


def test_a_cascade_uses_the_same_fold_of_its_first_network_or_all(tmp_path):
    _, second = cascade(tmp_path, folds=(0, 1))
    one, both = open_model(second / "fold_1"), open_model(second)
    assert one.preparation.earlier.folder.parts[-2:] == (f"{NAMES}3d_lowres", "fold_1")
    assert len(both.preparation.earlier.network.networks) == 2
    # Folds share the preparation: the first network runs once.
    assert both.describe_prepared().num_channels == 3
    assert one.preparation.fingerprint() != both.preparation.fingerprint()


@pytest.mark.parametrize("name", [".", "fold_0"])
def test_a_cascade_is_found_from_within_its_folder(name, tmp_path, monkeypatch):
    first, second = cascade(tmp_path)
    monkeypatch.chdir(second)
    assert open_model(Path(name)).preparation.earlier.folder == first / "fold_0"


def test_a_cascade_without_its_first_network_names_the_folder_that_is_missing(tmp_path):
    first, second = cascade(tmp_path)
    first.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"{re.escape(str(first))}, the results folder of 3d_lowres, is missing"):
        open_model(second)


def test_a_cascade_of_three_is_refused(tmp_path):
    described = plans()
    for name in ("3d_lowres", "3d_cascade_fullres"):
        described["configurations"][name] = {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"}
    for name in ("3d_lowres", "3d_cascade_fullres"):
        save(tmp_path / f"{NAMES}{name}", described=described, configuration=name, network={"num_channels": 3})
    with pytest.raises(InputError, match="3d_lowres is itself the second network of a cascade"):
        open_model(tmp_path / f"{NAMES}3d_cascade_fullres")


def test_the_passes_of_both_networks_of_a_cascade_are_counted(tmp_path):
    _, second = cascade(tmp_path)
    scan, model, calls = phantom(), open_model(second), []
    # Nothing is cropped, so that headers say how many windows there are.
    scan = scan.with_(image=np.where(scan.image == 0, 1, scan.image))
    predictor = Predictor(
        model.network, model.spec, model.preparation, device=CPU, on_windows=lambda: calls.append("pass")
    )
    predictor.predict(scan)
    earlier = model.preparation.earlier
    first = scan_memory(scan.spec, earlier.spec, earlier.preparation).num_passes
    assert 0 < first < len(calls) == model_memory(scan.spec, model).num_passes


@pytest.mark.parametrize(("labels", "order"), [(LABELS, None), (REGIONS, [1, 2])], ids=["exclusive", "overlapping"])
def test_configurations_are_averaged_on_the_grid_of_the_scan(tmp_path, voxelocity, labels, order):
    options = {"labels": labels, "order": order}
    folders = [planar(tmp_path / "flat", **options), save(tmp_path / "full", **options)]
    scan, out, num = phantom(), tmp_path / "out", len(order or labels)
    nib.save(nib.Nifti1Image(scan.image[0], scan.grid.matrix), tmp_path / "x.nii.gz")
    words = ("--device", "cpu", "--no-page", "--probabilities", "--float16-sums")
    done = voxelocity("predict", *folders, tmp_path / "x.nii.gz", "-o", out, *words)
    assert done.status == 0, done.err
    kinds = ((FLAT, (16, 12), (0, 1)), (ARCHITECTURE, (8, 16, 12), (0, 2)))
    members = [
        logits_as_nnunet(
            [trained(seed=0, num_classes=num, architecture=architecture)],
            open_model(folder).preparation(scan), patch, axes, thick=0,
        )
        for folder, (architecture, patch, axes) in zip(folders, kinds, strict=True)
    ]  # fmt: skip
    expected = mean_as_nnunet(members, order=order or ())
    found = np.asarray(nib.load(out / "x.nii.gz").dataobj)
    assert agreement(found, expected) > 0.999
    alone = [mean_as_nnunet([member], order=order or ()) for member in members]
    assert all(agreement(expected, labels) < 0.99 for labels in alone)
    probabilities = nib.load(out / "probabilities" / "x.nii.gz").get_fdata()
    assert probabilities.shape == (*scan.grid.shape, num)
    # Halves and equal ones are rounded to a byte.
    largest = probabilities.argmax(axis=-1) if order is None else (probabilities > 0.5).max(axis=-1) > 0
    assert (largest == (found if order is None else found > 0)).mean() > 0.99


def test_a_cascade_and_another_model_of_its_windows_are_averaged_by_probabilities(tmp_path):
    _, second = cascade(tmp_path)
    model = open_models([save(tmp_path / f"{NAMES}3d_fullres"), second])
    assert model.is_average
    assert [part.describe_prepared().num_channels for part in model.parts] == [1, 3]


def archived(path, *folders, root):
    """As `nnUNetv2_export_model_to_zip` writes them: names from nnUNet_results on, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(root))
            archive.writestr(f"{folder.relative_to(root)}/fold_0/progress.png", b"not read")
    return path


def test_an_archive_is_the_model_in_it(tmp_path, voxelocity):
    data_set = tmp_path / "Dataset001_x"
    folder = save(data_set / f"{NAMES}3d_fullres", folds=(0, 1))
    path, scan = archived(tmp_path / "x.zip", folder, root=tmp_path), phantom()
    nib.save(nib.Nifti1Image(scan.image[0], scan.grid.matrix), tmp_path / "x.nii.gz")
    for model, same in ((path, folder), (path / "fold_1", folder / "fold_1")):
        done = voxelocity("predict", model, tmp_path / "x.nii.gz", "-o", tmp_path / "out", "--overwrite", "--no-page")
        assert done.status == 0, done.err
        written = np.asarray(nib.load(tmp_path / "out" / "x.nii.gz").dataobj)
        assert np.array_equal(written, labels_of(open_model(same), scan))


def test_of_several_models_in_an_archive_one_is_named_and_a_cascade_finds_its_first(tmp_path):
    first, second = cascade(tmp_path / "Dataset001_x")
    path = archived(tmp_path / "x.zip", first, second, root=tmp_path)
    with pytest.raises(InputError, match=f"holds the models {first.name}, {second.name}; name one as .*x.zip/MODEL"):
        open_model(path)
    model = open_model(path / second.name)
    image = torch.rand(1, 3, 8, 16, 12)
    assert torch.equal(model.network(image), open_model(second).network(image))
    assert open_model(path / "Dataset001_x" / first.name).spec.channels == ("CT",)


def test_names_in_an_archive_lead_nowhere(tmp_path):
    folder = save(tmp_path / "d" / f"{NAMES}3d_fullres")
    path = archived(tmp_path / "x.zip", folder, root=tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("../{}/plans.json", "/{}/../../plans.json", "d/{}/../plans.json", "..\\{}\\plans.json"):
            archive.writestr(name.format(folder.name), "{}")
    before = sorted(tmp_path.rglob("*"))
    open_model(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plans.json", b" " * (65 << 20), "has 65.* unpacked from .*, more than any model file"),
        ("fold_0/checkpoint_final.pth", b"\0" * (65 << 20), "more than any model file"),
    ],
)
def test_files_that_swell_are_not_unpacked(tmp_path, name, content, message):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for other, text in {"plans.json": json.dumps(plans()), name: content}.items():
            archive.writestr(f"{NAMES}3d_fullres/{other}", text)
    with pytest.raises(InputError, match=message):
        open_model(tmp_path / "x.zip")


def test_an_archive_that_is_none_or_holds_no_model_is_named(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"not an archive")
    with pytest.raises(InputError, match=r"x\.zip is damaged .*; copy the archive again"):
        open_model(tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/plans.json", "{}")
    with pytest.raises(InputError, match=r"x\.zip holds no model of nnU-Net v2"):
        open_model(tmp_path / "x.zip")


def found(folder, functions, arguments, folds="0"):
    place = folder / f"crossval_results_folds_{folds}"
    place.mkdir()
    values = {"postprocessing_fns": functions, "postprocessing_kwargs": arguments, "postprocessed": {}}
    (place / "postprocessing.json").write_text(json.dumps(values))
    return folder


KEEP = "remove_all_but_largest_component_from_segmentation"


def test_what_a_cross_validation_found_is_done_for_its_folds(tmp_path):
    arguments = [{"labels_or_regions": [1, 2]}, {"labels_or_regions": 2}]
    folder = found(save(tmp_path / "m", folds=(0, 1)), [KEEP, KEEP], arguments, folds="0_1")
    spec = open_model(folder).spec
    assert spec.keep_largest == (("liver", "spleen"), "spleen")
    assert spec.kept_components == ((1, 2), (2,))
    assert open_model(folder / "fold_0").spec.keep_largest == ()


def test_postprocessing_that_is_code_or_unknown_is_left_out_and_said(tmp_path):
    folder = save(tmp_path / "m")
    place = folder / "crossval_results_folds_0"
    place.mkdir()
    (place / "postprocessing.pkl").write_bytes(b"cos\nabort\n(tR.")
    assert "postprocessing.pkl without postprocessing.json: the first is code" in open_model(folder).doubts[0]
    other = found(save(tmp_path / "n"), ["mine", KEEP], [{}, {"labels_or_regions": 7}])
    doubts = open_model(other).doubts
    assert "asks for 'mine'" in doubts[0]
    assert "with {'labels_or_regions': 7}, which is not applied" in doubts[1]


def parts(root, *, labels=None):
    """Two parts, with classes of their own, as TotalSegmentator names its folders."""
    labels = labels or [{"background": 0, "liver": 1, "spleen": 2}, {"background": 0, "aorta": 1}]
    for number, of_part in enumerate(labels, start=1):
        part = root / f"Dataset29{number}_TotalSegmentator_part{number}_organs_15subj"
        facts = {"mean": 40.0 + number, "std": 60.0, "percentile_00_5": -100.0, "percentile_99_5": 220.0}
        described = plans(foreground_intensity_properties_per_channel={"0": facts})
        order = [1, 2] if any(isinstance(value, list) for value in of_part.values()) else None
        results = part / "nnUNetTrainerNoMirroring__nnUNetPlans__3d_fullres"
        save(results, labels=of_part, order=order, described=described)
    return root


def test_parts_of_a_model_are_one_with_the_classes_of_all(tmp_path, voxelocity):
    root, scan = parts(tmp_path / "results"), phantom()
    model = open_model(root)
    assert model.spec.labels == {0: "background", 1: "liver", 2: "spleen", 3: "aorta"}
    first, second = (labels_of(part, scan) for part in model.parts)
    # As TotalSegmentator merges them: later parts over earlier ones.
    expected = np.where(second == 1, 3, first)
    assert {0, 1, 3} <= {*np.unique(expected)}
    nib.save(nib.Nifti1Image(scan.image[0], scan.grid.matrix), tmp_path / "x.nii.gz")
    done = voxelocity("predict", root, tmp_path / "x.nii.gz", "-o", tmp_path / "out", "--device", "cpu")
    assert done.status == 0, done.err
    assert np.array_equal(np.asarray(nib.load(tmp_path / "out" / "x.nii.gz").dataobj), expected)
    row = (tmp_path / "out" / "predictions.csv").read_text()
    assert "aorta_ml" in row
    refused = voxelocity("predict", root, tmp_path / "x.nii.gz", "-o", tmp_path / "p", "--probabilities", "--dry-run")
    assert "is a model in parts, whose probabilities have no common scale" in refused.err


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([{"background": 0, "liver": 1}, {"background": 0, "liver": 1}], "part2_organs_15subj has liver, as a part"),
        ([{"background": 0, "liver": 1}, {"background": 0, "a": [1, 2], "b": [2]}], "has overlapping classes"),
    ],
)
def test_folders_that_are_no_parts_of_one_model_are_refused(tmp_path, labels, message):
    root = parts(tmp_path / "results", labels=labels)
    with pytest.raises(InputError, match=message):
        open_model(root)


def test_a_part_that_is_missing_is_named(tmp_path):
    labels = [{"background": 0, name: 1} for name in "abc"]
    root = parts(tmp_path / "results", labels=labels)
    (root / "Dataset292_TotalSegmentator_part2_organs_15subj").rename(tmp_path / "gone")
    with pytest.raises(InputError, match="lacks a part of TotalSegmentator before Dataset293"):
        open_model(root)
