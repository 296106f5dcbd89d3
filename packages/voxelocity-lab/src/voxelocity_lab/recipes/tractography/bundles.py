"""Bundles of streamlines as one cached array, which of them are trained on, and how a model knows them again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from voxelocity.core.rng import generator
from voxelocity.data.cache import entry_key, source_identity
from voxelocity_lab.recipes.division import content_of, visible_in
from voxelocity_lab.recipes.tractography.files import READ_ENDINGS, read_tracts, tract_files
from voxelocity_lab.recipes.tractography.shapes import Numbers, Points, Tracts, resample, with_one_direction
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.host import default_cache_folder
from voxelocity_observe.core.quantities import listed
from voxelocity_observe.core.whole_file import put_in_place

SplitBy = Literal["streamline", "bundle", "subject"]
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Streamlines of a data set with equally many points.

    Attributes:
        streamlines: (n, p, 3) float32 in RAS mm; those of a bundle run the same way.
        bundle: (n), the index of each one's name.
        subject: (n), the index of the folder it comes from.
        names: of the bundles.
        identity: (n) uint64, of the points in the file, in either direction: the same wherever the streamline lies.
        subjects: names of the folders; one if the files are not in folders of their own.
        left_out: what the files hold besides, for a warning.
    """

    streamlines: Points
    bundle: Numbers
    subject: Numbers
    identity: Numbers
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
            identity=self.identity[chosen],
            names=self.names,
            subjects=self.subjects,
        )

    def named(self, names: tuple[str, ...], *, where: Path | str = "the data") -> Bundles:
        """The streamlines of the bundles with these names, numbered by them; others are left out.

        Raises:
            InputError: there are none; `where` says in words where they were looked for.
        """
        if self.names == names:
            return self
        number = np.array([names.index(name) if name in names else -1 for name in self.names], np.int64)[self.bundle]
        if not (number >= 0).any():
            raise InputError(
                f"tractography: {where} has the bundles {listed(self.names)}, and the model knows {listed(names)}; "
                "bundles are compared by their names, so give them those of the training, or train on this data"
            )
        found = self.part(np.flatnonzero(number >= 0))
        return replace(found, bundle=number[number >= 0], names=names)

    def of(self, number: int) -> Points:
        """The streamlines of one bundle."""
        members: Points = self.streamlines[self.bundle == number]
        return members


