"""The scenarios by name: which dataclass, at full size and quickly, and how to run one into a record."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity.bench.build import Build
from voxelocity.bench.build import run as run_build
from voxelocity.bench.cache import Cache
from voxelocity.bench.cache import run as run_cache
from voxelocity.bench.feed import Feeds
from voxelocity.bench.feed import run as run_feed
from voxelocity.bench.kinds import Kinds
from voxelocity.bench.monai_chains import MonaiChains
from voxelocity.bench.monai_chains import run as run_monai
from voxelocity.bench.paired import Comparison
from voxelocity.bench.patches import Patches
from voxelocity.bench.patches import run as run_patches
from voxelocity.bench.peers import versions
from voxelocity.bench.phantom import PhantomSet, default_folder
from voxelocity.bench.places import Places, made, real_data
from voxelocity.bench.record import Record
from voxelocity.bench.switches import SWITCHES
from voxelocity.bench.training import RealTrainings
from voxelocity.bench.training import run as run_training
from voxelocity.bench.transforms import Transforms
from voxelocity.bench.transforms import run as run_transforms
from voxelocity.bench.waiting import Training
from voxelocity.bench.windows import Windows
from voxelocity.bench.windows import run as run_windows
from voxelocity.core.errors import InputError
from voxelocity.observe import environment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SMALL_CT = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=2)
_SMALL_MR = PhantomSet(kind="mr", shape=(48, 48, 48), num_cases=2)
_SMALL_PACKED = PhantomSet(kind="ct", shape=(64, 64, 32), num_cases=2, spacing_mm=(1.5, 1.5, 3.0), packed=True)
_SIDE = (24, 24, 24)
_TINY_RUN = tuple(
    word
    for key in ("train.steps=3", "network.name=unet", "network.widths=[4, 8]", "network.strides=[[2, 2, 2]]",
                "data.patch.shape_voxel=[16, 16, 16]", "window.shape_voxel=[16, 16, 16]")
    for word in ("--set", key)
)  # fmt: skip
_QUICK: dict[str, DataclassInstance] = {
    "cache": Cache(
        large=_SMALL_CT,
        patch=_SIDE,
        small=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
        small_patch=(16, 16, 16),
        kinds=Kinds(
            cases=PhantomSet(kind="ct", shape=(40, 40, 32), num_cases=4, packed=True),
            patch=_SIDE,
            num_patches=3,
            cache_num=3,
            repeats=1,
        ),
        shared=_SMALL_CT,
        num_processes=1,
        repeats=1,
        repeats_from_disk=1,
        repeats_of_epochs=1,
        repeats_of_processes=1,
    ),
    "patches": Patches(
        sets=(_SMALL_CT, _SMALL_MR), patch=_SIDE, num_batches=4, num_peer_batches=4, workers=(0,), repeats=1
    ),
    "transforms": Transforms(
        sets=(_SMALL_CT, _SMALL_MR),
        patch=_SIDE,
        num_batches=2,
        num_peer_batches=2,
        nnunet_patch=_SIDE,
        num_nnunet_samples=2,
        workers=(0,),
        repeats=1,
    ),
    "feed": Feeds(
        cases=_SMALL_CT,
        patch=_SIDE,
        batch_size=2,
        num_batches=4,
        num_peer_batches=2,
        training=Training(
            cases=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
            patch=(16, 16, 16),
            widths=(4, 8, 8),
            num_steps=1,
            repeats=1,
        ),
        repeats=1,
    ),
    "windows": Windows(shape=(40, 40, 40), num_classes=2, window=_SIDE, repeats=1),
    "build": Build(cases=_SMALL_PACKED, file=_SMALL_PACKED, repeats=1),
    "training": RealTrainings(
        cases=PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6),
        options=("--fold", "0", *_TINY_RUN),
        resident_s=0.0,
        repeats=1,
    ),
    "monai": MonaiChains(
        cases=PhantomSet(kind="ct", shape=(56, 60, 40), num_cases=2, spacing_mm=(1.5, 1.5, 2.0), packed=True),
        brains=_SMALL_MR,
        patch=_SIDE,
        num_batches=1,
        num_peer_batches=1,
        num_workers=0,
        repeats=1,
        repeats_of_memory=1,
    ),
}
"""The same scenarios in seconds: to see that everything runs here, not to compare anything."""
_FULL: dict[str, tuple[Callable[[], DataclassInstance], Callable[[Any, Places], Iterator[Comparison]]]] = {
    "cache": (Cache, run_cache),
    "patches": (Patches, run_patches),
    "transforms": (Transforms, run_transforms),
    "feed": (Feeds, run_feed),
    "windows": (Windows, run_windows),
    "build": (Build, run_build),
    "training": (RealTrainings, run_training),
    "monai": (MonaiChains, run_monai),
}
NAMES = tuple(_FULL)


def run_scenario(
    name: str,
    *,
    quick: bool,
    on_comparison: Callable[[Comparison], None],
    work: Path | None = None,
    data: Path | None = None,
) -> Record:
    """Runs one scenario, alternating ours and the peers.

    Args:
        name: one of `NAMES`.
        quick: in seconds on tiny volumes; its figures mean nothing.
        on_comparison: called with each comparison when it is done.
        work: where phantoms are kept for the next time; below the system's temporary folder if not given.
        data: folder of real scans; $VOXELOCITY_DATA or the checkout's neighbor `shared/data` if not given, and none
            where that does not exist.

    Raises:
        InputError: there is no such scenario (the nearest one is named), or `data` does not exist.
        OutputError: the work folder cannot be written.
    """
    if name not in NAMES:
        known = (*NAMES, *SWITCHES)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"bench: unknown scenario '{name}'{hint}; choose one of {', '.join(known)}")
    full, run = _FULL[name]
    scenario = _QUICK[name] if quick else full()
    places = Places(work=made(work or default_folder()), data=None if quick else real_data(data))
    comparisons = []
    for comparison in run(scenario, places):
        on_comparison(comparison)
        comparisons.append(comparison)
    return Record(
        name=name,
        command=f"voxelocity bench {name}" + (" --quick" if quick else ""),
        date=time.strftime("%Y-%m-%d"),
        environment={**environment(), "peers": versions()},
        settings=scenario,
        comparisons=tuple(comparisons),
    )
