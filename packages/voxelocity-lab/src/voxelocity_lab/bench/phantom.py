"""What scenarios measure on: volumes of realistic size, smooth tissue in noise, which packs like a real scan.

They show no patient, and have only what costs time in a pipeline: sizes, classes, and bytes that are neither zeros nor
pure noise. The phantoms of `body` have anatomy to learn and take a second each. `BenchFolders` finds a few real scans.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array, Grid, VolumeRef
from voxelocity.data.decode.write import write_scan
from voxelocity.data.source import open_cases
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import InputError, OutputError

Kind = Literal["ct", "mr"]
TINY_KEYS: Mapping[str, Any] = {
    "network.name": "unet",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
    "data.patch.shape_voxel": [16, 16, 16],
    "window.shape_voxel": [16, 16, 16],
}
"""Of a plan that only shows that a training runs."""
_VERSION = 1
"""Raised whenever the voxels of a phantom change: older files are then not used."""
_AIR_HU, _PADDING_HU, _FAT_HU = -1000.0, -1024.0, -90.0
# Per organ: center and half axes as a share of the volume's sides, Hounsfield units.
_ORGANS = (
    ((0.36, 0.48, 0.60), (0.16, 0.17, 0.34), 110.0),
    ((0.68, 0.58, 0.62), (0.07, 0.10, 0.22), 120.0),
    ((0.38, 0.64, 0.35), (0.05, 0.06, 0.20), 160.0),
    ((0.62, 0.64, 0.36), (0.05, 0.06, 0.20), 160.0),
    ((0.50, 0.74, 0.50), (0.05, 0.06, 0.60), 350.0),
    ((0.52, 0.60, 0.50), (0.02, 0.02, 0.60), 180.0),
)
_NUM_LESION_SHELLS = 3
_NEXT_TO_CHECKOUT = CHECKOUT.parent / "shared" / "data"
_SCANS = ("vs_seg_001/*.nii.gz", "small_ct_mr_samples/msd_spleen_8_coarse/image.nii.gz")


@dataclass(frozen=True, kw_only=True)
class PhantomSet:
    """Some phantoms of one kind.

    "ct": int16 in Hounsfield units, one channel, six organs, as an abdominal CT. "mr": four channels of int16 with
    zeros outside the head and a tumour of three classes, as BraTS.
    """

    kind: Kind
    shape: Index3
    num_cases: int
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    packed: bool = False

    @property
    def num_channels(self) -> int:
        return 1 if self.kind == "ct" else 4

    @property
    def num_classes(self) -> int:
        """With the background."""
        return 1 + (len(_ORGANS) if self.kind == "ct" else _NUM_LESION_SHELLS)

    @property
    def words(self) -> str:
        x, y, z = self.shape
        channels = "" if self.num_channels == 1 else f", {self.num_channels} channels"
        plural = "" if self.num_cases == 1 else "s"
        return f"{self.num_cases} {self.kind.upper()}-like volume{plural} of {x}x{y}x{z}{channels}"


SIX_ORGANS = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=36, spacing_mm=(4.0, 4.0, 5.0))
"""Small enough to train on for minutes on a CPU."""


def make_phantoms(phantoms: PhantomSet, folder: Path) -> tuple[VolumeRef, ...]:
    """The cases as NIfTI files below `folder`; existing files are reused.

    Case i depends on the set and on i alone. Costs about 2 s for 512x512x128 voxels, done in threads.

    Raises:
        OutputError: the folder cannot be written.
    """
    side = "x".join(map(str, phantoms.shape))
    spacing = "x".join(f"{step:g}" for step in phantoms.spacing_mm)
    # In separate folders: asked for x.nii.gz, the NIfTI library of SimpleITK reads an x.nii next to it.
    place = folder / f"v{_VERSION}-{phantoms.kind}-{side}-{spacing}{'-packed' if phantoms.packed else ''}"
    place.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return tuple(pool.map(lambda index: _case(phantoms, index, place), range(phantoms.num_cases)))


def phantom_table(phantoms: PhantomSet, work: Path, table: Path, *, num_held_out: int = 0) -> Path:
    """The .csv `table`, which now lists these phantoms, kept below `work`, as `voxelocity train` takes them.

    The last `num_held_out` make up fold 0, the others fold 1; 0 leaves the folds to the reader.

    Raises:
        OutputError: a folder cannot be written.
    """
    refs = make_phantoms(phantoms, work)
    folds = [int(index < len(refs) - num_held_out) for index in range(len(refs))] if num_held_out else []
    return list_cases(table, refs, folds)


def list_cases(table: Path, refs: Sequence[VolumeRef], folds: Sequence[int] = ()) -> Path:
    """The .csv `table`, which now lists these cases of one channel and, if given, their folds."""
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("case", "image", "label", *(("fold",) if folds else ())))
        for index, ref in enumerate(refs):
            rows.writerow((ref.case_id, ref.images[0], ref.label, *folds[index : index + 1]))
    return table


def draw(phantoms: PhantomSet, index: int) -> tuple[Array, npt.NDArray[np.uint8]]:
    """Image (c, x, y, z) int16 and label (x, y, z) uint8 of one case, x fastest in memory as in a NIfTI file."""
    image = np.empty((phantoms.num_channels, *phantoms.shape[::-1]), dtype=np.int16).transpose(0, 3, 2, 1)
    label = np.zeros(phantoms.shape[::-1], dtype=np.uint8).T
    draw_slice = _draw_ct_slice if phantoms.kind == "ct" else _draw_mr_slice
    rng = np.random.default_rng([_VERSION, index])
    shift = rng.uniform(-0.03, 0.03, size=3)
    # Places of the voxel centers, as a share of each side.
    at_x, at_y, at_z = ((np.arange(n) + 0.5) / n - offset for n, offset in zip(phantoms.shape, shift, strict=True))
    for plane in range(phantoms.shape[2]):
        draw_slice(image[..., plane], label[..., plane], at_x[:, None], at_y[None, :], float(at_z[plane]), rng)
    return image, label


def _draw_ct_slice(image: Array, label: Array, x: Array, y: Array, z: float, rng: np.random.Generator) -> None:
    hu = np.full(label.shape, _AIR_HU, dtype=np.float32)
    girth = 1.0 + 0.06 * np.sin(7.0 * z)
    body = ((x - 0.5) / 0.42) ** 2 + ((y - 0.52) / 0.33) ** 2
    hu[body < girth] = _FAT_HU
    hu[body < 0.86 * girth] = 50.0
    for index, (center, half, value) in enumerate(_ORGANS, start=1):
        inside = _ellipse(x, y, z, center, half)
        label[inside] = index
        hu[inside] = value
    # Slow changes within tissue, and noise that neighbors along x share, as reconstruction kernels leave it.
    hu += 12.0 * np.sin(9.0 * x + 5.0 * z) * np.cos(11.0 * y)
    noise = rng.standard_normal(hu.shape, dtype=np.float32)
    noise[1:] += noise[:-1]
    hu += 9.0 * noise
    hu[(x - 0.5) ** 2 + (y - 0.5) ** 2 > 0.25] = _PADDING_HU
    image[0] = np.rint(np.clip(hu, _PADDING_HU, 3071.0))


def _draw_mr_slice(image: Array, label: Array, x: Array, y: Array, z: float, rng: np.random.Generator) -> None:
    head = _ellipse(x, y, z, (0.5, 0.5, 0.5), (0.38, 0.46, 0.40))
    for index in range(_NUM_LESION_SHELLS):
        half = 0.16 - 0.045 * index
        label[_ellipse(x, y, z, (0.38, 0.56, 0.58), (half, half, half))] = index + 1
    tissue = 1.0 + 0.35 * np.sin(14.0 * x + 3.0 * z) * np.cos(12.0 * y)
    for channel, weight in enumerate((0.9, 1.4, 1.1, 0.7)):
        signal = 400.0 * weight * tissue * (1.0 + 0.25 * (channel - 1) * (label > 0))
        signal = signal + 25.0 * rng.standard_normal(label.shape, dtype=np.float32)
        image[channel] = np.where(head, np.maximum(np.rint(signal), 1.0), 0.0)


def _ellipse(
    x: Array, y: Array, z: float, center: tuple[float, float, float], half: tuple[float, float, float]
) -> npt.NDArray[np.bool_]:
    inside: npt.NDArray[np.bool_] = (
        ((x - center[0]) / half[0]) ** 2 + ((y - center[1]) / half[1]) ** 2 + ((z - center[2]) / half[2]) ** 2
    ) < 1.0
    return inside


def _case(phantoms: PhantomSet, index: int, place: Path) -> VolumeRef:
    ending = ".nii.gz" if phantoms.packed else ".nii"
    images = tuple(place / f"case_{index:03d}_{channel:04d}{ending}" for channel in range(phantoms.num_channels))
    label_file = place / f"case_{index:03d}{ending}"
    # The label is written last, and each file whole or not at all.
    if not label_file.exists():
        image, label = draw(phantoms, index)
        grid = Grid.of(phantoms.shape, np.diag([*phantoms.spacing_mm, 1.0]))
        for path, channel in zip(images, image, strict=True):
            write_scan(path, channel, grid)
        write_scan(label_file, label, grid)
    return VolumeRef(case_id=f"case_{index:03d}", images=images, label=label_file)


@dataclass(frozen=True, kw_only=True)
class BenchFolders:
    """Folders of a run.

    Attributes:
        work: phantoms stay here for the next time; caches are made below it and removed.
        data: real scans, or None to do without.
    """

    work: Path
    data: Path | None = None

    def hippocampus(self) -> tuple[VolumeRef, ...]:
        """The labeled cases of MSD's hippocampus set; none where it is not there."""
        folder = None if self.data is None else self.data / "hippocampus"
        if folder is None or not folder.is_dir():
            return ()
        return tuple(ref for ref in open_cases(folder) if ref.label is not None)

    def packed_scans(self) -> tuple[Path, ...]:
        """A few real .nii.gz files, the largest of their folders."""
        if self.data is None:
            return ()
        found = [sorted(self.data.glob(pattern), key=lambda path: path.stat().st_size) for pattern in _SCANS]
        return tuple(files[-1] for files in found if files)


