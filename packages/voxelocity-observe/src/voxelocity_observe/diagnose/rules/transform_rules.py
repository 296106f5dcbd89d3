"""Rules on what is slow in making a batch: collating, unpacking, the same work again, one random transform."""

from __future__ import annotations

import math

from voxelocity_observe.core.quantities import bytes_text, duration_text, factor_text
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.rules.loader_model import (
    fit_loader_model,
    kind_share,
    making_holds_up,
    making_stacks,
    saved_s,
    training_transforms,
    transform_share,
)
from voxelocity_observe.diagnose.rules.loading import making_lines
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    num_samples,
    stack_line,
    waits_for_data,
)
from voxelocity_observe.diagnose.rules.words import percent

# torch.stack writes more than this; what a collate function takes beyond it is its own work.
_COLLATE_BYTES_PER_S = 1e9
_COLLATE_SHARE = 0.25
_GUNZIP_SHARE = 0.4
# isal took 0.3 to 0.5 of zlib's time on CT and MR scans (docs/measured.md, decoding).
_GUNZIP_SAVED = 0.5
_DOMINANT_SHARE = 0.4
# Chains lowered to few passes ran 3.8 to 10 times MONAI's rate (docs/measured.md, side by side: monai).
_LOWERED_SAVED = 0.67
# A batch that travels between processes with this many times the voxels that the network takes.
_EXCESS = 3.0
_MOVED_BYTES_PER_S = 1e9
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
        evidence=[f"collate function: {made.loader.collate}, {place or 'location unknown'}", *making_lines(made)],
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
    if share < _GUNZIP_SHARE or not making_holds_up(facts):
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
        saves_s=saved_s(facts, share * _GUNZIP_SAVED),
        change="from voxelocity.monai import CacheDataset  # instead of monai.data's: unpacks faster, keeps what it "
        "unpacked\n\n"
        "data = CacheDataset(files, transform)",
        where=places[0].where,
    )


@rule("VX114", "One random transform is most of making a batch", pool="data", names_work=True)
def dominant_random(facts: Facts) -> Found | None:
    """A single random transform takes most of an item's time."""
    if not making_holds_up(facts):
        return None
    slowest = max(
        (transform for transform in training_transforms(facts) if transform.is_random),
        key=lambda transform: transform.self_s,
        default=None,
    )
    if slowest is None:
        return None
    share = transform_share(facts, [slowest])
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
        saves_s=saved_s(facts, saved),
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
