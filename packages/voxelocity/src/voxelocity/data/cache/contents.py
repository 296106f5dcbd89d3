"""Lists, checks and removes the entries of a cache folder. Makes no entries and changes nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from voxelocity.data.cache.entry import (
    DamagedEntryError,
    EntryBytes,
    Format,
    OutdatedEntryError,
    is_named_by_us,
    read_header,
)
from voxelocity.data.cache.entry_files import EntryFiles
from voxelocity.data.cache.lmdb_file import DamagedFileError
from voxelocity.data.cache.locks import LOCKS_NAME
from voxelocity.data.cache.stored import Store
from voxelocity.data.cache.tier_table import TIERS, OneFile, TierName
from voxelocity_observe.core.errors import CacheError, ConfigError, OutputError

State = Literal["whole", "damaged", "outdated"]

_FILES: Mapping[TierName, OneFile] = {name: kind.file for name, kind in TIERS.items() if kind.file is not None}


@dataclass(frozen=True, kw_only=True)
class KeptEntry:
    """One entry of a cache folder.

    Attributes:
        tier: where it is kept.
        state: "outdated" is whole, of an older format version, and never used again.
        problem: a text that says what is wrong with it; empty where it is whole.
        case_id: empty, as all fields below, where the header cannot be read.
        shape: (c, x, y, z).
        age_s: seconds since it was made, None where unknown.
    """

    tier: TierName
    key: str
    num_bytes: int
    state: State = "whole"
    problem: str = ""
    case_id: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    format: Format | Literal[""] = ""
    age_s: float | None = None

    @property
    def bytes_per_voxel(self) -> float | None:
        """Bytes for each voxel of the grid, including all channels, label and foreground."""
        if not self.shape:
            return None
        _, x, y, z = self.shape
        return self.num_bytes / (x * y * z)


class CacheContents:
    """The entries of all tiers in a folder.

    Only opens and removes entries; other files in the folder are left alone.

    Args:
        folder: of a cache.

    Raises:
        ConfigError: there is no such folder, or it is not a cache.
        CacheError: it holds an LMDB file, and the package `lmdb` is missing or the file is of another version.
        OutputError: a file of all entries cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        _check_is_cache(self.folder)
        self._stores: dict[TierName, Store] = {"disk": EntryFiles(self.folder)}
        self._damaged: list[KeptEntry] = []
        for tier, file in _FILES.items():
            path = self._path(tier)
            if path.is_file():
                try:
                    self._stores[tier] = file.open(path)
                except DamagedFileError as error:
                    self._damaged.append(self._damaged_file(tier, error))
                except OSError as error:
                    raise OutputError(f"cache: {path} cannot be opened ({error.strerror}); make it writable") from error

    def entries(self, *, full: bool = False) -> Iterator[KeptEntry]:
        """Every entry, found one after the other. A file that is damaged as a whole counts as one entry.

        Args:
            full: read every voxel and compare checksums; otherwise only lengths, headers and foreground indices.

        Raises:
            CacheError: an entry may not be read.
        """
        for tier, store in self._stores.items():
            try:
                for key in store.keys():  # noqa: SIM118
                    found = self._look(tier, key, full=full)
                    if found is not None:
                        yield found
            except DamagedFileError as error:
                yield self._damaged_file(tier, error)
        yield from self._damaged

    def _look(self, tier: TierName, key: str, *, full: bool) -> KeptEntry | None:
        try:
            with self._stores[tier].reading(key) as content:
                return None if content is None else _describe(tier, key, content, full=full)
        except OSError as error:
            raise CacheError(
                f"cache: entry {key} in {self.folder} cannot be read ({error.strerror}); make it readable or remove it"
            ) from error

    def _damaged_file(self, tier: TierName, error: DamagedFileError) -> KeptEntry:
        path = self._path(tier)
        return KeptEntry(tier=tier, key=path.name, num_bytes=path.stat().st_size, state="damaged", problem=str(error))

    def _path(self, tier: TierName) -> Path:
        return self.folder.resolve() / _FILES[tier].name

    def remove(self, entries: Sequence[KeptEntry]) -> int:
        """Removes these entries; returns the bytes they took. Runs that use one continue, or say how to.

        Raises:
            OutputError: an entry cannot be removed; those before it are.
            CacheError: the file of all entries cannot be written.
        """
        num_bytes = 0
        for entry in entries:
            try:
                file = _FILES.get(entry.tier)
                if file is not None and entry.key == file.name:
                    file.remove(self._path(entry.tier))
                else:
                    self._stores[entry.tier].drop(entry.key)
            except OSError as error:
                raise OutputError(
                    f"cache: entry {entry.key} in {self.folder} cannot be removed ({error.strerror}); make the "
                    "folder writable"
                ) from error
            num_bytes += entry.num_bytes
        return num_bytes


def _check_is_cache(folder: Path) -> None:
    if not folder.exists():
        raise ConfigError(
            f"cache: folder {folder} does not exist; the first run that keeps cases on disk creates it, or give the "
            "folder that data.cache.folder names"
        )
    is_cache = folder.is_dir() and (
        (folder / LOCKS_NAME).is_dir()
        or any((folder / file.name).is_file() for file in _FILES.values())
        or any(map(is_named_by_us, EntryFiles(folder).keys()))
    )
    if not is_cache:
        raise ConfigError(
            f"cache: {folder} is not a cache of prepared cases; give the folder that data.cache.folder names"
        )


def _describe(tier: TierName, key: str, content: EntryBytes, *, full: bool) -> KeptEntry | None:
    """The entry in these bytes; None if the file is not one of ours."""
    try:
        header = read_header(key, content)
    except DamagedEntryError as error:
        if tier not in _FILES and not is_named_by_us(key):
            return None
        state: State = "outdated" if isinstance(error, OutdatedEntryError) else "damaged"
        return KeptEntry(tier=tier, key=key, num_bytes=len(content), state=state, problem=str(error))
    changed = header.first_damage(content, full=full)
    return KeptEntry(
        tier=tier,
        key=key,
        num_bytes=header.num_bytes,
        state="whole" if changed is None else "damaged",
        problem="" if changed is None else f"its {changed} has changed",
        case_id=header.case_id,
        shape=(header.spec.num_channels, *header.spec.grid.shape),
        dtype=header.spec.dtype,
        format=header.format,
        age_s=max(0.0, time.time() - header.created_s),
    )