def real_data(given: Path | None) -> Path | None:
    """The folder of real scans: the one given, $VOXELOCITY_DATA, or the checkout's neighbor `shared/data`, if any.

    Raises:
        InputError: the folder that was given or named is not there.
    """
    named = given or (Path(os.environ["VOXELOCITY_DATA"]) if "VOXELOCITY_DATA" in os.environ else None)
    if named is None:
        return _NEXT_TO_CHECKOUT if _NEXT_TO_CHECKOUT.is_dir() else None
    if not named.is_dir():
        raise InputError(
            f"bench: the folder of real scans {named} does not exist; correct --data or VOXELOCITY_DATA, or leave it "
            "out to measure phantoms only"
        )
    return named


def work_folder(given: Path | None) -> Path:
    """The folder for phantoms, which now exists; if none is given, one of this user's below the temporary folder.

    Raises:
        OutputError: it cannot be made or written.
    """
    return writable_folder(given or Path(tempfile.gettempdir()) / f"voxelocity-bench-{os.getuid()}", option="--work")


def writable_folder(folder: Path, *, option: str, where: str = "bench") -> Path:
    """The folder that a user named by this option, which now exists: better refused before hours of work than after.

    Raises:
        OutputError: it cannot be made or written; the message begins with `where`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{where}: cannot make the folder {folder} ({error.strerror}); name another with {option}"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{where}: cannot write into the folder {folder}; name another with {option}")
    return folder
