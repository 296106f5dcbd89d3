"""Bundles of streamlines as one cached array, and which of them are trained on."""

from __future__ import annotations

import contextlib
import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from voxelocity.core.errors import ConfigError, InputError
from voxelocity.core.quantities import listed
from voxelocity.core.rng import generator
from voxelocity.core.whole_file import put_in_place
from voxelocity.data.cache import entry_key, source_identity
from voxelocity.observe import default_cache_folder
from voxelocity.recipes.tractography.files import TRACT_ENDINGS, Tracts, read_tracts, tract_files
from voxelocity.recipes.tractography.shapes import Numbers, Points, resample, with_one_direction

SplitBy = Literal["streamline", "bundle", "subject"]
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Streamlines of a data set with equally many points.

    Attributes:
        streamlines: (n, p, 3) float32 in RAS mm; those of a bundle run the same way.
        bundle: (n), the index of each one's name.
        subject: (n), the index of the folder it comes from.
        names: of the bundles.
        subjects: names of the folders; one if the files are not in folders of their own.
        left_out: what the files hold besides, for a warning.
    """

    streamlines: Points
    bundle: Numbers
    subject: Numbers
    names: tuple[str, ...]
    subjects: tuple[str, ...]
    left_out: str = ""

    def __len__(self) -> int:
        return len(self.bundle)

    def part(self, chosen: Numbers) -> Bundles:
        """Some of the streamlines, with the names of all bundles."""
        return Bundles(
            streamlines=self.streamlines[chosen],
            bundle=self.bundle[chosen],
            subject=self.subject[chosen],
            names=self.names,
            subjects=self.subjects,
        )

    def named_as(self, names: tuple[str, ...]) -> Bundles:
        """The streamlines of the bundles with these names, numbered by them; others are left out.

        Raises:
            InputError: no bundle has one of these names.
        """
        if self.names == names:
            return self
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place.get(name, -1) for name in self.names], np.int64)
        if not (numbers >= 0).any():
            raise InputError(
                f"tractography: the data has the bundles {listed(self.names)}, the model {listed(names)}: none in "
                "common, so nothing can be compared; give data with bundles of these names"
            )
        is_known = numbers[self.bundle] >= 0
        part = self.part(np.flatnonzero(is_known))
        return replace(part, bundle=numbers[part.bundle], names=names)

    def of(self, number: int) -> Points:
        """The streamlines of one bundle."""
        members: Points = self.streamlines[self.bundle == number]
        return members


def open_bundles(data: Path, *, num_points: int, image: Path | None = None) -> Bundles:
    """The streamlines of a file or folder, resampled; kept in the user's cache folder until a file changes.

    A folder that holds only folders has one subject in each.

    Args:
        data: a .trk, .tck, .trx or .npz file, a folder with such files, or a folder of such folders.
        num_points: of each streamline.
        image: whose space they must lie in.

    Raises:
        InputError: there are no such files.
        ScanError: a file cannot be used.
    """
    groups = _files_by_subject(data)
    every = [path for files in groups.values() for path in files]
    identity = source_identity([*every, *([] if image is None else [image])])
    key = entry_key(identity, f"tractography {_VERSION} points={num_points}")
    place = default_cache_folder() / "tracts" / f"{key}.npz"
    if place.is_file():
        with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
            return _read_cached(place)
    found = _bundled({name: read_tracts(files, image=image) for name, files in groups.items()}, num_points)
    # Reading again takes a second or two: no reason to end.
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        _write_cached(place, found)
    return found


def _files_by_subject(data: Path) -> dict[str, list[Path]]:
    if data.is_dir():
        folders = [path for path in sorted(data.iterdir()) if path.is_dir() and not path.name.startswith(".")]
        endings = (*TRACT_ENDINGS, ".npz")
        if folders and not any(path.is_file() and path.suffix.lower() in endings for path in data.iterdir()):
            return {path.name: tract_files(path) for path in folders}
    return {data.stem: tract_files(data)}


def _bundled(tracts: dict[str, Tracts], num_points: int) -> Bundles:
    names = tuple(dict.fromkeys(name for one in tracts.values() for name in one.names))
    bundle = np.concatenate(
        [np.array([names.index(name) for name in one.names])[one.bundle] for one in tracts.values()]
    )
    streamlines = np.concatenate([resample(one.points, one.offsets, num_points) for one in tracts.values()])
    return Bundles(
        streamlines=with_one_direction(streamlines, bundle),
        bundle=bundle.astype(np.int64),
        subject=np.concatenate([np.full(len(one), number) for number, one in enumerate(tracts.values())]),
        names=names,
        subjects=tuple(tracts),
        left_out="; ".join(one.left_out for one in tracts.values() if one.left_out),
    )


def _write_cached(place: Path, bundles: Bundles) -> None:
    content = io.BytesIO()
    np.savez(
        content,
        streamlines=bundles.streamlines,
        bundle=bundles.bundle,
        subject=bundles.subject,
        names=np.array(bundles.names),
        subjects=np.array(bundles.subjects),
        left_out=np.array(bundles.left_out),
    )
    put_in_place(place, content.getvalue(), is_durable=False)


def _read_cached(place: Path) -> Bundles:
    # NumPy leaves a damaged file open.
    with np.load(io.BytesIO(place.read_bytes()), allow_pickle=False) as arrays:
        return Bundles(
            streamlines=arrays["streamlines"],
            bundle=arrays["bundle"],
            subject=arrays["subject"],
            names=tuple(map(str, arrays["names"])),
            subjects=tuple(map(str, arrays["subjects"])),
            left_out=str(arrays["left_out"]),
        )


def split(bundles: Bundles, *, by: SplitBy, held_out: float, seed: int) -> tuple[Numbers, Numbers]:
    """The indices that are trained on, and those held out: the same for the same seed.

    Args:
        bundles: to divide.
        by: "streamline" holds out a share of each bundle, "bundle" whole bundles, "subject" whole folders.
        held_out: the share, 0 to 1; by bundle or subject at least one, unless it is 0.
        seed: of the choice.

    Raises:
        ConfigError: there are too few bundles or subjects to hold one out.
    """
    numbers = generator(seed, stage="split")
    if by == "streamline":
        is_held = np.zeros(len(bundles), bool)
        for number in range(len(bundles.names)):
            members = numbers.permutation(np.flatnonzero(bundles.bundle == number))
            is_held[members[: int(held_out * len(members))]] = True
        return np.flatnonzero(~is_held), np.flatnonzero(is_held)
    labels, names = (bundles.bundle, bundles.names) if by == "bundle" else (bundles.subject, bundles.subjects)
    num_held = max(1, round(held_out * len(names))) if held_out > 0.0 else 0
    if num_held >= len(names):
        raise ConfigError(
            f"tractography: of {len(names)} {by}s ({', '.join(names[:3])}) none can be held out; set "
            "split.by=streamline, or give more"
        )
    is_held = np.isin(labels, numbers.permutation(len(names))[:num_held])
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)
