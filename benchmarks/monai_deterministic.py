"""Each deterministic transform of MONAI and its faster equivalent: CPU time on a whole CT and on a small MR crop.

    python benchmarks/monai_deterministic.py [--hippocampus /folder/of/the/set] [--repeats 7]

Both sides take the same items, alternating; CPU time of the process is counted, threads included; files lie in the
page cache. Writes `benchmarks/results/monai_deterministic.json`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from monai.transforms import (
    CropForegroundd,
    EnsureChannelFirstd,
    FgBgToIndicesd,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    ScaleIntensityRanged,
    Spacingd,
)

from harness import head, parser_of, write_record
from voxelocity.bench.comparison import BenchSide, Comparison, compare, cpu_ms
from voxelocity.bench.phantom import PhantomSet, make_phantoms, work_folder
from voxelocity.interop.monai.deterministic import faster

# A whole abdominal CT as it comes from an archive.
CT = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=1, spacing_mm=(0.8, 0.8, 2.5), packed=True)
KEYS = ("image", "label")


def chain() -> list[Any]:
    """The spleen tutorial's transforms; axes are turned to LPS and back, as archives have both."""
    return [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        Orientationd(KEYS, "LPS", labels=None),
        Orientationd(KEYS, "RAI", labels=None),
        Orientationd(KEYS, "RAS", labels=None),
        Spacingd(KEYS, (1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
        ScaleIntensityRanged("image", -57, 164, 0.0, 1.0, clip=True),
        CropForegroundd(KEYS, "image"),
        NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        NormalizeIntensityd("image"),
        FgBgToIndicesd("label", image_key="image"),
        FgBgToIndicesd("label"),
    ]


def comparisons(name: str, item: Any, repeats: int) -> Iterator[Comparison]:
    """One for each transform that has a faster equivalent; each begins with what MONAI made so far."""
    transform: Any
    for transform in chain():
        quick = faster(transform)
        if quick is not None:
            sides = [
                BenchSide(name="Voxelocity", once=_once(quick, item)),
                BenchSide(name="MONAI", once=_once(transform, item)),
            ]
            title = f"{_words(transform)}, {name}"
            yield compare(title, "CPU ms", sides, repeats=repeats)
        item = transform(copy.deepcopy(item))


def _once(transform: Callable[[Any], Any], item: Any) -> Callable[[], float]:
    # Some of MONAI's transforms write into the item.
    return lambda: cpu_ms(partial(transform, copy.deepcopy(item)))


def _words(transform: Any) -> str:
    options: dict[type, Callable[[Any], str]] = {
        Orientationd: lambda t: f"to {t.ornt_transform.axcodes}",
        NormalizeIntensityd: lambda t: "of what is not zero" if t.normalizer.nonzero else "of the whole",
        FgBgToIndicesd: lambda t: "within the image" if t.image_key else "of all voxels",
    }
    words = options.get(type(transform))
    return type(transform).__name__ + (f" {words(transform)}" if words else "")


def main() -> None:
    """Measures, prints, writes the JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--hippocampus", type=Path, help="folder of the set, for a small case too")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    repeats = f" --repeats {arguments.repeats}" if "--repeats" in sys.argv else ""
    record = head("monai_deterministic", f"--hippocampus hippocampus{repeats}")
    ref = make_phantoms(CT, work_folder(None))[0]
    items = {CT.words.removeprefix("1 "): {"image": str(ref.images[0]), "label": str(ref.label)}}
    if arguments.hippocampus:
        files = {"image": "imagesTr", "label": "labelsTr"}
        case = "hippocampus_190"
        items[case] = {key: str(arguments.hippocampus / kind / f"{case}.nii.gz") for key, kind in files.items()}
    found: list[Comparison] = []
    for name, item in items.items():
        for comparison in comparisons(name, item, arguments.repeats):
            ours, theirs = comparison.figures
            print(comparison.title, ours.median, theirs.median, sorted(comparison.ratios(theirs)), flush=True)
            found.append(comparison)
    record["comparisons"] = [comparison.to_plain() for comparison in found]
    write_record(record, "monai_deterministic")


if __name__ == "__main__":
    main()
