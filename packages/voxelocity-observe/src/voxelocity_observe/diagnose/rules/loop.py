"""Rules on what the loop does besides learning, how often a step calls its network, and what it keeps."""

from __future__ import annotations

import itertools
import math

from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text
from voxelocity_observe.diagnose.accounting import (
    COMPUTING,
    experiment_s,
    has_loader,
    making_places,
    part_s,
    place,
    steps_s,
)
from voxelocity_observe.diagnose.facts import PARTS, Facts, HeldFacts, StackFacts
from voxelocity_observe.diagnose.rules.keeping import replacing_s
from voxelocity_observe.diagnose.rules.loader_model import training_loader
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    calls_named,
    is_shown,
    lines_of,
    needless_call,
    num_samples,
    of_steps,
    on_gpu,
    part_share_of,
    stack_line,
    stacks_in,
)
from voxelocity_observe.diagnose.rules.words import changed_call, shape_text

# Bytes per second that a fill and an addition move, on two cores and on a GPU; both are low estimates.
_CPU_BYTES_PER_S = 1e10
_GPU_BYTES_PER_S = 5e11
# A gradient is filled, read and written where it could have been written once; float32.
_ZERO_BYTES = 3 * 4
# Measured, AdamW of 60 tensors of 28,000 values: fused 0.16 of the loop by CPU time (n = 15); the rule promises half.
_FUSED_SAVED = 0.5
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_LOOP_SHARE = 0.15

# Libraries of metrics, and what MONAI's loops do to predictions before.
_SCORING = ("monai.metrics", "monai.data.utils.decollate", "torchmetrics", "sklearn.metrics", "medpy.metric")

_SINGLE_SHARE = 0.9
# Without a loader the batch size is unknown: this many calls for one backward pass count as its samples.
_MIN_CALLS = 3.0
_MOST_OF_BATCH = 0.75
# Bytes that all steps together must add to a kept variable for it to be worth a line.
_LEAST_GROWTH_BYTES = 1 << 20
# Growth without a known variable may be a cache that fills; this much is reported, but not as a cause.
_UNNAMED_GROWTH_BYTES = 64 << 20
_LEAST_SAMPLES = 9


@rule("VX341", "Gradients are filled with zeros rather than dropped", pool="compute")
def filled_gradients(facts: Facts) -> Found | None:
    """`zero_grad(set_to_none=False)` writes each gradient once more, and adds to it."""
    optimizer, network = facts.optimizer, facts.network
    if optimizer is None or optimizer.sets_to_none or network is None or not facts.counted:
        return None
    rate = _GPU_BYTES_PER_S if on_gpu(facts) else _CPU_BYTES_PER_S
    return Found(
        cause=f"Each step fills {network.num_parameters:,} gradients with zeros and adds to them, where writing "
        "them once would do.",
        evidence=[f"{optimizer.name}.zero_grad(set_to_none=False)"],
        saves_s=len(facts.counted) * network.num_parameters * _ZERO_BYTES / rate,
        change="optimizer.zero_grad()  # set_to_none=True is its default",
        where=optimizer.where,
    )


@rule("VX342", "The optimizer goes through the parameters one by one", pool="compute")
def looping_optimizer(facts: Facts) -> Found | None:
    """The for-loop form, which launches several operations for each parameter."""
    optimizer = facts.optimizer
    seconds = part_s(facts, "optimizer")
    if optimizer is None or optimizer.implementation != "for-loop" or not is_shown(facts, seconds):
        return None
    has_fused = optimizer.name in _FUSED
    way = "fused" if has_fused else "foreach"
    return Found(
        cause=f"{optimizer.name} takes {of_steps(facts, seconds, has_share=True)}, "
        "in several operations for each parameter.",
        evidence=[f"{optimizer.name}: for-loop implementation"],
        saves_s=seconds * _FUSED_SAVED if has_fused else None,
        change=changed_call(optimizer.call, optimizer.variable, **{way: "True"})
        or f"optimizer = torch.optim.{optimizer.name}(..., {way}=True)",
        where=optimizer.where,
    )


