"""nnU-Net folders: agreement with the labels of nnU-Net's own predictor, and seconds of both, files to files.

    python benchmarks/nnunet_folder.py [--work FOLDER] [--repeats 5] [--only "40 scans"] [--train-only]

Trains a small nnU-Net of each scenario with nnU-Net's own trainer, where FOLDER does not have it yet (a training that
was interrupted continues), and predicts the held-out cases with both, alternating. Writes
`benchmarks/results/nnunet_folder.json`, or `nnunet_folder_NAME.json` for one of them.
"""

from __future__ import annotations

import csv
import importlib.machinery
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from harness import alternate, differing_voxels, head, parser_of, real_data, write_record
from voxelocity.core.records import PREDICTIONS_TABLE
from voxelocity.core.volume import Array
from voxelocity.infer.pending import STAGES
from voxelocity_observe.core.clock import Stopwatch

_CONFIGURATION, _PLANS = "3d_fullres", "nnUNetPlans"
_ENDING = ".nii.gz"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A data set, the network trained on it, and the cases that are predicted."""

    name: str
    dataset_id: int
    patch: tuple[int, int, int]
    folds: tuple[int | str, ...] = ("all",)
    num_train: int = 12
    num_test: int = 6
    num_epochs: int = 6
    spacing: tuple[float, float, float] | None = None
    is_residual: bool = False
    has_regions: bool = False
    thick_axis: int = -1
    sides: tuple[int, int] = (64, 84)


SCENARIOS = (
    # Real MR; the mean of two folds, no resampling, windows smaller than the scans.
    Scenario(name="hippocampus", dataset_id=401, patch=(24, 32, 24), folds=(0, 1)),
    # Overlapping classes, a residual encoder, resampling on all axes.
    Scenario(
        name="regions", dataset_id=402, patch=(24, 32, 24), spacing=(1.3, 0.9, 1.2), is_residual=True, has_regions=True
    ),
    # CT with slices of 5 mm, which nnU-Net resamples slice by slice.
    Scenario(name="thick slices", dataset_id=403, patch=(8, 48, 40), thick_axis=2),
    # The same with coronal slices, which nnU-Net brings to the front.
    Scenario(name="coronal slices", dataset_id=404, patch=(8, 40, 48), thick_axis=1),
    # A folder of small scans, where everything around the network counts.
    Scenario(name="40 scans", dataset_id=405, patch=(40, 56, 40), num_test=40),
)


def make_phantom(
    number: int, thick_axis: int, sides: tuple[int, int], rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Three organs of their own intensities in noise, air around, and an empty border: image, label and spacing."""
    shape = rng.integers(*sides, 3)
    spacing = rng.uniform(0.8, 1.2, 3)
    if thick_axis < 3:
        shape[thick_axis], spacing[thick_axis] = rng.integers(18, 26), rng.uniform(3.5, 5.5)
    places = np.stack(np.meshgrid(*(np.linspace(-1, 1, int(n)) for n in shape), indexing="ij"))
    image, label = np.full(shape, -1000.0), np.zeros(shape, np.uint8)
    body = np.sum((places / 0.9) ** 2, axis=0) < 1
    image[body] = 0.0
    for value, intensity in ((1, 60.0), (2, 130.0), (3, 260.0)):
        center, radius = rng.uniform(-0.4, 0.4, 3), rng.uniform(0.2, 0.45, 3)
        inside = np.sum(((places.T - center) / radius).T ** 2, axis=0) < 1
        image[inside], label[inside] = intensity, value
    image = np.round(image + rng.normal(0, 20, shape)).astype(np.int16)
    if number % 2:
        image[:4], image[:, -3:], label[:4], label[:, -3:] = 0, 0, 0, 0
    return image, label, spacing


def write_dataset(scenario: Scenario, raw: Path) -> None:
    """The data set in nnU-Net's layout: training cases, and the others in `imagesTs` and `labelsTs`."""
    folder = raw / f"Dataset{scenario.dataset_id}_small"
    if (folder / "dataset.json").exists():
        return
    for part in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    labels: dict[str, Any] = {"background": 0, "liver": 1, "kidney": 2, "bone": 3}
    source = real_data() / "hippocampus"
    rng = np.random.default_rng(scenario.dataset_id)
    files = sorted((source / "imagesTr").glob("*.nii.gz")) if scenario.thick_axis < 0 else []
    for number in range(scenario.num_train + scenario.num_test):
        end = "Tr" if number < scenario.num_train else "Ts"
        image = folder / f"images{end}" / f"case_{number:03d}_0000{_ENDING}"
        label = folder / f"labels{end}" / f"case_{number:03d}{_ENDING}"
        if files:
            shutil.copy(files[number], image)
            shutil.copy(source / "labelsTr" / files[number].name, label)
            continue
        voxels, classes, spacing = make_phantom(number, scenario.thick_axis, scenario.sides, rng)
        affine = np.diag([*spacing, 1.0])
        nib.save(nib.Nifti1Image(voxels, affine), image)
        nib.save(nib.Nifti1Image(classes, affine), label)
    description: dict[str, Any] = {"numTraining": scenario.num_train, "file_ending": _ENDING}
    description["channel_names"] = {"0": "MRI" if files else "CT"}
    if files:
        labels = {"background": 0, "anterior": 1, "posterior": 2}
    if scenario.has_regions:
        labels = {"background": 0, "hippocampus": [1, 2], "posterior": [2]}
        description["regions_class_order"] = [1, 2]
    (folder / "dataset.json").write_text(json.dumps(description | {"labels": labels}))


