"""Where a scenario keeps its phantoms, and which real scans it may look at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from voxelocity.core.errors import InputError, OutputError
from voxelocity.core.volume import VolumeRef
from voxelocity.data.source import open_cases

_BESIDE_CHECKOUT = Path(__file__).resolve().parents[4] / "shared" / "data"
_SCANS = ("vs_seg_001/*.nii.gz", "small_ct_mr_samples/msd_spleen_8_coarse/image.nii.gz")
_MAX_SCANS = 2


@dataclass(frozen=True, kw_only=True)
class Places:
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
        return tuple(files[-1] for files in found if files)[:_MAX_SCANS]


def real_data(given: Path | None) -> Path | None:
    """The folder of real scans: the one given, $VOXELOCITY_DATA, or the checkout's neighbor `shared/data`, if any.

    Raises:
        InputError: the folder that was given or named is not there.
    """
    named = given or (Path(os.environ["VOXELOCITY_DATA"]) if "VOXELOCITY_DATA" in os.environ else None)
    if named is None:
        return _BESIDE_CHECKOUT if _BESIDE_CHECKOUT.is_dir() else None
    if not named.is_dir():
        raise InputError(
            f"bench: the folder of real scans {named} does not exist; correct --data or VOXELOCITY_DATA, or leave it "
            "out to measure phantoms only"
        )
    return named


def made(folder: Path) -> Path:
    """The folder, which now exists.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"bench: cannot make the folder {folder} ({error.strerror}); name another with --work"
        ) from None
    return folder
