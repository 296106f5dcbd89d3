"""nnU-Net's preprocessed folder: made by nnU-Net's own preprocessor and by ours, in fresh processes, alternating.

    python benchmarks/nnunet_preprocess.py [--work FOLDER] [--rounds 5] [--only "20 CTs"]

For each data set: wall-clock and CPU seconds of the fingerprint and of the cases of 3d_fullres, the most memory of all
processes of a side at once, and the largest differences of what is stored. Both sides get all cores: nnU-Net as many
processes, ours as many threads. Writes `benchmarks/results/nnunet_preprocess.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import psutil
from rich.console import Console

from harness import alternate, head, parser_of, real_data, run_fresh, write_record

_CONFIGURATION, _PLANS = "3d_fullres", "nnUNetPlans"
_SIDES, _PARTS = ("nnunet", "voxelocity"), ("cases", "fingerprint")
_SAMPLE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A data set."""

    name: str
    dataset_id: int
    num_verified: int

    @property
    def folder(self) -> str:
        return f"Dataset{self.dataset_id}_preprocess"


SCENARIOS = (
    # Real, small, of different spacing, with zeros outside the body.
    Scenario(name="20 CTs", dataset_id=421, num_verified=20),
    # Scans of full size with slices of 1 to 2 mm; their median spacing is that of none.
    Scenario(name="CT phantoms of 512 x 512", dataset_id=422, num_verified=1),
    # Slices of 5 mm, which nnU-Net resamples slice by slice.
    Scenario(name="thick slices of 512 x 512", dataset_id=423, num_verified=1),
)
_PHANTOMS = {422: ((512, 512, 200), 1.5, 4), 423: ((512, 512, 90), 5.0, 4)}
"""Shape, thickness of a slice in mm, and number of the phantoms."""


def write_raw(scenario: Scenario, raw: Path) -> None:
    """The data set in nnU-Net's layout, if it is not there."""
    folder = raw / scenario.folder
    if (folder / "dataset.json").exists():
        return
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    if scenario.dataset_id in _PHANTOMS:
        shape, thickness_mm, num = _PHANTOMS[scenario.dataset_id]
        labels = {"background": 0, "liver": 1, "kidney": 2, "bone": 3}
        for number in range(num):
            _write_phantom(folder, number, shape, thickness_mm)
    else:
        source = real_data() / "openkbp_headneck_ct"
        described = json.loads((source / "dataset.json").read_text())
        labels, num = {name: int(value) for value, name in described["labels"].items()}, described["numTraining"]
        for part in ("imagesTr", "labelsTr"):
            shutil.copytree(source / part, folder / part, dirs_exist_ok=True)
    description = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": num, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(description))


def _write_phantom(folder: Path, number: int, shape: tuple[int, int, int], thickness_mm: float) -> None:
    """A body with three organs and noise in air."""
    rng = np.random.default_rng(number)
    axes = [np.linspace(-1, 1, n, dtype=np.float32) for n in shape]
    x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
    image, label = np.full(shape, -1000, np.float32), np.zeros(shape, np.uint8)
    image[(x / 0.8) ** 2 + (y / 0.6) ** 2 < 1 + 0 * z] = 0.0
    for value, intensity in ((1, 60.0), (2, 130.0), (3, 260.0)):
        center, radius = rng.uniform(-0.3, 0.3, 3), rng.uniform(0.15, 0.4, 3)
        places = (
            ((x - center[0]) / radius[0]) ** 2 + ((y - center[1]) / radius[1]) ** 2 + ((z - center[2]) / radius[2]) ** 2
        )
        image[places < 1], label[places < 1] = intensity, value
    image += rng.normal(0, 20, shape).astype(np.float32)
    spacing = np.array([0.7 + 0.07 * number, 0.7 + 0.07 * number, thickness_mm * (0.85 + 0.1 * number)])
    affine = np.diag([*spacing, 1.0])
    nib.save(
        nib.Nifti1Image(np.round(image).astype(np.int16), affine), folder / "imagesTr" / f"case_{number}_0000.nii.gz"
    )
    nib.save(nib.Nifti1Image(label, affine), folder / "labelsTr" / f"case_{number}.nii.gz")


