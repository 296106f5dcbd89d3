"""`voxelocity bench build`: from compressed files to a filled cache, and the decoders on one file."""

from __future__ import annotations

import functools
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import isal_zlib

from voxelocity.core.volume import Array
from voxelocity.data.decode import read_scan
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Once, compare
from voxelocity_lab.bench.peers import peer_side
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet, make_phantoms
from voxelocity_lab.bench.streams import MEMORY, BenchCases
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.host import cpu_budget

# Abdominal CTs as they come from an archive.
_TWENTY_CTS = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=20, spacing_mm=(0.8, 0.8, 2.5), packed=True)
# A whole CT as it comes from an archive.
_ONE_CT = PhantomSet(kind="ct", shape=(512, 512, 128), num_cases=1, packed=True)
_DECODES_PER_REPEAT = 2
_GZIP_WINDOW_BITS = 31


@dataclass(frozen=True, kw_only=True)
class BuildScenario:
    """The first minutes of every training: each scan is unpacked, turned, resampled and scaled once."""

    cases: PhantomSet = _TWENTY_CTS
    # MONAI's spleen tutorial resamples to this; every axis changes.
    spacing_mm: tuple[float, float, float] = (1.5, 1.5, 2.0)
    file: PhantomSet = _ONE_CT
    repeats: int = 5


def run(scenario: BuildScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other; decoders also on real scans."""
    yield _decoders(scenario, make_phantoms(scenario.file, folders.work)[0].images[0], scenario.file.words)
    for path in folders.packed_scans():
        yield _decoders(scenario, path, path.name)
    yield _builds(scenario, folders)


def _builds(scenario: BuildScenario, folders: BenchFolders) -> Comparison:
    cases, spacing_mm = BenchCases.of(scenario.cases, folders.work), scenario.spacing_mm

    def fill_s(cache: Callable[[str], Any]) -> float:
        with tempfile.TemporaryDirectory(prefix="voxelocity-bench-") as folder:
            watch = Stopwatch()
            cases.fill(cache(folder), spacing_mm=spacing_mm)
            return watch.elapsed_s

    def monai_s() -> Once:
        from voxelocity_lab.bench.peers import monai

        def once() -> float:
            chain = monai.preparing(cases.kind, spacing_mm=spacing_mm, crop=True)
            watch = Stopwatch()
            monai.dataset("CacheDataset", cases.refs, chain, num_workers=cpu_budget())
            return watch.elapsed_s

        return once

    steps = " x ".join(f"{step:g}" for step in spacing_mm)
    return compare(
        f"cache of {scenario.cases.words}, .nii.gz, resampled to {steps} mm",
        "s",
        [
            BenchSide(name="Voxelocity, memory tier", once=lambda: fill_s(lambda folder: MEMORY)),
            peer_side("MONAI CacheDataset", "MONAI", monai_s, note="threads of its own, no metadata kept"),
            BenchSide(
                name="Voxelocity, disk tier",
                once=lambda: fill_s(lambda folder: {"tier": "disk", "folder": folder}),
                note="each entry flushed to the disk",
            ),
        ],
        repeats=scenario.repeats,
        note=(
            f"{cpu_budget()} workers each; image linear; ours takes labels by the largest interpolated share and finds "
            "foreground voxels, MONAI takes the nearest label and crops to what is not air; files in the page cache"
        ),
    )


def _decoders(scenario: BuildScenario, path: Path, words: str) -> Comparison:
    sides = [
        peer_side(name, peer, functools.partial(_timed, decode, path), note) for name, peer, decode, note in _DECODERS
    ]
    return compare(
        f"one file to voxels: {words}",
        "CPU-ms",
        sides,
        # A file is quick to read: more rounds cost little and settle more.
        repeats=_DECODES_PER_REPEAT * scenario.repeats,
        note=(
            "to an array in numpy with the stored values; CPU time of all threads of the process, so that other "
            "programs change it little; file in the page cache"
        ),
    )


def _timed(decode: Callable[[Path], Array], path: Path) -> Once:
    def once_ms() -> float:
        start_s = time.process_time()
        voxels = decode(path)
        took_s = time.process_time() - start_s
        # Every voxel is read: an array whose memory is gone would fail here.
        assert np.isfinite(voxels.max())
        return 1000.0 * took_s

    return once_ms


def _by_simpleitk(path: Path) -> Array:
    import SimpleITK

    # A copy, which takes a twentieth of the time: a view does not keep its image, and the image's memory, alive.
    return np.asarray(SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))))


def _unpacked(unpack: Callable[[bytes], Any]) -> Callable[[Path], Array]:
    return lambda path: np.frombuffer(unpack(path.read_bytes()), dtype=np.uint8)


def _by_libdeflate(packed: bytes) -> Any:
    import deflate

    return deflate.gzip_decompress(packed)


def _by_zlib_ng(packed: bytes) -> Any:
    from zlib_ng import zlib_ng

    return zlib_ng.decompress(packed, wbits=_GZIP_WINDOW_BITS)


_NO_HEADER = "no header read"
_DECODERS: tuple[tuple[str, str, Callable[[Path], Array], str], ...] = (
    ("Voxelocity", "", lambda path: read_scan(path)[0], "ISA-L into one array of numpy's"),
    ("nibabel", "", lambda path: np.asanyarray(nib.load(path).dataobj), ""),
    ("SimpleITK", "SimpleITK", _by_simpleitk, "copied into an array of numpy's"),
    ("ISA-L alone", "", _unpacked(lambda packed: isal_zlib.decompress(packed, wbits=_GZIP_WINDOW_BITS)), _NO_HEADER),
    ("libdeflate alone", "libdeflate", _unpacked(_by_libdeflate), f"{_NO_HEADER}, size taken from the end of the file"),
    ("zlib-ng alone", "zlib-ng", _unpacked(_by_zlib_ng), _NO_HEADER),
    (
        "zlib of Python alone",
        "",
        _unpacked(lambda packed: zlib.decompress(packed, wbits=_GZIP_WINDOW_BITS)),
        _NO_HEADER,
    ),
)
"""Name, peer if it needs one, how, and a note."""
