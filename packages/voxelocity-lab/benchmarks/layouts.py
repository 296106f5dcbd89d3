"""The layouts and lists of `tests/shared/layouts.py` and `lists.py`: what `init` and `plan` understand of each.

    python benchmarks/layouts.py

Also seconds and memory of both commands for 1,200 cases with 104 masks each: links to one real scan and its classes.
Writes `benchmarks/results/layouts.json`. Status 1 if any is understood otherwise than it should be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from shared.layouts import LAYOUTS, Found, Layout, found_in
from shared.lists import LISTS, CaseList, FoundList, found_in_list
from voxelocity.data.pipeline.masks import NO_HINTS, FolderHints
from voxelocity_observe.core.errors import VoxelocityError

_NUM_CASES, _NUM_MASKS = 1200, 104


def main() -> None:
    options = parser_of(__doc__, out=True).parse_args()
    record = head("layouts")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        large = _large(work / "large")
        layouts = {
            name: _understood(layout, work / str(number)) for number, (name, layout) in enumerate(LAYOUTS.items())
        }
        lists = {
            name: _read(listed, work / "lists" / str(number)) for number, (name, listed) in enumerate(LISTS.items())
        }
    for name, outcome in {**layouts, **lists, "large": large}.items():
        print(name, outcome)
    print(write_record({**record, "layouts": layouts, "lists": lists, "large": large}, "layouts", out=options.out))
    sys.exit(not all(outcome["is_right"] for outcome in (*layouts.values(), *lists.values())))


def _large(folder: Path) -> dict[str, Any]:
    """Seconds and peak memory of `init` and `plan` for a folder like TotalSegmentator's, each a process of its own."""
    scan = real_data() / "small_ct_mr_samples" / "totalseg_ct"
    label = nib.load(scan / "label_auto.nii.gz")
    values = np.asarray(label.dataobj)
    (folder / "masks").mkdir(parents=True)
    # As in the data set, most cases lack most classes, and have an empty file for them.
    for value in range(1, _NUM_MASKS + 1):
        mask = nib.Nifti1Image((values == value).astype(np.uint8), label.affine)
        nib.save(mask, folder / "masks" / f"structure_{value:03d}.nii.gz")
    masks = sorted((folder / "masks").iterdir())
    for number in range(_NUM_CASES):
        case = folder / "set" / f"s{number:04d}"
        (case / "segmentations").mkdir(parents=True)
        (case / "ct.nii.gz").symlink_to(scan / "image.nii.gz")
        for mask in masks:
            (case / "segmentations" / mask.name).symlink_to(mask)
    found: dict[str, Any] = {"num_cases": _NUM_CASES, "num_masks": _NUM_MASKS}
    for command in (("init", folder / "set"), ("plan", folder / "set", "--device", "cpu")):
        began_s = time.perf_counter()
        running = subprocess.Popen([*VOXELOCITY, *map(str, command)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(running.pid, 0)
        seconds = time.perf_counter() - began_s
        if status:
            raise RuntimeError(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
        found[command[0]] = {"wall_s": seconds, "peak_bytes": usage.ru_maxrss * 1024}
    return found


def _read(listed: CaseList, work: Path) -> dict[str, Any]:
    expected = FoundList(cases=listed.cases, channels=listed.channels, classes=listed.classes, held_out=listed.held_out)
    try:
        found: FoundList | str = found_in_list(listed.make(work))
    except VoxelocityError as error:
        found = str(error).replace(str(work), "FOLDER")
    return {**asdict(expected), "is_right": found == expected, "otherwise": "" if found == expected else str(found)}


def _understood(layout: Layout, work: Path) -> dict[str, Any]:
    """Without help, and with the options that the layout needs."""
    data = layout.make(work / "data")
    expected = Found(cases=layout.cases, channels=layout.channels, classes=layout.classes)
    outcomes = {}
    for name, hints in {"alone": NO_HINTS, "helped": layout.hints}.items():
        try:
            outcomes[name] = found_in(data, work / name, hints)
        except VoxelocityError as error:
            outcomes[name] = str(error).replace(str(work), "FOLDER")
    return {
        **asdict(expected),
        "is_right": outcomes["helped"] == expected,
        "options": _options(layout.hints),
        "without_options": "" if outcomes["alone"] == expected else str(outcomes["alone"]),
        "with_options": "" if outcomes["helped"] == expected else str(outcomes["helped"]),
    }


def _options(hints: FolderHints) -> str:
    pairs = (("--raters", hints.raters), ("--image", hints.image), ("--label", hints.label))
    words = [f"{option} {value}" for option, value in pairs if value]
    return " ".join([*(["--merge-masks"] if hints.are_masks else []), *words])


if __name__ == "__main__":
    main()