@rule("VX361", "Python's garbage is collected by hand in the loop", pool="loop", names_work=True)
def garbage(facts: Facts) -> Found | None:
    """`gc.collect` visits every object of the program at each step."""
    change = "remove this line, or call it once an epoch"
    return needless_call(facts, "gc.collect", why="tensors are freed without it", change=change)


@rule("VX362", "Logging takes part in every step", pool="loop", names_work=True)
def logging_each_step(facts: Facts) -> Found | None:
    """Printing, or a tracker's call that writes at once."""
    stacks = stacks_in(facts, PARTS, ("log",))
    whole = num_samples(stacks_in(facts, PARTS))
    seconds = steps_s(facts) * num_samples(stacks) / max(1, whole)
    if not stacks or not is_shown(facts, seconds):
        return None
    return Found(
        cause=f"Logging and printing take {of_steps(facts, seconds, has_share=True)}.",
        evidence=[stack_line(stack, whole) for stack in stacks[:3]],
        saves_s=seconds * 0.9,
        change=f"if step % 50 == 0:\n    {stacks[0].line.strip()}",
        where=stacks[0].where,
    )


@rule("VX363", "The loop itself takes its time between the network's calls", pool="loop")
def busy_loop(facts: Facts) -> Found | None:
    """Neither data nor network: Python code of the loop."""
    if not facts.counted or part_share_of(facts, "other") < _LOOP_SHARE:
        return None
    if on_gpu(facts) and any(sync.count >= sync.num_steps > 0 for sync in facts.syncs):
        return None
    own = [stack for stack in stacks_in(facts, ("other",)) if stack.kind in ("other", "sync", "transform", "sleep")]
    # A loader makes the batches elsewhere.
    made = 0 if has_loader(facts) else num_samples(making_places(facts))
    whole = num_samples(stacks_in(facts, ("other",)))
    if whole and made > 0.5 * whole:
        return None
    seconds = part_s(facts, "other")
    known_s = sum(call.seconds for call in calls_named(facts, "gc.collect"))
    logged = num_samples(stacks_in(facts, ("other",), ("log",)))
    known_s += seconds * (logged + made) / max(1, whole) + replacing_s(facts)
    known_s += seconds * num_samples(_scoring(facts)) / max(1, whole)
    saves_s = max(0.0, seconds - known_s)
    if not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"Between data, network and optimizer the loop spends {of_steps(facts, seconds, has_share=True)}.",
        evidence=[stack_line(stack, whole) for stack in own[:4]] or ["no stacks were taken there"],
        saves_s=saves_s,
        change="# move this out of the step, do it every 50 steps, or in the data set where workers share it"
        + (f":\n# {own[0].line.strip()}" if own else ""),
        where=own[0].where if own else "",
    )


@rule("VX364", "Predictions of the training are scored at each step", pool="loop", names_work=True)
def scores_each_step(facts: Facts) -> Found | None:
    """Post-processing and metrics of the training's own predictions, as a validation does them."""
    stacks, whole = _scoring(facts), num_samples(stacks_in(facts, ("other",)))
    seconds = part_s(facts, "other") * num_samples(stacks) / max(1, whole)
    if not is_shown(facts, seconds):
        return None
    lines = dict(sorted((place(stack.where), stack.line.strip()) for stack in stacks))
    return Found(
        cause=f"After the network's own work the loop spends {of_steps(facts, seconds, has_share=True)} on turning its "
        "predictions into classes and scoring them.",
        evidence=lines_of(stacks, whole),
        saves_s=seconds,
        change="if step % 50 == 0:\n" + "\n".join(f"    {line}" for line in list(lines.values())[:4]),
        where=max(stacks, key=lambda stack: stack.num_samples).where,
    )


def _scoring(facts: Facts) -> list[StackFacts]:
    """Places of the loop with metrics, or with transforms behind the network's call: before it they prepare batches."""
    if not has_loader(facts):
        return []
    calls = sorted(place(stack.where) for stack in stacks_in(facts, COMPUTING) if stack.where)
    first = dict(reversed(calls))
    inside = [stack for stack in stacks_in(facts, ("other",)) if stack.where]
    lines = {
        stack.where
        for stack in inside
        if stack.function.startswith(_SCORING)
        or (stack.kind == "transform" and place(stack.where)[1] > first.get(place(stack.where)[0], math.inf))
    }
    return [stack for stack in inside if stack.where in lines]


