"""Rules on what is prepared again though it could be kept: in a data set, behind a random transform, beside a loop."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text
from voxelocity_observe.diagnose.accounting import COMPUTING, experiment_s, part_s, passes_of, steps_s
from voxelocity_observe.diagnose.facts import OWN_FEED, Facts, LoaderFacts, StackFacts, TransformFacts
from voxelocity_observe.diagnose.rules.loader_model import (
    fit_loader_model,
    making_holds_up,
    making_stacks,
    saved_s,
    training_loader,
    training_transforms,
    transform_share,
)
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    compute_cores,
    fits_in_memory,
    is_shown,
    lines_of,
    num_cores,
    num_samples,
    of_steps,
    stack_line,
    stacks_in,
)
from voxelocity_observe.diagnose.rules.words import at, changed_call, percent, renamed_call

_FIXED_SHARE = 0.15
_READING_SHARE = 0.15
_USED_AGAIN = 1.5
# Voxels stored in one or two bytes, read as float32: four times at most.
_HELD_FACTOR = 4
_READS = ("read", "gunzip", "decode")
# Lines of the user's code that may give a different result each time.
_RANDOM = re.compile(r"rand|rng|choice|shuffle|augment|crop", re.IGNORECASE)
# Data sets that keep what they prepare at its first use, on disk: never prepared twice, though it may look so in the
# epoch that fills them.
_KEPT_AT_FIRST_USE = ("PersistentDataset", "LMDBDataset", "CacheNTransDataset", "GDSDataset")
# Arguments of data sets that say how much is kept, and what keeps all ("" for leaving it out).
_KEEPS_ALL = {"cache_rate": "1.0", "cache_num": "", "in_memory": "True"}
# Fewer items than this share are prepared where a data set keeps all; more where it keeps none.
_FEW, _NEARLY_ALL = 0.05, 0.95
# Where a loop waits for a thread: MONAI's data sets, and what threads are waited for with.
_THREADS = ("monai.data.", "threading.", "queue.", "concurrent.futures.")
_REPLACING_SHARE = 0.5
# An item that its data set keeps is there in less than this part of the time.
_KEPT_FACTOR = 3.0
# Uses of a file from which items are known to have been made again.
_MADE_AGAIN = 1.2
# What is done to a patch and not to a scan, so it has to follow random transforms.
_OF_PATCHES = re.compile(r"Pad|ToTensor|EnsureType|CastTo|SelectItems|DeleteItems|Lambda|Identity|Compose")


@rule("VX113", "The same fixed preparation is done again each epoch", pool="data", names_work=True)
def repeated_work(facts: Facts) -> Found | None:
    """The transforms before the first random one give the same result for a scan each time, and it is not kept."""
    loader = training_loader(facts)
    if (loader is not None and loader.kind == OWN_FEED) or not making_holds_up(facts):
        return None
    fixed = _fixed(facts)
    share = transform_share(facts, fixed)
    if share < _FIXED_SHARE or not fixed or _may_be_filling(facts, fixed):
        return None
    read_times = _read_times(facts)
    part = _prepared_share(facts, fixed)
    names = ", ".join(transform.name for transform in fixed[:6])
    return Found(
        cause=f"{percent(share)} of making items is {names}: the same result for a scan at each use, computed again "
        + ("in each epoch." if part >= _NEARLY_ALL else f"for {percent(part)} of the items; the others are kept."),
        evidence=[
            *[
                f"{slow.name}: {slow.num_calls} calls, {duration_text(slow.self_s / max(1, slow.num_calls))} each"
                for slow in sorted(fixed, key=lambda transform: -transform.self_s)[:4]
            ],
            f"each file was read {read_times:.1f} times" if read_times > 1.0 else "",
        ],
        saves_s=saved_s(facts, share),
        change=_kept_dataset(loader) + "  # or PersistentDataset(..., cache_dir=...) if memory is short",
        where=(loader.dataset_built or loader.place) if loader else "",
    )


@rule("VX117", "Fixed preparation comes after a random transform, so it cannot be kept", pool="data", names_work=True)
def fixed_after_random(facts: Facts) -> Found | None:
    """Transforms behind the first random one take most of the making, though they give the same result each time."""
    if not making_holds_up(facts):
        return None
    chain = training_transforms(facts)
    behind = list(itertools.dropwhile(lambda transform: not transform.is_random, chain))
    late = [
        transform for transform in _each_time(facts, behind, _FEW)
        if not transform.is_random and not _OF_PATCHES.search(transform.name)
    ]  # fmt: skip
    share = transform_share(facts, late)
    if share < _FIXED_SHARE:
        return None
    first, last = behind[0], late[-1]
    names = ", ".join(transform.name for transform in late[:6])
    is_kept = not _each_time(facts, chain[: len(chain) - len(behind)], _NEARLY_ALL)
    moved = [transform.line or f"{transform.name}(...)," for transform in (*late, first)]
    return Found(
        cause=f"{percent(share)} of making items is {names}, after {first.name}, the first random transform. Caches "
        "keep what comes before it, so this is repeated at each use.",
        evidence=[
            f"{first.name}, random: {first.where or 'location unknown'}",
            *[
                f"{slow.name}: {slow.num_calls} calls, {duration_text(slow.self_s / max(1, slow.num_calls))} each"
                + (f", {slow.where}" if slow.where else "")
                for slow in sorted(late, key=lambda transform: -transform.self_s)[:4]
            ],
        ],
        saves_s=saved_s(facts, share),
        # A flip before resampling is a flip after it; an intensity shift before clipping is not quite one after it.
        risk="changes results",
        change=f"# {first.name} after {last.name}:\n"
        + "\n".join(moved)
        + ("" if is_kept else f"\n\n{_kept_dataset(training_loader(facts))}"),
        where=first.where,
    )


@rule("VX118", "The loop waits while a thread of the data set replaces its items", pool="loop", names_work=True)
def slow_replacement(facts: Facts) -> Found | None:
    """Items are prepared in a thread beside the training, which takes longer than an epoch."""
    loader, wait_s = training_loader(facts), replacing_s(facts)
    if loader is None or not is_shown(facts, wait_s):
        return None
    beside = _beside(facts)
    made_s = sum(transform.self_s for transform in beside)
    (line, *_) = _waiting_lines(facts)
    rate, workers = (_argument(loader.dataset_call, name) for name in ("replace_rate", "num_replace_workers"))
    trained_s = steps_s(facts) - wait_s
    cores = num_cores(facts) - compute_cores(facts)
    if cores > 1:
        needed = math.ceil((trained_s + wait_s) / max(trained_s, 1e-9))
        given = {"num_replace_workers": str(max(2, min(cores, needed * max(1, round(workers)))))}
    else:
        given = {"replace_rate": f"{max(0.01, rate * trained_s / max(trained_s + wait_s, 1e-9)):.1g}"}
    call = changed_call(loader.dataset_call, loader.dataset_variable, **given) if rate else ""
    slow = sorted(beside, key=lambda transform: -transform.self_s)
    return Found(
        cause=f"The loop waits {of_steps(facts, wait_s, has_share=True)} at {line.line.strip()}: a thread of the data "
        f"set prepares items meanwhile ({slow[0].name} and others, {duration_text(made_s)}), and needs longer than the "
        "steps of an epoch.",
        evidence=[
            *[stack_line(stack, num_samples(stacks_in(facts, ("other",)))) for stack in _waiting_lines(facts)[:2]],
            *[
                f"{transform.name}: {transform.num_calls} calls, "
                f"{duration_text(transform.self_s / max(1, transform.num_calls))} each, beside the training"
                for transform in slow[:4]
            ],
            f"{count_text(num_cores(facts), 'core')} for the program",
        ],
        saves_s=wait_s,
        # Fewer new items an epoch.
        risk="changes results" if "replace_rate" in given else "safe",
        change=(call or "# replace fewer items an epoch, or prepare them in more threads")
        + "  # or CacheDataset(..., cache_rate=1.0) if memory holds all",
        where=loader.dataset_built or line.where,
    )


@rule("VX120", "Workers lose what the data set keeps, as they end with each epoch", pool="data", names_work=True)
def lost_with_workers(facts: Facts) -> Found | None:
    """A data set that keeps what it made, in workers that are started again at each epoch."""
    made, files = fit_loader_model(facts), facts.files
    if made is None or made.num_workers == 0 or made.loader.persistent_workers or _read_times(facts) < _MADE_AGAIN:
        return None
    first_s, again_s = (experiment_s(facts, f"item, {use}") for use in ("first use", "used again"))
    if first_s is None or again_s is None or first_s < _KEPT_FACTOR * again_s:
        return None
    starts = passes_of(facts, "epoch start")
    saves_s = made.num_steps * (made.step_s - max(made.compute_s, made.made_s * again_s / first_s))
    saves_s += made.first_batches_s
    if not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"An item takes {duration_text(first_s)} when it is first used and {duration_text(again_s)} when it is "
        f"used again, as the data set keeps it. {count_text(made.num_workers, 'worker')} keep what they use for "
        "themselves, and lose it when their epoch ends.",
        evidence=[
            f"{made.loader.kind}(num_workers={made.num_workers}, persistent_workers=False){at(made.loader.place)}",
            f"{count_text(len(starts), 'epoch start')}",
            f"each file was read {_read_times(facts):.1f} times" if files else "",
        ],
        saves_s=saves_s,
        change="# in the data set, before workers start, so that they share it:\n"
        "def __init__(self, ...):\n"
        "    self.kept = {index: self.load(index) for index in range(len(self))}\n"
        "# and keep the workers, which then need not start again:\n"
        + changed_call(made.loader.call, made.loader.variable, persistent_workers="True"),
        where=made.loader.place,
    )


@rule("VX116", "The same files are read again at each use, though memory could hold them", pool="data", names_work=True)
def read_again(facts: Facts) -> Found | None:
    """Each file was read several times, and the contents of all of them are small compared with the free memory."""
    loader, files = training_loader(facts), facts.files
    if files is None or files.num_uses < _USED_AGAIN * max(1, files.num_files) or not making_holds_up(facts):
        return None
    if loader is not None and loader.kind == OWN_FEED:
        return None
    fixed = _fixed(facts)
    if transform_share(facts, fixed) >= _FIXED_SHARE and not _may_be_filling(facts, fixed):
        # A known chain can be kept up to its first random transform, which saves more (VX113).
        return None
    held_bytes = files.unpacked_bytes * _HELD_FACTOR
    stacks, reading = making_stacks(facts), _reading(facts)
    share = num_samples(reading) / max(1, num_samples(stacks))
    if share < _READING_SHARE or not fits_in_memory(facts, held_bytes):
        return None
    where = next((stack.where for stack in reading if stack.kind != "other"), reading[0].where)
    return Found(
        cause=f"{percent(share)} of making batches is reading files and preparing their contents, and each of "
        f"{files.num_files} files was read {files.num_uses / max(1, files.num_files):.1f} times; "
        + (f"kept in memory they take {bytes_text(held_bytes)} at most." if held_bytes else "once would do."),
        evidence=[
            *lines_of(reading, num_samples(stacks)),
            f"{files.num_opens} opens of {files.num_files} files, {bytes_text(files.read_bytes)} read",
            f"unpacked they hold {bytes_text(files.unpacked_bytes)}" if files.unpacked_bytes else "",
        ],
        saves_s=saved_s(facts, share),
        change=_kept_change(where, has_loader=loader is not None),
        where=where,
    )


def replacing_s(facts: Facts) -> float:
    """Seconds of the counted steps in which the loop waited for items that a thread prepares; 0 if there is none."""
    beside = sum(transform.self_s for transform in _beside(facts))
    lines = _waiting_lines(facts)
    if beside <= 0.0 or not lines:
        return 0.0
    wait_s = part_s(facts, "other") * num_samples(lines) / num_samples(stacks_in(facts, ("other",)))
    # Transforms are counted in the time of the steps only.
    return wait_s if beside >= _REPLACING_SHARE * wait_s else 0.0


def _beside(facts: Facts) -> list[TransformFacts]:
    """Transforms that ran for no item of a loader, in a program whose loader's own transforms are known."""
    loader = training_loader(facts)
    if loader is None or not any(transform.loader == loader.key for transform in facts.transforms):
        return []
    return [transform for transform in facts.transforms if transform.loader == -1 and not transform.is_random]


