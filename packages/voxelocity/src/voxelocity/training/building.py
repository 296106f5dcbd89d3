"""All cases of a data set prepared ahead of any training, into a folder that later runs find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from voxelocity.core.cases import Cases, LabelValues
from voxelocity.core.volume import VolumeRef
from voxelocity.data.cache import FOLDER_TIERS
from voxelocity.data.pipeline import CachingFacts, DataConfig, PreparedCases
from voxelocity.planning import DeviceChoice, make_plan
from voxelocity.training.caching import CacheProgress
from voxelocity_observe.core.errors import CacheError, ConfigError


@dataclass(frozen=True, kw_only=True)
class CacheJob:
    """Which cases are prepared how, and where they are kept. Can be sent to another process.

    Attributes:
        refs: the cases with a label.
        label_values: the file values of each class index.
        class_names: of them.
        ignored: the index of voxels without a known class; None if there are none.
        data: as a run with this plan has it.
        num_threads: of this machine.
    """

    refs: tuple[VolumeRef, ...]
    label_values: LabelValues
    class_names: tuple[str, ...]
    ignored: int | None
    data: DataConfig
    num_threads: int

    def prepared(self, warn: Callable[[str], None]) -> PreparedCases:
        """The cases, each prepared when it is asked for."""
        return PreparedCases(
            self.refs,
            label_values=self.label_values,
            class_names=self.class_names,
            ignored=self.ignored,
            prepare=self.data.prepare,
            cache=self.data.cache,
            warn=warn,
        )


def cache_job(cases: Cases, *, device: DeviceChoice = "auto", overrides: Mapping[str, Any] | None = None) -> CacheJob:
    """What a run on these cases, with the same device and keys, keeps in its disk cache. The fold does not matter.

    Raises:
        ConfigError: `data.cache.tier` is one that keeps nothing on a disk.
        InputError: the data or the keys cannot be used.
    """
    planned = make_plan(cases, device=device, overrides={"data.cache.tier": "disk", **(overrides or {})})
    data = planned.plan.data
    if data.cache.tier not in FOLDER_TIERS:
        raise ConfigError(
            f"cache build: data.cache.tier={data.cache.tier} keeps no cases for later runs; choose "
            f"{' or '.join(FOLDER_TIERS)}, or leave the key out"
        )
    return CacheJob(
        refs=tuple(planned.cases.split("all").training),
        label_values=planned.cases.stored_values,
        class_names=planned.cases.class_names,
        ignored=planned.cases.ignored,
        data=data,
        num_threads=planned.machine.num_cpus,
    )


def build_cache(job: CacheJob, *, console: Console) -> CachingFacts:
    """Prepares the cases that the folder does not hold yet, with all cores of this machine.

    Args:
        job: which.
        console: where progress is shown.

    Raises:
        ScanError: a case cannot be used; those before it stay in the folder.
        CacheError: the folder could not take all of them.
    """
    prepared = job.prepared(lambda text: warn_on(console, text))
    with CacheProgress(console, job.data.cache.tier, len(job.refs)) as progress:
        facts = prepared.fill(num_threads=job.num_threads, on_case=progress.advance, should_stop=lambda: False)
        progress.finish(facts)
    check_kept(job, hint="free space there")
    return facts


def check_kept(job: CacheJob, *, hint: str) -> None:
    """Returns if the folder, as this process sees it, holds every case.

    Args:
        job: which were prepared.
        hint: what helps if not.

    Raises:
        CacheError: it does not.
    """
    # Not the object that prepared them: it keeps in memory what a disk cannot take.
    missing = job.prepared(lambda _: None).missing()
    if missing:
        raise CacheError(
            f"cache build: {len(missing)} of {len(job.refs)} cases, such as '{missing[0]}', were prepared but are not "
            f"in {job.data.cache.folder}; {hint}, or name another folder with data.cache.folder, and repeat the command"
        )


def warn_on(console: Console, text: str) -> None:
    """Shows a warning."""
    console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)


def summed(parts: Sequence[CachingFacts], *, seconds: float) -> CachingFacts:
    """What several processes did together."""
    return CachingFacts(
        num_found=sum(part.num_found for part in parts),
        num_prepared=sum(part.num_prepared for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        seconds=seconds,
        num_kept=sum(part.num_kept for part in parts),
        num_with_foreground=sum(part.num_with_foreground for part in parts),
        classes={case_id: found for part in parts for case_id, found in part.classes.items()},
    )
