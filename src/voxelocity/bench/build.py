"""`voxelocity bench build`: from compressed files to a filled cache, and the decoders on one file."""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from voxelocity.bench import ours
from voxelocity.bench.paired import Comparison, Side, compare
from voxelocity.bench.peers import missing
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.bench.places import Places
from voxelocity.core.volume import Array, VolumeRef
from voxelocity.data.decode import read_scan
from voxelocity.observe import cpu_budget

# Abdominal CTs as they come from an archive.
_TWENTY_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=20, spacing_mm=(0.8, 0.8, 2.5), packed=True)
# A whole CT as it comes from an archive.
_ONE_CT = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=1, packed=True)


@dataclass(frozen=True, kw_only=True)
class Build:
    """The first minutes of every training: each scan is unpacked, turned, resampled and scaled once."""

    cases: PhantomSet = _TWENTY_CTS
    # MONAI's spleen tutorial resamples to this; every axis changes.
    spacing_mm: tuple[float, float, float] = (1.5, 1.5, 2.0)
    file: PhantomSet = _ONE_CT
    repeats: int = 5


def run(scenario: Build, places: Places) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; decoders also on real scans."""
    yield _decoders(scenario, make_phantoms(scenario.file, places.work)[0].images[0], scenario.file.words)
    for path in places.packed_scans():
        yield _decoders(scenario, path, path.name)
    yield _builds(scenario, make_phantoms(scenario.cases, places.work))


def _builds(scenario: Build, refs: Sequence[VolumeRef]) -> Comparison:
    sides = [
        Side(name="Voxelocity, memory tier", once=lambda: _fill_s(scenario, refs, lambda folder: ours.MEMORY)),
        _monai(scenario, refs),
        Side(
            name="Voxelocity, disk tier",
            once=lambda: _fill_s(scenario, refs, lambda folder: {"tier": "disk", "folder": folder}),
            note="each entry flushed to the disk",
        ),
    ]
    steps = " x ".join(f"{step:g}" for step in scenario.spacing_mm)
    return compare(
        f"cache of {scenario.cases.words}, .nii.gz, resampled to {steps} mm",
        "s",
        "smaller",
        sides,
        repeats=scenario.repeats,
        note=(
            f"{cpu_budget()} workers each; image linear; ours takes labels by the largest interpolated share and finds "
            "foreground voxels, MONAI takes the nearest label and crops to what is not air; files in the page cache"
        ),
    )


def _fill_s(scenario: Build, refs: Sequence[VolumeRef], cache: Callable[[str], Any]) -> float:
    with tempfile.TemporaryDirectory(prefix="voxelocity-bench-") as folder:
        start_s = time.perf_counter()
        cases = ours.phantom_cases(refs, scenario.cases, cache(folder), spacing_mm=scenario.spacing_mm)
        ours.filled(cases)
        return time.perf_counter() - start_s


def _monai(scenario: Build, refs: Sequence[VolumeRef]) -> Side:
    name = "MONAI CacheDataset"
    if why := missing("MONAI"):
        return Side(name=name, once=None, note=why)
    from voxelocity.bench import monai_side

    def once() -> float:
        start_s = time.perf_counter()
        monai_side.cached(
            refs, scenario.cases.kind, [], num_workers=cpu_budget(), spacing_mm=scenario.spacing_mm, crop=True
        )
        return time.perf_counter() - start_s

    return Side(name=name, once=once, note="threads of its own, no metadata kept")


def _decoders(scenario: Build, path: Path, words: str) -> Comparison:
    sides = [Side(name="Voxelocity (ISA-L)", once=lambda: _ms(lambda: read_scan(path)))]
    for name, peer, decode in (
        ("nibabel", None, _by_nibabel),
        ("SimpleITK", "SimpleITK", _by_simpleitk),
        ("libdeflate", "libdeflate", _by_libdeflate),
        ("zlib of Python", None, _by_zlib),
    ):
        why = "" if peer is None else missing(peer)
        sides.append(Side(name=name, once=None if why else _timed(decode, path), note=why))
    return compare(
        f"one file to voxels: {words}",
        "ms",
        "smaller",
        sides,
        repeats=scenario.repeats,
        note="stored values, one thread, file in the page cache; libdeflate and zlib read no header",
    )


def _timed(decode: Callable[[Path], object], path: Path) -> Callable[[], float]:
    return lambda: _ms(lambda: decode(path))


def _ms(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return 1000.0 * (time.perf_counter() - start_s)


def _by_nibabel(path: Path) -> Array:
    return np.asanyarray(nib.load(path).dataobj)


def _by_simpleitk(path: Path) -> object:
    import SimpleITK

    image = SimpleITK.ReadImage(str(path))
    # The view is valid as long as the image.
    return image, SimpleITK.GetArrayViewFromImage(image)


def _by_libdeflate(path: Path) -> Array:
    import deflate

    return np.frombuffer(deflate.gzip_decompress(path.read_bytes()), dtype=np.uint8)


def _by_zlib(path: Path) -> Array:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8)
