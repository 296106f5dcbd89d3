"""Rules on what is slow in making a batch: collating, unpacking, the same work again, one random transform."""

from __future__ import annotations

import itertools
import math
import re

from voxelocity_observe.core.quantities import bytes_text, duration_text, factor_text
from voxelocity_observe.diagnose.accounting import data_room_s, making_places, making_share, part_s
from voxelocity_observe.diagnose.facts import OWN_FEED, Facts, LoaderFacts, StackFacts, TransformFacts
from voxelocity_observe.diagnose.rules.loader_model import (
    fit_loader_model,
    kind_share,
    making_stacks,
    training_loader,
)
from voxelocity_observe.diagnose.rules.loading import making_lines
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    fits_in_memory,
    lines_of,
    num_samples,
    part_share_of,
    stack_line,
    waits_for_data,
)
from voxelocity_observe.diagnose.rules.words import percent, renamed_call

# torch.stack writes more than this; what a collate function takes beyond it is its own work.
_COLLATE_BYTES_PER_S = 1e9
_COLLATE_SHARE = 0.25
_GUNZIP_SHARE = 0.4
# isal took 0.3 to 0.5 of zlib's time on CT and MR scans (docs/measured.md, decoding).
_GUNZIP_SAVED = 0.5
_DOMINANT_SHARE = 0.4
# Chains lowered to few passes ran 3.8 to 10 times MONAI's rate (docs/measured.md, side by side: monai).
_LOWERED_SAVED = 0.67
_FIXED_SHARE = 0.15
_READING_SHARE = 0.15
_USED_AGAIN = 1.5
# Voxels stored in one or two bytes, read as float32: four times at most.
_HELD_FACTOR = 4
# Lines of the user's code that may give a different result each time.
_RANDOM = re.compile(r"rand|rng|choice|shuffle|augment|crop", re.IGNORECASE)
# A batch that travels between processes with this many times the voxels that the network takes.
_EXCESS = 3.0
_MOVED_BYTES_PER_S = 1e9
_KEEPING = ("CacheDataset", "PersistentDataset", "SmartCacheDataset", "LMDBDataset", "CacheNTransDataset")
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int16": 2}


@rule("VX111", "The function that puts batches together is slow", pool="data", names_work=True)
def slow_collate(facts: Facts) -> Found | None:
    """Collating takes a good part of making a batch, and far longer than moving its bytes would."""
    made = fit_loader_model(facts)
    if made is None or not waits_for_data(facts):
        return None
    if made.collate_s < _COLLATE_SHARE * made.made_s or made.loader.collate.startswith("torch.utils.data"):
        return None
    needed_s = made.batch_bytes / _COLLATE_BYTES_PER_S
    share = max(0.0, made.collate_s - needed_s) / made.made_s
    place = made.loader.collate_where or made.loader.place
    return Found(
        cause=f"{made.loader.collate or 'The collate function'} takes {duration_text(made.collate_s)} a step, "
        f"{percent(made.collate_s / made.made_s)} of what its batch takes; stacking "
        f"{bytes_text(made.batch_bytes)} takes about {duration_text(needed_s)}.",
        evidence=[f"collate function: {made.loader.collate}, {place or 'place unknown'}", *making_lines(made)],
        saves_s=made.gain_s(share),
        change=f"# do what {made.loader.collate or 'it'} does beyond stacking for each item: once if it gives the same "
        "each time,\n# otherwise in the data set, where workers share it\n"
        "items = [prepared(item) for item in items]\n"
        f"{made.loader.kind}(items, ..., collate_fn=torch.utils.data.default_collate)",
        where=place,
    )