def _waiting_lines(facts: Facts) -> list[StackFacts]:
    """The loop's own lines that wait for a thread."""
    return [
        stack
        for stack in stacks_in(facts, ("other",))
        if stack.where and (stack.kind == "sleep" or stack.function.startswith(_THREADS))
    ]


def _argument(call: str, name: str) -> float:
    """The number that a call gives for this argument; 0 if it gives none."""
    found = re.search(rf"\b{name}\s*=\s*([0-9.]+)", call)
    return float(found.group(1)) if found else 0.0


def _fixed(facts: Facts) -> list[TransformFacts]:
    """Transforms before the first random one that were called for more than a few of the items."""
    before = itertools.takewhile(lambda transform: not transform.is_random, training_transforms(facts))
    return _each_time(facts, list(before), _FEW)


def _each_time(facts: Facts, transforms: Sequence[TransformFacts], least: float) -> list[TransformFacts]:
    """Those that were called for at least this share of the items; a cached one is called while the cache is filled."""
    made = _num_items(facts)
    return [transform for transform in transforms if transform.num_calls >= least * made]


def _num_items(facts: Facts) -> int:
    """Items made while transforms were counted."""
    loader = training_loader(facts)
    fetches = [fetch for fetch in facts.fetches if loader is not None and fetch.key == loader.key]
    return sum(fetch.counted_items or fetch.num_items for fetch in fetches)


