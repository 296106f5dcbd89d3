"""How batches were made: loaders, the work of making, and the files that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OWN_FEED = "Feed"
"""Kind of the loader of `voxelocity train`."""


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """Event `loader`: one per loader, when it is first iterated; the last one of a key counts.

    Attributes:
        key: identifies the loader within its process.
        kind: class name, "DataLoader" for torch's.
        dataset: class name of the data set.
        collate: qualified name of the function that puts batches together; `collate_where` is its "file:line".
        num_batches: of an epoch; None if unknown.
        is_for_training: whether a step followed one of its batches.
        where: "file:line" of the loop that iterates it; "" if the loop is a framework's.
        built: "file:line" of the user's line that made it; `call` is its source and `variable` the name given there.
            `dataset_call` and `dataset_variable` are those of a data set from MONAI or TorchIO.
        queue_workers: workers of the TorchIO queue that is its data set; None for other data sets.
    """

    key: int
    kind: str
    dataset: str
    num_workers: int = 0
    batch_size: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    start_method: str = ""
    collate: str = ""
    collate_where: str = ""
    is_own_collate: bool = False
    num_batches: int | None = None
    num_epochs: int = 0
    is_for_training: bool = False
    where: str = ""
    built: str = ""
    call: str = ""
    variable: str = ""
    dataset_call: str = ""
    dataset_variable: str = ""
    queue_workers: int | None = None

    @property
    def place(self) -> str:
        """The user's line to change: where the loader is made, else where it is iterated."""
        return self.built or self.where


@dataclass(frozen=True, kw_only=True)
class FetchFacts:
    """Event `fetch`: how batches of a loader were made in one process, summed; the last one of a (key, worker) counts.

    Attributes:
        key: the loader's.
        worker: number of the worker, -1 for the program itself.
        item_s: seconds in the data set, over all items; `item_cpu_s` is the thread's CPU time.
        collate_s: seconds in the collate function; `collate_cpu_s` is CPU time.
        batch_s: seconds of single batches, at most the last 1000.
        batch_bytes: bytes of the tensors of the last batch.
        starts_s: seconds from requesting workers until this one began its first batch, one per process.
    """

    key: int
    worker: int
    num_batches: int
    num_items: int
    item_s: float
    item_cpu_s: float
    collate_s: float
    collate_cpu_s: float
    batch_s: Sequence[float] = ()
    batch_bytes: int = 0
    starts_s: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class TransformFacts:
    """Event `transform`: calls of one transform in one process, summed; the last one of a name counts.

    Attributes:
        name: class name, with the library's where two share it.
        is_random: whether it may differ from call to call; what comes before the first random one could be cached.
        self_s: seconds without those of transforms called within it.
        order: place among the transforms as they were first met.
    """

    name: str
    library: str
    num_calls: int
    self_s: float
    self_cpu_s: float
    is_random: bool
    order: int


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Event `files`: what the process opened for reading outside code folders; the last one counts.

    Attributes:
        kinds: suffix (".nii.gz") to number of opens.
        num_opens: of all files.
        num_files: number of different files.
        read_bytes: sizes of the files, counted at each open.
        largest: up to 64 paths, for reading them again.
        unseen: libraries in use that open files by themselves, which are not counted here.
        unpacked_bytes: of the different files together: the unpacked size that a gzip file states, otherwise the size.
        num_uses: opens of a file that was not among the last eight different ones; a reader that opens a file for its
            header and again for its voxels counts once.
    """

    kinds: Mapping[str, int]
    num_opens: int
    num_files: int
    read_bytes: int
    largest: Sequence[str] = ()
    unseen: Sequence[str] = ()
    unpacked_bytes: int = 0
    num_uses: int = 0
