"""nnU-Net's models of each kind: agreement with its own predictor, and seconds of both, files to files.

    python benchmarks/nnunet_models.py [--work FOLDER] [--repeats 5] [--only cascade]

Plans are nnU-Net's own, with patches and networks made small enough for a CPU, and nnU-Net's own trainer writes each
folder, with random weights: labels change from voxel to voxel, so more of them are near a tie than with trained ones.
Both predict the same cases, alternating; ours also with sums in float16, as nnU-Net's. Needs nnU-Net with its
dependencies in this Python. Writes `benchmarks/results/nnunet_models.json`; with `--only`, the other kinds stay in it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import alternate, differing_voxels, head, parser_of, write_record
from nnunet_folder import Scenario, predict_nnunet, predict_ours, write_dataset
from voxelocity_observe.core.clock import Stopwatch

_ENDING = ".nii.gz"
_SECOND, _FIRST = "3d_cascade_fullres", "3d_lowres"
_STD = 1.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model, and the data it is planned for.

    Attributes:
        name: of the kind.
        data: the data set: of the hippocampus, or phantoms of CTs.
        configuration: nnU-Net's name of it.
        planner: nnU-Net's class that plans.
        plans: the name that it gives its plans.
        is_archive: whether ours predicts with what `nnUNetv2_export_model_to_zip` wrote.
    """

    name: str
    data: Scenario
    configuration: str
    planner: str = "ExperimentPlanner"
    plans: str = "nnUNetPlans"
    is_archive: bool = False


_HIPPOCAMPUS = Scenario(name="hippocampus", dataset_id=411, patch=(24, 32, 24))
_THICK = Scenario(name="thick slices", dataset_id=412, patch=(8, 48, 40), thick_axis=2, num_test=2)
_RES_ENC = {"planner": "nnUNetPlannerResEncM", "plans": "nnUNetResEncUNetMPlans"}
KINDS = (
    # Real MR, plane by plane.
    Kind(name="2-D", data=_HIPPOCAMPUS, configuration="2d"),
    # CT of thick slices, whose planes are resampled.
    Kind(name="2-D, thick slices", data=_THICK, configuration="2d"),
    Kind(name="3-D, thick slices", data=_THICK, configuration="3d_fullres"),
    Kind(name="ResEnc", data=_HIPPOCAMPUS, configuration="3d_fullres", **_RES_ENC),  # type: ignore[arg-type]
    Kind(name="2-D ResEnc", data=_HIPPOCAMPUS, configuration="2d", **_RES_ENC),  # type: ignore[arg-type]
    Kind(name="low resolution", data=_HIPPOCAMPUS, configuration=_FIRST),
    Kind(name="cascade", data=_HIPPOCAMPUS, configuration=_SECOND),
    Kind(name="archive", data=_HIPPOCAMPUS, configuration="2d", is_archive=True),
)