def plan(scenario: Scenario, preprocessed: Path) -> None:
    """Plans and preprocesses as nnU-Net does, then makes patch and network small enough for a CPU."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    os.environ.update(nnUNet_n_proc_DA="1")
    folder = preprocessed / f"Dataset{scenario.dataset_id}_small"
    if (folder / "gt_segmentations").is_dir():
        return
    api.extract_fingerprints([scenario.dataset_id], num_processes=1, show_progress_bar=False)
    api.plan_experiments([scenario.dataset_id], overwrite_target_spacing=scenario.spacing)
    path = folder / f"{_PLANS}.json"
    plans = json.loads(path.read_text())
    chosen = plans["configurations"][_CONFIGURATION]
    chosen |= {"patch_size": list(scenario.patch), "batch_size": 2}
    kernel, depth = [[3, 3, 3]] * 3, "n_blocks_per_stage" if scenario.is_residual else "n_conv_per_stage"
    if scenario.thick_axis >= 0:
        kernel = [[1, 3, 3], [3, 3, 3], [3, 3, 3]]
    strides = [[1, 1, 1], [1, 2, 2] if scenario.thick_axis >= 0 else [2, 2, 2], [2, 2, 2]]
    architecture = chosen["architecture"]["arch_kwargs"]
    architecture.pop("n_conv_per_stage")
    architecture |= {"n_stages": 3, "features_per_stage": [8, 16, 32], "kernel_sizes": kernel, "strides": strides}
    architecture |= {depth: [1, 2, 2], "n_conv_per_stage_decoder": [1, 2]}
    if scenario.is_residual:
        chosen["architecture"]["network_class_name"] = (
            "dynamic_network_architectures.architectures.unet.ResidualEncoderUNet"
        )
    path.write_text(json.dumps(plans))
    names = [f"case_{number:03d}" for number in range(scenario.num_train)]
    splits = [{"train": [*names[:k], *names[k + 2 :]], "val": names[k : k + 2]} for k in (0, 2)]
    (folder / "splits_final.json").write_text(json.dumps(splits))
    api.preprocess([scenario.dataset_id], configurations=[_CONFIGURATION], num_processes=[1])


def train(scenario: Scenario, preprocessed: Path, results: Path) -> Path:
    """The results folder, trained by nnU-Net's own trainer."""
    import torch
    from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoDA import nnUNetTrainerNoDA

    # The predictor finds the class that made a checkpoint by its name; the search for this one needs no timm.
    trainer_class = type("nnUNetTrainer", (nnUNetTrainerNoDA,), {})
    source = preprocessed / f"Dataset{scenario.dataset_id}_small"
    folder = results / source.name / f"nnUNetTrainer__{_PLANS}__{_CONFIGURATION}"
    description = json.loads((source / "dataset.json").read_text())
    for fold in scenario.folds:
        here = folder / f"fold_{fold}"
        if (here / "checkpoint_final.pth").exists():
            continue
        begun = here / "checkpoint_latest.pth"
        plans = json.loads((source / f"{_PLANS}.json").read_text()) | {"continue_training": begun.exists()}
        # Without worker processes, a small training starts at once.
        os.environ.update(nnUNet_n_proc_DA="0")
        torch.manual_seed(0)
        trainer = trainer_class(plans, _CONFIGURATION, fold, description, device=torch.device("cpu"))
        trainer.num_epochs, trainer.save_every = scenario.num_epochs, 1
        trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 100, 1
        trainer.initialize()
        if begun.exists():
            trainer.load_checkpoint(str(begun))
        trainer.run_training()
        if scenario.thick_axis >= 0:
            # Trained without augmentation, nnU-Net does not mirror; the models that people have do, and phantoms have
            # no sides.
            trainer.inference_allowed_mirroring_axes = (0, 1, 2)
        trainer.save_checkpoint(str(here / "checkpoint_final.pth"))
    return folder