@rule("VX314", "The network is called once for each sample of a batch", pool="compute", names_work=True)
def sample_by_sample(facts: Facts) -> Found | None:
    """Several calls with one sample each, where one call could take the batch."""
    optimizer, network, loader = facts.optimizer, facts.network, training_loader(facts)
    if optimizer is None or network is None or not facts.counted or not network.input_shapes:
        return None
    calls = optimizer.forwards_per_step
    whole = sum(count for _, count in network.input_shapes)
    single = sum(count for shape, count in network.input_shapes if shape and shape[0] == 1)
    if calls < 2.0 or single < _SINGLE_SHARE * whole:
        return None
    if loader is not None and optimizer.batches_per_step > 0.0:
        size, each = loader.batch_size or _MIN_CALLS, calls / optimizer.batches_per_step
        if size < 2 or each < _MOST_OF_BATCH * size:
            return None
    elif calls < _MIN_CALLS * max(1.0, optimizer.backwards_per_step):
        return None
    one_s, many_s = experiment_s(facts, "network, one sample"), experiment_s(facts, "network, a batch")
    seconds = part_s(facts, "forward", "backward")
    saved = max(0.0, 1.0 - many_s / one_s) if one_s and many_s else None
    shape = network.input_shapes[0][0]
    line = next((stack for stack in facts.stacks if stack.part == "forward" and stack.where), None)
    return Found(
        cause=f"A step calls the network {calls:.0f} times with {shape_text(shape)}; one call with "
        f"{shape_text([round(calls), *shape[1:]])} does the same work with {calls:.0f} times fewer launches.",
        evidence=[
            f"{calls:.1f} calls, {optimizer.batches_per_step:.1f} batches and {optimizer.backwards_per_step:.1f} "
            "backward passes a step",
            f"{line.where}: {line.line.strip()}" if line is not None else "",
            *(
                [f"network alone: a sample took {duration_text(one_s)} by itself, {duration_text(many_s)} in a batch"]
                if one_s and many_s
                else ["the network could not be run alone on a batch"]
            ),
        ],
        saves_s=None if saved is None else seconds * saved,
        # Batch normalization then sees all samples at once.
        risk="changes results",
        change="outputs = network(images)  # the whole batch in one call, (b, c, x, y, z)\n"
        "loss = loss_function(outputs, labels)" + (f"\n# instead of: {line.line.strip()}" if line is not None else ""),
        where="" if line is None else line.where,
    )


@rule("VX315", "Ranks sum their gradients at each micro-batch of an accumulation", pool="compute", names_work=True)
def synced_accumulation(facts: Facts) -> Found | None:
    """A step has several backward passes, and a sum over the ranks follows each of them."""
    optimizer = facts.optimizer
    if optimizer is None or not facts.counted or facts.main.world_size < 2:
        return None
    synced, needed = optimizer.synced_per_step, 1.0
    if synced < 1.5 or optimizer.backwards_per_step < 1.5:
        return None
    line = next((stack for stack in stacks_in(facts, ("backward",)) if stack.where), None)
    sync_s = optimizer.sync_s * (synced - needed) * len(facts.counted)
    return Found(
        cause=f"A step has {optimizer.backwards_per_step:.0f} backward passes, and DistributedDataParallel sums all "
        f"gradients over {facts.main.world_size} ranks after {synced:.0f} of them; once, after the last, is enough.",
        evidence=[
            f"{line.where}: {line.line.strip()}" if line is not None else "",
            f"{synced:.1f} sums of gradients a step, {optimizer.backwards_per_step:.1f} backward passes",
            f"computing does not hide {duration_text(optimizer.sync_s)} of a sum in each backward pass"
            if optimizer.sync_s > 0.0
            else "the time of a sum is unknown",
        ],
        saves_s=sync_s if optimizer.sync_s > 0.0 else None,
        change="from contextlib import nullcontext\n\n"
        "last = (micro_batch + 1) % accumulate == 0\n"
        "with nullcontext() if last else network.no_sync():  # forward and backward\n"
        "    loss = loss_function(network(images), labels) / accumulate\n"
        "    loss.backward()",
        where=optimizer.where if line is None else line.where,
    )


