"""Crafted scans, structures and streamlines, by the makers of the tests of their readers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from data.decode.dicom.test_structures import SQUARE, write_contours
from data.decode.test_damage import VOXELS, files_of, write_files
from recipes.tractography.test_files import write as write_tracts

from shared.crafted import Kind, SilentError, Trial
from shared.damage import odd_elements, odd_lines, rotten
from shared.dicom_series import fix_identity, named_label, write_series


def _voxels(ending: str) -> Callable[[Path], Trial]:
    """Packed voxels, which have a checksum."""

    def make(folder: Path) -> Trial:
        from voxelocity.data.decode import read_scan

        header, voxels, own = files_of(ending)

        def trial(numbers: random.Random) -> None:
            found = read_scan(write_files(folder, ending, header, rotten(numbers, voxels), own))[0]
            if not np.array_equal(found[0].T, VOXELS):
                raise SilentError(f"{np.mean(found[0].T != VOXELS):.0%} of the voxels are others")

        return trial

    return make


def _headers(ending: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        from voxelocity.data.decode import read_scan

        header, voxels, own = files_of(ending, is_packed=False)
        # Places that no header may name; a secret next to the folder.
        places = (
            "../secret.raw",
            "/proc/self/environ",
            "/etc/passwd",
            "sub/../../secret.raw",
            "LIST",
            "v%02d.raw 1 3 1",
        )

        def trial(numbers: random.Random) -> None:
            text = odd_lines(numbers, header.rstrip("\n"))
            if own and numbers.random() < 0.4:
                text = text.replace(own, numbers.choice(places))
            found = read_scan(write_files(folder, ending, text + "\n" * (ending == "nrrd"), voxels, own))[0]
            if b"root:" in found.tobytes() or b"PATH=" in found.tobytes():
                raise SilentError("a file of the system was read")

        return trial

    return make


def _structures(kind: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        import pydicom

        from voxelocity.data.decode import read_header, write_segmentation

        series = folder / "ct"
        write_series(series, np.random.default_rng(0).integers(-99, 99, (6, 20, 16)).astype(np.int16))
        header, path = read_header(series), folder / f"{kind}.dcm"
        if kind == "rs":
            write_contours(path, series, {"a": [(2, SQUARE), (3, SQUARE)], "b": [(4, SQUARE)]})
        else:
            classes = np.random.default_rng(1).integers(0, 3, header.grid.shape).astype(np.uint8)
            write_segmentation(path, classes, header, ["a", "b"])  # type: ignore[arg-type]
            fix_identity(path)
        whole = path.read_bytes()

        def trial(numbers: random.Random) -> None:
            path.write_bytes(whole)
            if numbers.random() < 0.4:
                path.write_bytes(rotten(numbers, whole, start=numbers.choice((0, 132))))
            else:
                dataset = pydicom.dcmread(path)
                odd_elements(numbers, dataset)
                # Values that pydicom does not write are not files.
                with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError, KeyError):
                    dataset.save_as(path)
            named_label(path, header.grid, {"a": 1, "b": 2})

        return trial

    return make


def _streamlines(ending: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        from voxelocity_lab.recipes.tractography.files import read_tracts

        path = folder / f"a.{ending}"
        write_tracts(path)
        whole, expected = path.read_bytes(), read_tracts([path])

        def trial(numbers: random.Random) -> None:
            path.write_bytes(rotten(numbers, whole))
            # Members of the archive have checksums.
            if not np.array_equal(read_tracts([path]).points, expected.points):
                raise SilentError("the points are others")

        return trial

    return make


SCANS = (
    *(Kind(f"packed voxels of .{ending}", 60, _voxels(ending)) for ending in ("nrrd", "nhdr", "mha", "mhd", "mgz")),
    *(Kind(f"headers of .{ending}", 100, _headers(ending)) for ending in ("nrrd", "nhdr", "mha", "mhd")),
    Kind("DICOM SEG", 120, _structures("seg")),
    Kind("RTSTRUCT", 80, _structures("rs")),
    Kind("streamlines in .trx", 100, _streamlines("trx")),
)