def _prepared_share(facts: Facts, fixed: Sequence[TransformFacts]) -> float:
    """Share of the items for which the fixed transforms were called."""
    return min(1.0, max(transform.num_calls for transform in fixed) / max(1, _num_items(facts)))


def _read_times(facts: Facts) -> float:
    """How often a file was used, as a mean."""
    return facts.files.num_uses / max(1, facts.files.num_files) if facts.files else 1.0


def _may_be_filling(facts: Facts, fixed: Sequence[TransformFacts]) -> bool:
    """Whether what was prepared may be kept from now on: a cache that fills as it is used."""
    loader = training_loader(facts)
    if loader is not None and loader.dataset in _KEPT_AT_FIRST_USE:
        return True
    return _prepared_share(facts, fixed) < _NEARLY_ALL and _read_times(facts) < _MADE_AGAIN


def _reading(facts: Facts) -> list[StackFacts]:
    """Places of the making that give the same result for a file each time: reading, unpacking, the lines after it, and
    all that a function which reads and draws no random numbers does besides."""
    stacks = making_stacks(facts)
    # What a loader does in the training's own thread is all within the loop, random transforms included.
    loops = {stack.within for stack in stacks_in(facts, COMPUTING)}
    readers = {stack.within for stack in stacks if stack.kind in _READS and not stack.draws} - loops - {""}
    return [
        stack
        for stack in stacks
        if stack.kind in _READS
        or (stack.kind == "other" and not _RANDOM.search(stack.line))
        or (stack.within in readers and not stack.draws)
    ]


def _kept_change(where: str, *, has_loader: bool) -> str:
    if has_loader:
        return (
            "class Scans(torch.utils.data.Dataset):\n"
            "    def __init__(self, paths):\n"
            f"        self.scans = [read(path) for path in paths]  # the lines around {where}, once; workers share it\n"
            "    def __getitem__(self, index):\n"
            "        scan = self.scans[index].copy()  # random changes follow here"
        )
    return (
        f"scans = [read(path) for path in paths]  # before the first epoch: the lines around {where}\n\n"
        "for epoch in ...:\n"
        "    for index in ...:\n"
        "        scan = scans[index]  # random changes follow here"
    )


def _kept_dataset(loader: LoaderFacts | None) -> str:
    """The program's own data set, as one that keeps all of its items."""
    call = "" if loader is None else loader.dataset_call
    given = {name: value for name, value in _KEEPS_ALL.items() if re.search(rf"\b{name}\s*=", call)}
    if loader is not None and given:
        return changed_call(call, loader.dataset_variable, **given)
    own = loader is not None and renamed_call(call, loader.dataset_variable, "CacheDataset")
    return "from voxelocity.monai import CacheDataset  # keeps what comes before the first random transform\n\n" + (
        own or "data = CacheDataset(files, transform)"
    )