def compare(folder: Path, images: Path, work: Path, *, repeats: int, num_cases: int) -> dict[str, Any]:
    """Predicts with both, alternating; agreement of labels case by case, seconds of all cases, and of our stages."""
    scans = sorted(images.iterdir())[:num_cases]
    stages: list[dict[str, float]] = []
    theirs, ours = work / "nnunet", work / "voxelocity"

    def seconds_of(predict: Callable[[Path, list[Path], Path], None], out: Path) -> float:
        shutil.rmtree(out, ignore_errors=True)
        watch = Stopwatch()
        predict(folder, scans, out)
        seconds = watch.elapsed_s
        if out == ours:
            stages.append(_stage_seconds(ours / PREDICTIONS_TABLE))
        return seconds

    sides = {
        "nnunet": partial(seconds_of, predict_nnunet, theirs), "voxelocity": partial(seconds_of, predict_ours, ours)
    }  # fmt: skip
    # The first round warms up both.
    timed = alternate(sides, max(1, repeats), warm_ups=1 if repeats else 0)
    cases, agreements = [], []
    for scan in scans:
        case = scan.name.removesuffix(f"_0000{_ENDING}")
        share, different, num = differing_voxels(*(out / f"{case}{_ENDING}" for out in (theirs, ours)))
        agreements.append(1.0 - share)
        cases.append({"case": case, "foreground_voxels": num, "different_voxels": different})
    return {
        "num_cases": len(scans),
        "lowest_agreement": min(agreements),
        "cases": cases,
        "seconds": timed,
        "median_s": {name: statistics.median(values) for name, values in timed.items()},
        # Stages of different scans overlap.
        "stage_s": stages[-len(timed["voxelocity"]) :],
    }


def _stage_seconds(table: Path) -> dict[str, float]:
    """Seconds of all scans in each stage, from `predictions.csv`."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [f"{stage}_s" for stage in (*STAGES, "write")]
    return {name: sum(float(row[name]) for row in rows) for name in names}


def predict_nnunet(folder: Path, scans: list[Path], out: Path, *, first: Path | None = None) -> None:
    """nnU-Net's predictor in this process: for few small cases, starting its worker processes would take longer.

    `first` has the predictions of the first network of a cascade.
    """
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    out.mkdir(parents=True)
    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    folds = sorted(int(path.name[5:]) if path.name != "fold_all" else "all" for path in folder.glob("fold_*"))
    predictor.initialize_from_trained_model_folder(str(folder), tuple(folds))
    predictor.predict_from_files_sequential(
        [[str(scan)] for scan in scans],
        _names_of(scans, out),
        folder_with_segs_from_prev_stage=None if first is None else str(first),
    )


def _names_of(scans: list[Path], out: Path) -> list[str]:
    return [str(out / scan.name.removesuffix(f"_0000{_ENDING}")) for scan in scans]


def predict_ours(folder: Path, scans: list[Path], out: Path, *, float16_sums: bool = False) -> None:
    import torch

    from voxelocity.infer import predict_files

    predict_files(
        folder,
        scans,
        out,
        device=torch.device("cpu"),
        num_threads=os.cpu_count() or 1,
        float16_sums=float16_sums,
        postprocess=False,
    )


def _do_without_sklearn() -> None:
    """nnU-Net's trainers import it only to draw folds, which `plan` writes."""
    if importlib.util.find_spec("sklearn") is None:
        module = types.ModuleType("sklearn")
        vars(module).update(KFold=None, __spec__=importlib.machinery.ModuleSpec("sklearn", None))
        sys.modules["sklearn"] = sys.modules["sklearn.model_selection"] = module


def measure(work: Path, *, repeats: int, num_cases: int, only: str, train_only: bool) -> dict[str, Any]:
    places = {name: work / name for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}
    os.environ.update({name: str(place) for name, place in places.items()})
    _do_without_sklearn()
    raw, preprocessed, results = places.values()
    scenarios = {}
    for scenario in (scenario for scenario in SCENARIOS if only in ("", scenario.name)):
        write_dataset(scenario, raw)
        plan(scenario, preprocessed)
        folder = train(scenario, preprocessed, results)
        if not train_only:
            images = raw / f"Dataset{scenario.dataset_id}_small" / "imagesTs"
            most = max(num_cases, scenario.num_test if only else 0)
            scenarios[scenario.name] = compare(folder, images, work, repeats=repeats, num_cases=most)
            print(scenario.name, json.dumps(scenarios[scenario.name], indent=1))
    return scenarios


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--work", type=Path, help="folder that keeps data and networks; a temporary one if not given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", type=int, default=6, help="predicted of each scenario")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], default="")
    parser.add_argument("--train-only", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="nnunetv2")
    only = f" --only '{options.only}'" if options.only else ""
    record = head("nnunet_folder", f"--repeats {options.repeats} --cases {options.cases}{only}")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        scenarios = measure(
            work,
            repeats=options.repeats,
            num_cases=options.cases,
            only=options.only,
            train_only=options.train_only,
        )
    if scenarios:
        name = "_".join(["nnunet_folder", *options.only.split()])
        write_record(record | {"repeats": options.repeats, "scenarios": scenarios}, name, out=options.out)


if __name__ == "__main__":
    main()
