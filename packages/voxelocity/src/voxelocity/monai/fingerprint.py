"""What a chain of transforms does and what an item is, as short texts: equal texts mean equal results.

These are not cache keys: each cache makes its keys from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from monai.transforms import Compose

from voxelocity.monai.content import ObjectDigests, digest
from voxelocity.monai.sources import FolderFacts, path_facts, versions_below_all
from voxelocity_observe.core.errors import DatasetError

COMPOSE_OPTIONS = ("map_items", "unpack_items", "lazy", "overrides")


@dataclass(frozen=True)
class ChainFingerprint:
    """What a chain does.

    Attributes:
        digest: 40 hexadecimal digits, different whenever the result for some item could be different.
        doubts: what could not be read, in words. With any doubts the digest says too little: do not keep results under
            it for other processes.
    """

    digest: str
    doubts: tuple[str, ...]


def fingerprint(transform_or_chain: Sequence[Callable[..., Any]] | Callable[..., Any] | None) -> ChainFingerprint:
    """The fingerprint of a transform, a `Compose` or a list of transforms; the same in every process.

    It is made of each transform's class and attributes, all the way down: arrays by their bytes, files named by a
    `Path` or an absolute path by real path, size, times and inode, functions and classes of installed packages by name
    and version, and all others by their code, constants, defaults, closures and globals. Random states and drawn
    numbers are left out. The versions of Python, MONAI, torch, numpy, scipy and nibabel always count.

    Costs about ten milliseconds for a usual chain. Calls no transform.
    """
    content = ObjectDigests()
    parts = [content.of(versions_below_all(), "versions")]
    chain: Any = transform_or_chain
    if type(chain) is Compose:
        parts.append(content.of({name: getattr(chain, name) for name in COMPOSE_OPTIONS}, "Compose"))
        chain = chain.transforms
    transforms = chain if isinstance(chain, (list, tuple)) else () if chain is None else (chain,)
    for number, transform in enumerate(transforms):
        parts.append(content.of(transform, f"transform {number} ({_short_name(transform)})"))
    return ChainFingerprint(digest(*parts).hex(), tuple(content.doubts))


def item_identity(item: object, folders: FolderFacts | None = None) -> str:
    """What an item of a data set is: numbers and text by value, arrays by their bytes, files by `sources.path_facts`.

    Text that names an existing file or folder stands for it: another size, time or inode of the file, or of a file in
    the folder, gives another identity. Of files, only headers that may have their voxels in another one are opened.

    Args:
        item: of a data set.
        folders: known facts of folders, extended here; if not given, each folder is listed now.

    Raises:
        DatasetError: the item holds an object that cannot be read.
    """
    content = ObjectDigests(with_files=True, folders=folders)
    found = content.of(item, "item")
    if content.doubts:
        raise DatasetError(
            f"voxelocity.monai.compile: {content.doubts[0]}; put only numbers, strings, arrays and paths into the "
            "items and create the rest in a transform, or set cache='off'"
        )
    return found.hex()


def source_facts(item: object, folders: FolderFacts | None = None) -> list[str]:
    """`sources.path_facts` of every existing file, or folder, that the item names; other text is skipped.

    Args:
        item: of a data set.
        folders: as in `item_identity`.
    """
    folders = FolderFacts() if folders is None else folders
    if isinstance(item, (str, PurePath)):
        return path_facts(str(item), folders=folders)
    parts: Sequence[object] = ()
    if isinstance(item, Mapping):
        parts = tuple(item.values())
    elif isinstance(item, (list, tuple)):
        parts = item
    return [fact for part in parts for fact in source_facts(part, folders)]


def _short_name(transform: object) -> str:
    return getattr(transform, "__name__", None) or type(transform).__name__