def open_bundles(data: Path, *, num_points: int, image: Path | None = None) -> Bundles:
    """The streamlines of a file or folder, resampled; kept in the user's cache folder until a file changes.

    A folder that holds only folders has one subject in each.

    Args:
        data: a file of streamlines (`files.READ_ENDINGS`) or an .npz array, a folder of them, or a folder of such
            folders.
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
    cached = default_cache_folder() / "tracts" / f"{key}.npz"
    if cached.is_file():
        with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile):
            return _read_cached(cached)
    found = _bundle({name: read_tracts(files, image=image) for name, files in groups.items()}, num_points)
    # Reading again takes a second or two: no reason to end.
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        _write_cached(cached, found)
    return found


def _files_by_subject(data: Path) -> dict[str, list[Path]]:
    if data.is_dir():
        held, endings = visible_in(data), (*READ_ENDINGS, ".npz")
        folders = [path for path in held if path.is_dir()]
        if folders and not any(path.is_file() and path.name.lower().endswith(endings) for path in held):
            return {path.name: tract_files(path) for path in folders}
    return {data.stem: tract_files(data)}


def _bundle(tracts: dict[str, Tracts], num_points: int) -> Bundles:
    names = tuple(dict.fromkeys(name for subject in tracts.values() for name in subject.names))
    bundle = np.concatenate(
        [np.array([names.index(name) for name in subject.names])[subject.bundle] for subject in tracts.values()]
    )
    streamlines = np.concatenate([resample(subject.points, subject.offsets, num_points) for subject in tracts.values()])
    return Bundles(
        streamlines=with_one_direction(streamlines, bundle),
        bundle=bundle.astype(np.int64),
        subject=np.concatenate([np.full(len(subject), number) for number, subject in enumerate(tracts.values())]),
        identity=np.concatenate([_identities(subject) for subject in tracts.values()]),
        names=names,
        subjects=tuple(tracts),
        left_out="; ".join(subject.left_out for subject in tracts.values() if subject.left_out),
    )


def _identities(tracts: Tracts) -> Numbers:
    # Without negative zeros.
    points = np.ascontiguousarray(tracts.points + np.float32(0.0))
    found = np.empty(len(tracts), np.uint64)
    for number, (start, stop) in enumerate(itertools.pairwise(tracts.offsets)):
        ways = (points[start:stop], points[start:stop][::-1])
        found[number] = min(
            int.from_bytes(hashlib.blake2b(way.tobytes(), digest_size=8).digest(), "little") for way in ways
        )
    return found


def _write_cached(cached: Path, bundles: Bundles) -> None:
    content = io.BytesIO()
    np.savez(
        content,
        streamlines=bundles.streamlines,
        bundle=bundles.bundle,
        subject=bundles.subject,
        identity=bundles.identity,
        names=np.array(bundles.names),
        subjects=np.array(bundles.subjects),
        left_out=np.array(bundles.left_out),
    )
    put_in_place(cached, content.getvalue(), is_durable=False)


def _read_cached(cached: Path) -> Bundles:
    # NumPy leaves a damaged file open.
    with np.load(io.BytesIO(cached.read_bytes()), allow_pickle=False) as arrays:
        return Bundles(
            streamlines=arrays["streamlines"],
            bundle=arrays["bundle"],
            subject=arrays["subject"],
            identity=arrays["identity"],
            names=tuple(map(str, arrays["names"])),
            subjects=tuple(map(str, arrays["subjects"])),
            left_out=str(arrays["left_out"]),
        )


def split(bundles: Bundles, *, by: SplitBy, held_out: float, seed: int) -> tuple[Numbers, Numbers]:
    """The indices that are trained on, and those held out: by content and names alone, in whatever order they come.

    Equal streamlines are on one side. What is held out of a bundle does not depend on other bundles.

    Args:
        bundles: to divide.
        by: "streamline" holds out a share of each bundle, "bundle" whole bundles, "subject" whole folders.
        held_out: the share, 0 to 1; by bundle or subject at least one, unless it is 0.
        seed: of the choice.

    Raises:
        ConfigError: there are too few bundles or subjects to hold one out.
    """
    if by == "streamline":
        # Hashes, multiplied by an odd number, are in another order for each seed.
        factor = np.uint64(generator(seed, stage="split").integers(2**62) * 2 + 1)
        order = bundles.identity * factor
        is_held = np.zeros(len(bundles), bool)
        for number in range(len(bundles.names)):
            members = np.flatnonzero(bundles.bundle == number)
            ordered = np.unique(order[members])
            is_held[members] = np.isin(order[members], ordered[: int(held_out * len(ordered))])
        is_held &= ~np.isin(order, order[~is_held])
        return np.flatnonzero(~is_held), np.flatnonzero(is_held)
    labels, names = _labels(bundles, by)
    num_held = max(1, round(held_out * len(names))) if held_out > 0.0 else 0
    if num_held >= len(names):
        raise ConfigError(
            f"tractography: of {len(names)} {by}s ({', '.join(names[:3])}) none can be held out; set "
            "split.by=streamline, or give more"
        )
    drawn = sorted(range(len(names)), key=lambda number: hashlib.blake2b(f"{seed} {names[number]}".encode()).digest())
    is_held = np.isin(labels, drawn[:num_held])
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _labels(bundles: Bundles, by: SplitBy) -> tuple[Numbers, tuple[str, ...]]:
    return (bundles.bundle, bundles.names) if by == "bundle" else (bundles.subject, bundles.subjects)


def _contents(data: Path) -> dict[str, str]:
    root = data if data.is_dir() else data.parent
    found = [path for files in _files_by_subject(data).values() for path in files]
    return {path.relative_to(root).as_posix(): content_of(path) for path in found}


@dataclass(frozen=True, kw_only=True)
class TractDivision:
    """What a model was trained on, and what was held out from it.

    Attributes:
        by: what was divided.
        trained: identities of the streamlines, sorted.
        held_out: likewise.
        groups: names of the bundles or subjects that were trained on, if these were divided.
        files: content of the files, as `content_of`, by name.
    """

    by: SplitBy
    trained: Numbers
    held_out: Numbers
    groups: tuple[str, ...]
    files: Mapping[str, str]

    @classmethod
    def of(cls, bundles: Bundles, sides: tuple[Numbers, Numbers], *, by: SplitBy, data: Path) -> Self:
        """The division of a training on `data`; `sides` are indices, as of `split`."""
        groups: tuple[str, ...] = ()
        if by != "streamline":
            labels, names = _labels(bundles, by)
            groups = tuple(names[number] for number in np.unique(labels[sides[0]]))
        trained, held_out = (np.unique(bundles.identity[side]) for side in sides)
        return cls(by=by, trained=trained, held_out=held_out, groups=groups, files=_contents(data))

    def to_plain(self) -> dict[str, Any]:
        """As plain data, with numbers and one hash in place of all streamlines."""
        sides = {"trained": self.trained, "held_out": self.held_out}
        return {
            "by": self.by,
            "groups": list(self.groups),
            "files": dict(self.files),
            **{
                name: {"streamlines": len(side), "content": hashlib.blake2b(side.tobytes(), digest_size=16).hexdigest()}
                for name, side in sides.items()
            },
        }

    def sides(self, bundles: Bundles) -> tuple[Numbers, Numbers]:
        """The indices of streamlines that the model was trained on, and of those that it has not seen.

        Others of a bundle or subject that was trained on are in neither, if these were divided.
        """
        is_trained = np.isin(bundles.identity, self.trained)
        is_unseen = ~is_trained
        if self.by != "streamline":
            labels, names = _labels(bundles, self.by)
            is_unseen &= ~np.isin(labels, [number for number, name in enumerate(names) if name in self.groups])
        return np.flatnonzero(is_trained), np.flatnonzero(is_unseen)

    def notices(self, bundles: Bundles, data: Path) -> list[str]:
        """What to know of the division before believing scores on today's data.

        Raises:
            InputError: the files are those of the training, but are read differently now.
        """
        chosen, held = self.sides(bundles)
        num_found = len(np.unique(bundles.identity[chosen]))
        num_new = int((~np.isin(bundles.identity[held], self.held_out)).sum())
        if num_new and set(_contents(data).values()) <= set(self.files.values()):
            raise InputError(
                f"tractography: {data} holds the files of the training, but {num_new:,} of their streamlines are read "
                "differently here, so what was trained on is not known; use the version that trained the model, or "
                "train it again"
            )
        if not num_found:
            return [
                f"None of the {len(bundles):,} streamlines of {data} is one that the model was trained on, so all of "
                "them count as unseen, and copies of the training data cannot be found."
            ]
        notices = []
        if num_found < len(self.trained):
            notices.append(
                f"Of the {len(self.trained):,} streamlines that the model was trained on, {num_found:,} are in {data}; "
                "copies of the others cannot be found."
            )
        if num_new:
            notices.append(
                f"{num_new:,} of the {len(held):,} streamlines that count as held out were not in the data of the "
                "training."
            )
        return notices