@rule("VX112", "Unpacking gzip is most of making a batch", pool="data", names_work=True)
def gunzip(facts: Facts) -> Found | None:
    """Most samples of making batches are inside zlib."""
    share = kind_share(facts, "gunzip")
    if share < _GUNZIP_SHARE or not _making_holds_up(facts):
        return None
    stacks = making_stacks(facts)
    places = [stack for stack in stacks if stack.kind == "gunzip"]
    kinds = facts.files.kinds if facts.files else {}
    packed = sum(count for suffix, count in kinds.items() if suffix.endswith("gz"))
    return Found(
        cause=f"{percent(share)} of making batches is unpacking gzip, on one core per file, again at each use.",
        evidence=[
            *[stack_line(place, num_samples(stacks)) for place in places[:2]],
            f"{packed} packed files opened" if packed else "",
        ],
        saves_s=_saved_s(facts, share * _GUNZIP_SAVED),
        change="from voxelocity.monai import CacheDataset  # instead of monai.data's: unpacks faster, keeps what it "
        "unpacked\n\n"
        "data = CacheDataset(files, transform)",
        where=places[0].where,
    )


@rule("VX113", "The same fixed preparation is done again each epoch", pool="data", names_work=True)
def repeated_work(facts: Facts) -> Found | None:
    """The transforms before the first random one give the same result for a scan each time, and it is not kept."""
    loader = training_loader(facts)
    if (loader is not None and (loader.dataset in _KEEPING or loader.kind == OWN_FEED)) or not _making_holds_up(facts):
        return None
    fixed = _fixed(facts)
    files = facts.files
    read_times = files.num_uses / max(1, files.num_files) if files else 1.0
    share = _transform_share(facts, fixed)
    if share < _FIXED_SHARE or not fixed:
        return None
    names = ", ".join(transform.name for transform in fixed[:6])
    return Found(
        cause=f"{percent(share)} of making items is {names}: the same result for a scan at each use, computed again "
        "in each epoch.",
        evidence=[
            *[
                f"{slow.name}: {slow.num_calls} calls, {duration_text(slow.self_s / max(1, slow.num_calls))} each"
                for slow in sorted(fixed, key=lambda transform: -transform.self_s)[:4]
            ],
            f"each file was read {read_times:.1f} times" if read_times > 1.0 else "",
        ],
        saves_s=_saved_s(facts, share),
        change="from voxelocity.monai import CacheDataset  # keeps what comes before the first random transform\n\n"
        + _kept_dataset(loader)
        + "  # or PersistentDataset(..., cache_dir=...) if memory is short",
        where=loader.place if loader else "",
    )


@rule("VX114", "One random transform is most of making a batch", pool="data", names_work=True)
def dominant_random(facts: Facts) -> Found | None:
    """A single random transform takes most of an item's time."""
    if not _making_holds_up(facts):
        return None
    slowest = max(
        (transform for transform in facts.transforms if transform.is_random),
        key=lambda transform: transform.self_s,
        default=None,
    )
    if slowest is None:
        return None
    share = _transform_share(facts, [slowest])
    if share < _DOMINANT_SHARE:
        return None
    is_monai = "monai" in slowest.library.lower()
    saved = share * (_LOWERED_SAVED if is_monai else 0.5)
    return Found(
        cause=f"{slowest.name} takes {percent(share)} of making items, "
        f"{duration_text(slowest.self_s / max(1, slowest.num_calls))} a call.",
        evidence=[
            f"{slowest.name} ({slowest.library}): {slowest.num_calls} calls, {duration_text(slowest.self_s)}, with "
            f"{duration_text(slowest.self_cpu_s)} of CPU time",
            "assumed: " + ("its fused form takes a third" if is_monai else "half of it can be saved"),
        ],
        saves_s=_saved_s(facts, saved),
        risk="safe" if is_monai else "changes results",
        change="from voxelocity.monai import compile\n\nchain = compile(chain)  # random transforms in few "
        "passes, same draws"
        if is_monai
        else f"{slowest.name}(..., p=0.2)  # less often, or after the crop, on fewer voxels",
    )