@contextlib.contextmanager
def most_memory() -> Iterator[list[int]]:
    """A list whose last item is the most memory in bytes that this process and those it started held at once."""
    found, is_over, own = [0], threading.Event(), psutil.Process()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_S):
            total = 0
            for process in (own, *own.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            found[0] = max(found[0], total)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def work_of(side: str, part: str, dataset_id: int, num: int) -> Callable[[], Any]:
    """What a side does of a part, "fingerprint" or "cases", with `num` processes or threads."""
    name = next(scenario.folder for scenario in SCENARIOS if scenario.dataset_id == dataset_id)
    if side == "nnunet":
        from nnunetv2.experiment_planning.dataset_fingerprint.fingerprint_extractor import DatasetFingerprintExtractor
        from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor

        if part == "fingerprint":
            return partial(DatasetFingerprintExtractor(dataset_id, num).run, overwrite_existing=True)
        return partial(DefaultPreprocessor(verbose=False).run, dataset_id, _CONFIGURATION, _PLANS, num_processes=num)
    from voxelocity.core.requests.preprocess import PreprocessRequest
    from voxelocity.nnunet.preprocess import run

    request = PreprocessRequest(dataset=name, configurations=(_CONFIGURATION,), threads=num)
    work = run.open_work(request, console=Console(file=io.StringIO()))
    if part == "fingerprint":
        return partial(run.take_fingerprint, work, again=True)
    return lambda: run.make_cases(work, run.settle_plans(work, request), overwrite=True)


def measure_here(side: str, part: str, dataset_id: int) -> dict[str, float]:
    """Seconds, CPU seconds and bytes of a part of the work, in this process and those that it starts."""
    num = len(os.sched_getaffinity(0))
    with contextlib.redirect_stdout(io.StringIO()), most_memory() as found:
        work = work_of(side, part, dataset_id, num)
        before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        begin_s = time.perf_counter()
        work()
        seconds = time.perf_counter() - begin_s
        after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    return {"seconds": seconds, "cpu_s": cpu_s, "most_bytes": float(found[0])}


def plan(scenario: Scenario, preprocessed: Path) -> None:
    """Fingerprint and plans by nnU-Net itself, if they are not there."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api

    folder = preprocessed / scenario.folder
    if not (folder / f"{_PLANS}.json").exists():
        api.extract_fingerprints([scenario.dataset_id], num_processes=2, show_progress_bar=False)
        api.plan_experiments([scenario.dataset_id])


def differences(scenario: Scenario) -> dict[str, Any]:
    """Of the fingerprints, and of stored cases from nnU-Net's."""
    from voxelocity.core.requests.preprocess import PreprocessRequest
    from voxelocity.nnunet.preprocess import run
    from voxelocity.nnunet.preprocess.verify import verify_cases

    work = run.open_work(PreprocessRequest(dataset=scenario.folder), console=Console(file=io.StringIO()))
    path = work.folder / "dataset_fingerprint.json"
    texts = []
    for side in _SIDES:
        run_fresh(__file__, "--side", side, "--part", "fingerprint", "--dataset", scenario.dataset_id)
        texts.append(path.read_bytes())
    plans = run.settle_plans(work, PreprocessRequest(dataset=scenario.folder, configurations=(_CONFIGURATION,)))
    run.make_cases(work, plans, overwrite=True)
    found = verify_cases(work.raw, work.folder, f"{_PLANS}.json", plans, num=scenario.num_verified)
    return {
        "num_cases": len(found),
        "num_voxels": sum(case.num_voxels for case in found),
        "largest_of_intensity": max(case.intensity for case in found),
        "voxels_that_differ": sum(case.num_other for case in found),
        "labels_that_differ": sum(case.num_labels for case in found),
        "notes_that_differ": sorted({note for case in found for note in case.notes}),
        "fingerprints_are_equal": texts[0] == texts[1],
    }


def measure(scenario: Scenario, part: str, *, rounds: int) -> dict[str, Any]:
    """Both sides, alternating, of one part of the work."""
    words = (__file__, "--part", part, "--dataset", scenario.dataset_id)
    by_side = alternate({side: partial(run_fresh, *words, "--side", side) for side in _SIDES}, rounds)
    found: dict[str, Any] = {
        key: {side: [round_[key] for round_ in by_side[side]] for side in _SIDES}
        for key in ("seconds", "cpu_s", "most_bytes")
    }
    for key in ("seconds", "cpu_s"):
        pairs = zip(found[key]["nnunet"], found[key]["voxelocity"], strict=True)
        found[f"ratios_of_{key}"] = ratios = [theirs / ours for theirs, ours in pairs]
        print(scenario.name, part, key, f"{statistics.median(ratios):.2f} times", ratios, flush=True)
    return found


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--work", type=Path, help="folder that keeps the data sets; a temporary one if not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], nargs="+")
    parser.add_argument("--do", nargs="+", choices=("compare", *_PARTS), default=("compare", *_PARTS))
    parser.add_argument("--side", choices=_SIDES, help="what a fresh process does, with --part and --dataset")
    parser.add_argument("--part", choices=_PARTS)
    parser.add_argument("--dataset", type=int)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure_here(options.side, options.part, options.dataset)))
        return
    record, path = head("nnunet_preprocess"), options.out / "nnunet_preprocess.json"
    found: dict[str, Any] = json.loads(path.read_text())["found"] if path.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        places = {part: work / part for part in ("raw", "preprocessed", "results")}
        os.environ.update({f"nnUNet_{part}": str(place) for part, place in places.items()})
        for scenario in (scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only):
            write_raw(scenario, places["raw"])
            plan(scenario, places["preprocessed"])
            entry = found.setdefault(scenario.name, {}) | asdict(scenario)
            if "compare" in options.do:
                entry["differences"] = differences(scenario)
                print(json.dumps(entry["differences"]), flush=True)
            for part in (part for part in _PARTS if part in options.do):
                entry[part] = measure(scenario, part, rounds=options.rounds)
                write_record(record | {"found": found | {scenario.name: entry}}, "nnunet_preprocess", out=options.out)
            found[scenario.name] = entry
            write_record(record | {"found": found}, "nnunet_preprocess", out=options.out)


if __name__ == "__main__":
    main()
