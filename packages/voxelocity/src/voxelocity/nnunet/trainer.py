"""What makes one of our trainers from any trainer of nnU-Net: where its batches come from, and whose step it takes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.native import keep_freed_memory
from voxelocity.nnunet.cases import NnunetCases
from voxelocity.nnunet.checks import check_fold, check_folder, check_previous_stage, check_split, loader_of
from voxelocity.nnunet.fast import VoxelocityFast
from voxelocity.nnunet.feed import NnunetFeed
from voxelocity.nnunet.places import VARIABLE
from voxelocity_observe.core.host import available_memory_bytes, cpu_budget, local_ranks
from voxelocity_observe.core.quantities import bytes_text, count_text

NAME = "nnUNetTrainerVoxelocity"
"""Of our form of nnU-Net's default trainer. That of another has the end of its name too."""
FAST = "Fast"
"""After that name: with our step too."""
_THEIRS = "nnUNetTrainer"
_PROCESSES = "nnUNet_n_proc_DA"
# Of the memory that is free when training begins; validation and export at the end need theirs.
_SHARE_OF_MEMORY = 0.5
_NUM_AHEAD = 3


class VoxelocityFeed:
    """Comes before one of nnU-Net's trainers among the bases of a class, and takes over `get_dataloaders`.

    Loss, schedule, optimizer, checkpoints, validation and export stay nnU-Net's.
    """

    def initialize(self: Any) -> None:
        """As nnU-Net, of cases that it can train on."""
        check_folder(self)
        super().initialize()  # type: ignore[misc]

    def do_split(self: Any) -> tuple[list[str], list[str]]:
        """nnU-Net's, of cases that are there."""
        if about := check_fold(self):
            self.print_to_log_file(f"WARNING: {about}")
        split: tuple[list[str], list[str]] = super().do_split()  # type: ignore[misc]
        check_split(self, split)
        return split

    def get_dataloaders(self: Any) -> tuple[Any, Any]:
        """The training and the validation feed, over the loaders that nnU-Net's trainer itself makes."""
        if self.is_cascaded:
            check_previous_stage(self, self.do_split())
        with _no_processes():
            augmenters = super().get_dataloaders()  # type: ignore[misc]
        # Batches are as large as each other: their pages need not be cleared again for each.
        keep_freed_memory()
        # nnU-Net starts its ranks itself, without the variables of a launcher.
        num_ranks = torch.distributed.get_world_size() if self.is_ddp else local_ranks()
        num_threads = cpu_budget(num_local_ranks=num_ranks)
        max_bytes = int(available_memory_bytes() * _SHARE_OF_MEMORY / num_ranks)
        feeds = []
        for name, augmenter, share in zip(("training", "validation"), augmenters, (0.8, 0.2), strict=True):
            loader = loader_of(augmenter, self)
            cases = NnunetCases(loader._data, max_bytes=int(max_bytes * share))
            feed = NnunetFeed(
                loader,
                cases,
                num_threads=num_threads,
                num_ahead=_NUM_AHEAD,
                device=self.device,
            )
            left = ", ".join(type(transform).__name__ for transform in feed.chain.rest)
            self.print_to_log_file(
                f"Voxelocity feeds the {name} on {feed.made_on}: {count_text(num_threads, 'thread')}, up to "
                f"{bytes_text(int(max_bytes * share))} of voxels in memory"
                + (f"; nnU-Net's own code runs {left}" if left else "")
            )
            feeds.append(feed)
        return feeds[0], feeds[1]

    def save_checkpoint(self: Any, filename: str) -> None:
        """nnU-Net's file, moved to its place once it is whole: a kill leaves the one before."""
        target = Path(filename)
        part = target.with_name(f".{target.name}.part")
        # Only one rank writes, and none if that is off: what a killed training left is not a checkpoint.
        if self.local_rank == 0:
            part.unlink(missing_ok=True)
        super().save_checkpoint(str(part))  # type: ignore[misc]
        if self.local_rank == 0 and part.exists():
            part.replace(target)

    def on_train_end(self: Any) -> None:
        """Ends the threads."""
        super().on_train_end()  # type: ignore[misc]
        for feed in (self.dataloader_train, self.dataloader_val):
            if isinstance(feed, NnunetFeed):
                feed.close()


@functools.cache
def trainer_class(name: str) -> type:
    """Our form of one of nnU-Net's trainers: nnUNetTrainerVoxelocity_250epochs is its nnUNetTrainer_250epochs.

    nnUNetTrainerVoxelocityFast_250epochs is the same with our step. Trainers of the user, in a folder that
    `nnUNet_extTrainer` names, have these forms too.

    Raises:
        AttributeError: the name is not of this form, or nnU-Net has no such trainer.
    """
    if name.startswith(NAME):
        import nnunetv2.paths
        from nnunetv2.utilities.find_class_by_name import recursive_find_python_class

        end = name.removeprefix(NAME)
        ours = (VoxelocityFast, VoxelocityFeed) if end.startswith(FAST) else (VoxelocityFeed,)
        theirs = _THEIRS + end.removeprefix(FAST)
        own = os.path.join(nnunetv2.__path__[0], "training", _THEIRS), f"nnunetv2.training.{_THEIRS}"
        # Releases that do not know the variable cannot search there.
        named = os.environ.get(VARIABLE, "").split(os.pathsep) if hasattr(nnunetv2.paths, VARIABLE) else []
        users = [(path, None) for path in named if os.path.isdir(path)]
        # Not all releases take a fourth argument.
        found = (recursive_find_python_class(folder, theirs, module) for folder, module in (own, *users))
        base = next((kind for kind in found if kind is not None), None)
        if base is not None:
            added = "feed and step" if len(ours) > 1 else "feed"
            return type(name, (*ours, base), {"__doc__": f"{theirs} over Voxelocity's {added}."})
    raise AttributeError(f"nnunet: no trainer is called {name}")


@contextlib.contextmanager
def _no_processes() -> Iterator[None]:
    """nnU-Net makes its loaders without starting worker processes over them."""
    before = os.environ.get(_PROCESSES)
    os.environ[_PROCESSES] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PROCESSES]
        else:
            os.environ[_PROCESSES] = before