@rule("VX508", "Memory grows with every step, as results are kept", pool="memory")
def growing_memory(facts: Facts) -> Found | None:
    """A list or a sum keeps what each step has made."""
    slope, on_device = _growth(facts)
    held = max(
        facts.held,
        key=lambda object_held: (object_held.holds_graph, object_held.item_bytes * object_held.count),
        default=None,
    )
    if held is not None and not held.holds_graph and held.item_bytes * held.count < _LEAST_GROWTH_BYTES:
        held = None
    last = facts.memory.samples[-1] if facts.memory and facts.memory.samples else (0, 0, 0)
    grown = slope * last[0]
    if held is None and (facts.memory is None or not _grows_evenly(facts) or grown < _UNNAMED_GROWTH_BYTES):
        return None
    place = (
        f"`{held.name}` grew by {count_text(held.count, 'entry', 'entries')} in {held.num_steps} steps" if held else ""
    )
    keeps = ", each with the graph of its step" if held is not None and held.holds_graph else ""
    by = (
        max(slope, 0.0)
        if held is None or held.holds_graph
        else max(slope, held.item_bytes * held.count / held.num_steps)
    )
    left = _steps_left(facts, by, on_device)
    return Found(
        cause=(f"{place}{keeps}. " if place else "")
        + (f"Memory {'of the GPU ' if on_device else ''}grows by {bytes_text(by)} a step" if by > 0.0 else "It grows")
        + (f"; free memory lasts about {count_text(left, 'step')}." if left is not None else "."),
        evidence=[
            *([f"{held.where}: {held.line}"] if held else ["no growing variable was found in the program"]),
            f"{bytes_text(last[2] if on_device else last[1])} after {last[0]} counted steps",
        ],
        change=_kept_change(held),
        where=held.where if held else "",
        # A cache that fills grows too, until it is full.
        is_cause=held is not None,
    )


def _growth(facts: Facts) -> tuple[float, bool]:
    """Bytes per step by which memory grows, from the ends of the second half; and whether it is GPU memory."""
    samples = facts.memory.samples if facts.memory else ()
    on_device = on_gpu(facts) and any(sample[2] for sample in samples)
    column = 2 if on_device else 1
    half = samples[len(samples) // 2 :]
    if len(samples) < _LEAST_SAMPLES or half[-1][0] == half[0][0]:
        return 0.0, on_device
    return max(0.0, (half[-1][column] - half[0][column]) / (half[-1][0] - half[0][0])), on_device


def _grows_evenly(facts: Facts) -> bool:
    """Whether each third of the steps added about as much as the others."""
    samples = facts.memory.samples if facts.memory else ()
    if len(samples) < _LEAST_SAMPLES:
        return False
    column = 2 if _growth(facts)[1] else 1
    ends = [samples[0], samples[len(samples) // 3], samples[2 * len(samples) // 3], samples[-1]]
    rates = [
        (after[column] - before[column]) / max(1, after[0] - before[0]) for before, after in itertools.pairwise(ends)
    ]
    return min(rates) > 0.0 and min(rates) >= 0.5 * max(rates)


def _steps_left(facts: Facts, bytes_a_step: float, on_device: bool) -> int | None:
    host = facts.host
    if host is None or bytes_a_step <= 0.0:
        return None
    if on_device:
        pairs = list(zip(host.gpu_memory_total_bytes, host.gpu_memory_bytes, strict=False))
        free = pairs[0][0] - pairs[0][1] if pairs else 0
    else:
        free = host.memory_limit_bytes - host.memory_bytes
    return round(free / bytes_a_step) if free > 0 else None


def _kept_change(held: HeldFacts | None) -> str:
    if held is None:
        return "# look for lists and dictionaries that get longer with each step; keep numbers: loss.item()"
    if held.holds_graph:
        return (
            f"# {held.line}\n# keep the number, not the tensor with its graph: .item(), or .detach() and read it later"
        )
    return f"# {held.line}\n# keep only what you need of it (a metric, a sum), or empty `{held.name}` after each epoch"
