"""The scenarios by name: at full size and quickly, and how to run one into a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxelocity_lab.bench import build, cache, monai_chains, patches, training, windows
from voxelocity_lab.bench.comparison import Comparison, Record
from voxelocity_lab.bench.peers import versions
from voxelocity_lab.bench.phantom import TINY_KEYS, BenchFolders, PhantomSet, real_data, work_folder
from voxelocity_lab.bench.switches import SWITCHES
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SMALL_CT = PhantomSet(kind="ct", shape=(64, 64, 48), num_cases=2)
_SMALL_MR = PhantomSet(kind="mr", shape=(48, 48, 48), num_cases=2)
_SMALL_PACKED = PhantomSet(kind="ct", shape=(64, 64, 32), num_cases=2, spacing_mm=(1.5, 1.5, 3.0), packed=True)
_TINY = PhantomSet(kind="ct", shape=(20, 24, 20), num_cases=6)
_KINDS = PhantomSet(kind="ct", shape=(40, 40, 32), num_cases=4, packed=True)
_SPLEENS = PhantomSet(kind="ct", shape=(56, 60, 40), num_cases=2, spacing_mm=(1.5, 1.5, 2.0), packed=True)
_SIDE = (24, 24, 24)
_TINY_RUN = tuple(
    word for key, value in {"train.steps": 3, **TINY_KEYS}.items() for word in ("--set", f"{key}={value}")
)
_Run = Callable[[Any, BenchFolders], Iterator[Comparison]]
_SCENARIOS: dict[str, tuple[DataclassInstance, _Run]] = {
    "cache": (
        cache.CacheScenario(
            large=_SMALL_CT, patch=_SIDE, small=_TINY, small_patch=(16, 16, 16), shared=_SMALL_CT, num_processes=1,
            kinds=cache.CacheKinds(cases=_KINDS, patch=_SIDE, num_patches=3, cache_num=3, repeats=1),
            repeats=1, repeats_from_disk=1, repeats_of_epochs=1, repeats_of_processes=1,
        ),
        cache.run,
    ),
    "patches": (
        patches.PatchScenario(
            sets=(_SMALL_CT, _SMALL_MR), patch=_SIDE, num_batches=4, num_peer_batches=4, workers=(0,), repeats=1
        ),
        patches.run_patches,
    ),
    "transforms": (
        patches.TransformScenario(
            sets=(_SMALL_CT, _SMALL_MR), patch=_SIDE, num_batches=2, num_peer_batches=2, nnunet_patch=_SIDE,
            num_nnunet_samples=2, workers=(0,), repeats=1,
        ),
        patches.run_transforms,
    ),
    "feed": (
        patches.FeedScenario(
            cases=_SMALL_CT, patch=_SIDE, batch_size=2, num_batches=4, num_peer_batches=2, workers=(1,), repeats=1,
        ),
        patches.run_feed,
    ),
    "windows": (windows.WindowScenario(shape=(40, 40, 40), num_classes=2, window=_SIDE, repeats=1), windows.run),
    "build": (build.BuildScenario(cases=_SMALL_PACKED, file=_SMALL_PACKED, repeats=1), build.run),
    "training": (
        training.TrainingScenario(cases=_TINY, budget=_TINY_RUN, resident_s=0.0, repeats=1),
        training.run,
    ),
    "monai": (
        monai_chains.MonaiScenario(
            cases=_SPLEENS, brains=_SMALL_MR, patch=_SIDE, num_batches=1, num_peer_batches=1, num_workers=0, repeats=1,
            repeats_of_memory=1,
        ),
        monai_chains.run,
    ),
}  # fmt: skip
"""Settings that take seconds, to see that everything runs here, and what measures; the defaults are the full size."""
NAMES = tuple(_SCENARIOS)


def run_scenario(
    name: str,
    *,
    quick: bool,
    on_comparison: Callable[[Comparison], None],
    work: Path | None = None,
    data: Path | None = None,
) -> Record:
    """Runs one of `NAMES`, alternating ours and the peers.

    Args:
        name: of the scenario.
        quick: in seconds on tiny volumes; its figures mean nothing.
        on_comparison: called with each comparison when it is done.
        work: where phantoms are kept for the next time; below the system's temporary folder if not given.
        data: folder of real scans; as `real_data` finds it if not given, and none of `quick`.

    Raises:
        InputError: there is no such scenario (the nearest one is named), or `data` does not exist.
        OutputError: the work folder cannot be written.
    """
    if name not in NAMES:
        known = (*NAMES, *SWITCHES)
        hint = did_you_mean(name, known)
        raise InputError(f"bench: unknown scenario '{name}'{hint}; choose one of {', '.join(known)}")
    settings, run = _SCENARIOS[name]
    if not quick:
        settings = type(settings)()
    folders = BenchFolders(work=work_folder(work), data=None if quick else real_data(data))
    comparisons = []
    for comparison in run(settings, folders):
        on_comparison(comparison)
        comparisons.append(comparison)
    return Record(
        name=name,
        command=f"voxelocity bench {name}" + (" --quick" if quick else ""),
        settings=asdict(settings),
        comparisons=tuple(comparisons),
        environment={**environment(), "peers": versions()},
    )