@rule("VX115", "Batches carry far more than the network takes", pool="data")
def large_batches(facts: Facts) -> Found | None:
    """Workers hand over many times the bytes that the network is given."""
    made = fit_loader_model(facts)
    network = facts.network
    if (
        made is None
        or made.num_workers == 0
        or network is None
        or not network.input_shapes
        or not waits_for_data(facts)
    ):
        return None
    shape = network.input_shapes[0][0]
    needed = _ITEM_BYTES.get(network.input_dtype.removeprefix("torch."), 4) * math.prod(shape)
    # An image and a label of the same size are what a step takes.
    excess = made.batch_bytes / max(1, 2 * needed)
    if excess < _EXCESS:
        return None
    moved_s = (made.batch_bytes - 2 * needed) / _MOVED_BYTES_PER_S
    return Found(
        cause=f"A batch holds {bytes_text(made.batch_bytes)}, {factor_text(excess)} what the network's input and "
        f"a label of its size hold; each batch is written, handed to another process and read again.",
        evidence=[f"input of the network: {bytes_text(needed)}", *making_lines(made)],
        saves_s=min(made.room_s, made.num_steps * min(made.wait_s, moved_s)),
        change="Compose([..., SelectItemsd(keys=('image', 'label')), CastToTyped(keys=('image', 'label'), "
        "dtype=('float32', 'uint8'))])  # last, so that unused crops and keys are dropped",
        where=made.loader.place,
    )


def _making_holds_up(facts: Facts) -> bool:
    """Whether the steps wait for batches to be made, in a loader or in the loop."""
    if training_loader(facts) is not None:
        return waits_for_data(facts)
    return bool(facts.counted) and bool(making_places(facts)) and part_share_of(facts, "other", "wait") > 0.03


def _saved_s(facts: Facts, share: float) -> float:
    """Seconds that the counted steps would save without this share of the making."""
    made = fit_loader_model(facts)
    if made is not None:
        return made.gain_s(share)
    return min(data_room_s(facts), share * making_share(facts) * part_s(facts, "wait", "other"))


def _fixed(facts: Facts) -> list[TransformFacts]:
    """Transforms before the first random one that were called for each item."""
    chain = sorted(facts.transforms, key=lambda transform: transform.order)
    before = list(itertools.takewhile(lambda transform: not transform.is_random, chain))
    loader = training_loader(facts)
    made = sum(fetch.num_items for fetch in facts.fetches if loader is not None and fetch.key == loader.key)
    # A cached transform is called while the cache is filled, not for each item.
    return [transform for transform in before if transform.num_calls >= 0.5 * made]


def _transform_share(facts: Facts, transforms: list[TransformFacts]) -> float:
    """Share of these transforms in the making of items."""
    loader = training_loader(facts)
    whole_s = sum(
        fetch.item_s + fetch.collate_s for fetch in facts.fetches if loader is not None and fetch.key == loader.key
    )
    # Transforms of validation are counted too; the whole is never less than the sum of all transforms.
    whole_s = max(whole_s, sum(transform.self_s for transform in facts.transforms))
    return sum(transform.self_s for transform in transforms) / whole_s if whole_s > 0.0 else 0.0


@rule("VX116", "The same files are read again at each use, though memory could hold them", pool="data", names_work=True)
def read_again(facts: Facts) -> Found | None:
    """Each file was read several times, and the contents of all of them are small compared with the free memory."""
    loader, files = training_loader(facts), facts.files
    if files is None or files.num_uses < _USED_AGAIN * max(1, files.num_files) or not _making_holds_up(facts):
        return None
    if loader is not None and (loader.dataset in _KEEPING or loader.kind == OWN_FEED):
        return None
    if _transform_share(facts, _fixed(facts)) >= _FIXED_SHARE:
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
        saves_s=_saved_s(facts, share),
        change=_kept_change(where, has_loader=loader is not None),
        where=where,
    )


def _reading(facts: Facts) -> list[StackFacts]:
    """Places of the making that give the same result for a file each time: reading, unpacking, the lines after it."""
    return [
        stack
        for stack in making_stacks(facts)
        if stack.kind in ("read", "gunzip", "decode") or (stack.kind == "other" and not _RANDOM.search(stack.line))
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
    """The program's own data set, as one that keeps its items."""
    own = loader is not None and renamed_call(loader.dataset_call, loader.dataset_variable, "CacheDataset")
    return own or "data = CacheDataset(files, transform)"
