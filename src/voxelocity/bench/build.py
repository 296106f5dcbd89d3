"""`voxelocity bench build`: from compressed files to a filled cache, and the decoders on one file."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import isal_zlib

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
_DECODES_PER_REPEAT = 2
_GZIP_WINDOW_BITS = 31


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
    sides = [Side(name="Voxelocity", once=_timed(_by_voxelocity, path), note="ISA-L into one array of numpy's")]
    for name, peer, decode, note in (
        ("nibabel", None, _by_nibabel, ""),
        ("SimpleITK", "SimpleITK", _by_simpleitk, "copied into an array of numpy's"),
        ("ISA-L alone", None, _by_isal, "no header read"),
        ("libdeflate alone", "libdeflate", _by_libdeflate, "no header read, size taken from the end of the file"),
        ("zlib-ng alone", "zlib-ng", _by_zlib_ng, "no header read"),
        ("zlib of Python alone", None, _by_zlib, "no header read"),
    ):
        why = "" if peer is None else missing(peer)
        sides.append(Side(name=name, once=None if why else _timed(decode, path), note=why or note))
    return compare(
        f"one file to voxels: {words}",
        "CPU-ms",
        "smaller",
        sides,
        # A file is quick to read: more rounds cost little and settle more.
        repeats=_DECODES_PER_REPEAT * scenario.repeats,
        note=(
            "to an array in numpy with the stored values; CPU time of all threads of the process, so that other "
            "programs change it little; file in the page cache"
        ),
    )


def _timed(decode: Callable[[Path], Array], path: Path) -> Callable[[], float]:
    def once_ms() -> float:
        start_s = time.process_time()
        voxels = decode(path)
        took_s = time.process_time() - start_s
        # Every voxel is read: an array whose memory is gone would fail here.
        assert np.isfinite(voxels.max())
        return 1000.0 * took_s

    return once_ms


def _by_voxelocity(path: Path) -> Array:
    return read_scan(path)[0]


def _by_nibabel(path: Path) -> Array:
    return np.asanyarray(nib.load(path).dataobj)


def _by_simpleitk(path: Path) -> Array:
    import SimpleITK

    # A copy, which takes a twentieth of the time: a view does not keep its image, and the image's memory, alive.
    return np.asarray(SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))))


def _by_isal(path: Path) -> Array:
    return np.frombuffer(isal_zlib.decompress(path.read_bytes(), wbits=_GZIP_WINDOW_BITS), dtype=np.uint8)


def _by_libdeflate(path: Path) -> Array:
    import deflate

    return np.frombuffer(deflate.gzip_decompress(path.read_bytes()), dtype=np.uint8)


def _by_zlib_ng(path: Path) -> Array:
    from zlib_ng import zlib_ng

    return np.frombuffer(zlib_ng.decompress(path.read_bytes(), wbits=_GZIP_WINDOW_BITS), dtype=np.uint8)


def _by_zlib(path: Path) -> Array:
    return np.frombuffer(zlib.decompress(path.read_bytes(), wbits=_GZIP_WINDOW_BITS), dtype=np.uint8)