def plan(kind: Kind, preprocessed: Path) -> None:
    """Plans as nnU-Net does; then patches and networks are made small enough for a CPU."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    number = kind.data.dataset_id
    folder = preprocessed / f"Dataset{number}_small"
    path = folder / f"{kind.plans}.json"
    if path.exists():
        return
    if not (folder / "dataset_fingerprint.json").exists():
        api.extract_fingerprints([number], num_processes=1, show_progress_bar=False)
    api.plan_experiments([number], experiment_planner_class_name=kind.planner)
    plans = json.loads(path.read_text())
    found = plans["configurations"]
    full = found["3d_fullres"]
    # nnU-Net plans these for larger scans only.
    found[_FIRST] = {
        **full,
        "data_identifier": f"{kind.plans}_{_FIRST}",
        "spacing": [1.5 * length for length in full["spacing"]],
        "next_stage": _SECOND,
    }
    found[_SECOND] = {"inherits_from": "3d_fullres", "previous_stage": _FIRST}
    for configuration in found.values():
        if "architecture" in configuration:
            _shrink(configuration, kind.data)
    path.write_text(json.dumps(plans))


def _shrink(configuration: dict[str, Any], data: Scenario) -> None:
    """A patch of the data's size, and three levels of few features; other settings stay the planner's."""
    num_axes = len(configuration["patch_size"])
    is_thick = 0 <= data.thick_axis < 3 and num_axes == 3
    patch = list(data.patch[3 - num_axes :])
    kernels = [[3] * num_axes for _ in range(3)]
    strides = [[1] * num_axes, [2] * num_axes, [2] * num_axes]
    if is_thick:
        kernels[0], strides[1] = [1, 3, 3], [1, 2, 2]
    architecture = configuration["architecture"]["arch_kwargs"]
    depth = "n_blocks_per_stage" if "n_blocks_per_stage" in architecture else "n_conv_per_stage"
    configuration |= {"patch_size": patch, "batch_size": 2 if num_axes == 3 else 12}
    architecture |= {"n_stages": 3, "features_per_stage": [8, 16, 32], "kernel_sizes": kernels, "strides": strides}
    architecture |= {depth: [1, 2, 2], "n_conv_per_stage_decoder": [1, 2]}


def make(kind: Kind, configuration: str, preprocessed: Path, results: Path) -> Path:
    """The results folder of a configuration, written by nnU-Net's own trainer; with random weights.

    The last layer's are enlarged, so that every class is the largest somewhere.
    """
    import torch
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    source = preprocessed / f"Dataset{kind.data.dataset_id}_small"
    folder = results / source.name / f"nnUNetTrainer__{kind.plans}__{configuration}"
    path = folder / "fold_all" / "checkpoint_final.pth"
    if path.exists():
        return folder
    path.parent.mkdir(parents=True, exist_ok=True)
    plans = json.loads((source / f"{kind.plans}.json").read_text()) | {"continue_training": False}
    description = json.loads((source / "dataset.json").read_text())
    torch.manual_seed(0)
    trainer = nnUNetTrainer(plans, configuration, "all", description, device=torch.device("cpu"))
    # It looks at the names of preprocessed cases, which random weights do not need.
    cases = Path(trainer.preprocessed_dataset_folder)
    cases.mkdir(exist_ok=True)
    (cases / "none.b2nd").touch()
    trainer.initialize()
    for layer in trainer.network.decoder.seg_layers:
        torch.nn.init.normal_(layer.weight, std=_STD)
    num_axes = len(trainer.configuration_manager.patch_size)
    trainer.inference_allowed_mirroring_axes = tuple(range(num_axes))
    # As at the start of a training.
    (folder / "plans.json").write_text(json.dumps(plans))
    (folder / "dataset.json").write_text(json.dumps(description))
    trainer.save_checkpoint(str(path))
    return folder


def export(folder: Path, kind: Kind, out: Path) -> Path:
    """The archive that nnU-Net writes of a results folder."""
    from nnunetv2.model_sharing.model_export import export_pretrained_model

    for name in ("progress.png", "validation/summary.json"):
        path = folder / "fold_all" / name
        path.parent.mkdir(exist_ok=True)
        # Short trainings lack what the export also packs.
        path.touch()
    if not (folder / "dataset_fingerprint.json").exists():
        (folder / "dataset_fingerprint.json").write_text("{}")
    export_pretrained_model(
        kind.data.dataset_id, str(out), (kind.configuration,), plans_identifier=kind.plans, folds=("all",)
    )
    return out


def compare(kind: Kind, folder: Path, images: Path, work: Path, *, repeats: int) -> dict[str, Any]:
    """Predicts with nnU-Net and with ours, twice, alternating; agreement of labels case by case, and seconds."""
    scans = sorted(images.iterdir())
    outs = {name: work / name for name in ("nnunet", "voxelocity", "voxelocity float16")}
    named = export(folder, kind, work / "model.zip") if kind.is_archive else folder

    def theirs() -> None:
        first = None
        if kind.configuration == _SECOND:
            first = work / "first"
            shutil.rmtree(first, ignore_errors=True)
            predict_nnunet(folder.with_name(folder.name.replace(_SECOND, _FIRST)), scans, first)
        predict_nnunet(folder, scans, outs["nnunet"], first=first)

    sides: dict[str, Callable[[], None]] = {
        "nnunet": theirs,
        "voxelocity": partial(predict_ours, named, scans, outs["voxelocity"]),
        "voxelocity float16": partial(predict_ours, named, scans, outs["voxelocity float16"], float16_sums=True),
    }
    timed = {name: partial(_seconds_of, sides[name], outs[name]) for name in sides}
    seconds = alternate(timed, repeats, warm_ups=1)
    found: dict[str, Any] = {"data": kind.data.name, "configuration": kind.configuration, "num_cases": len(scans)}
    for name in ("voxelocity", "voxelocity float16"):
        cases = [_agreement(scan, outs["nnunet"], outs[name]) for scan in scans]
        found[name] = {"lowest_agreement": min(case["agreement"] for case in cases), "cases": cases}
    return {
        **found,
        "seconds": {name: [wall_s for wall_s, _ in values] for name, values in seconds.items()},
        "cpu_seconds": {name: [cpu_s for _, cpu_s in values] for name, values in seconds.items()},
        "median_s": {name: statistics.median(wall_s for wall_s, _ in values) for name, values in seconds.items()},
    }


def _seconds_of(predict: Callable[[], None], out: Path) -> tuple[float, float]:
    """Of the clock, and of all cores."""
    shutil.rmtree(out, ignore_errors=True)
    watch, cpu_s = Stopwatch(), time.process_time()
    predict()
    return watch.elapsed_s, time.process_time() - cpu_s


def _agreement(scan: Path, theirs: Path, ours: Path) -> dict[str, Any]:
    case = scan.name.removesuffix(f"_0000{_ENDING}")
    share, different, num = differing_voxels(*(out / f"{case}{_ENDING}" for out in (theirs, ours)))
    return {"case": case, "foreground_voxels": num, "different_voxels": different, "agreement": 1.0 - share}


def measure(kinds: list[Kind], work: Path, *, repeats: int) -> dict[str, Any]:
    """What was found of each kind."""
    places = {name: work / name for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}
    # Read by nnU-Net as it is imported.
    os.environ.update({name: str(place) for name, place in places.items()}, nnUNet_def_n_proc="1", nnUNet_compile="f")
    raw, preprocessed, results = places.values()
    found = {}
    for kind in kinds:
        write_dataset(kind.data, raw)
        plan(kind, preprocessed)
        stages = [_FIRST, _SECOND] if kind.configuration == _SECOND else [kind.configuration]
        for stage in stages:
            folder = make(kind, stage, preprocessed, results)
        images = raw / f"Dataset{kind.data.dataset_id}_small" / "imagesTs"
        found[kind.name] = compare(kind, folder, images, work, repeats=repeats)
        print(kind.name, json.dumps(found[kind.name]), flush=True)
    return found


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--work", type=Path, help="folder that keeps data and networks; a temporary one if not given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], default="")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="nnunetv2")
    only = f" --only '{options.only}'" if options.only else ""
    record = head("nnunet_models", f"--repeats {options.repeats}{only}")
    kinds = [kind for kind in KINDS if options.only in ("", kind.name)]
    path: Path = options.out / "nnunet_models.json"
    before = json.loads(path.read_text()) if options.only and path.exists() else {"kinds": {}}
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(kinds, options.work or Path(temporary), repeats=options.repeats)
    both = {**before["kinds"], **found}
    in_order = {kind.name: both[kind.name] for kind in KINDS if kind.name in both}
    commits = {**before.get("commits", {}), **dict.fromkeys(found, record["environment"]["commit"])}
    whole = {**record, "repeats": options.repeats, "commits": commits, "kinds": in_order}
    write_record(whole, "nnunet_models", out=options.out)


if __name__ == "__main__":
    main()
