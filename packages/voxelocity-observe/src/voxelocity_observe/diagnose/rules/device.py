"""Rules on the GPU and what goes to it: left idle, fed slowly, waited for, held up by settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.diagnose.accounting import experiment_s, part_s, steps_s
from voxelocity_observe.diagnose.facts import Facts, LoaderFacts, StackFacts, SyncFacts
from voxelocity_observe.diagnose.rules.loader_model import training_loader
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    TELL_SHARE,
    compute_s,
    is_shown,
    needless_call,
    of_steps,
    on_gpu,
    stacks_in,
)
from voxelocity_observe.diagnose.rules.words import at, changed_call, percent

# Any CUDA device that torch still supports, compared with the cores of one machine, gains far more in convolutions.
_GPU_GAIN = 5.0
# Copies from pinned memory run at least twice as fast as others, and overlap the network's work if nothing waits for
# them (PyTorch's performance guide and its tutorial on pinned memory).
_PINNED_SAVED = 0.5
_EVERY_STEP = 0.9
_LAUNCH_SHARE = 0.15
_READ_SELDOM = (
    "total += loss.detach()          # a tensor, on the device\n"
    "if step % 100 == 99:\n"
    "    print(float(total) / 100); total.zero_()   # read once in a while"
)


@rule("VX201", "There is a GPU, and the network runs on the CPU", pool="compute", names_work=True)
def unused_gpu(facts: Facts) -> Found | None:
    """Torch sees a CUDA device, and the network is on the CPU."""
    settings = facts.settings
    if settings is None or not settings.has_cuda or settings.device != "cpu" or not facts.counted:
        return None
    seconds = compute_s(facts)
    return Found(
        cause=f"Computing takes {of_steps(facts, seconds)} on the CPU, while "
        f"torch sees a GPU that the network was never moved to.",
        evidence=["torch.cuda.is_available(): True", "device of the network's parameters: cpu"],
        saves_s=seconds * (1.0 - 1.0 / _GPU_GAIN),
        change="network = network.to('cuda')\nfor batch in loader:\n    images = batch['image'].to('cuda')",
        where=facts.network.where if facts.network else "",
    )


@rule("VX202", "Batches are copied to the GPU from memory that is not pinned", pool="copy")
def unpinned(facts: Facts) -> Found | None:
    """The copy shows, and the loader hands out pageable memory."""
    loader = training_loader(facts)
    if loader is None or loader.pin_memory:
        return None
    pinned = changed_call(loader.call, loader.variable, pin_memory="True")
    return _copying(
        facts,
        loader,
        why="from memory that the driver first has to copy once more",
        change=(pinned or f"loader = {loader.kind}(..., pin_memory=True)") + f"\n{_not_blocking(facts)}",
    )


@rule("VX203", "The program waits until each batch is copied to the GPU", pool="copy")
def blocking_copy(facts: Facts) -> Found | None:
    """The batch is pinned, and its copy still takes part of the step's time."""
    loader = training_loader(facts)
    if loader is None or not loader.pin_memory:
        return None
    return _copying(
        facts,
        loader,
        why="although they are in pinned memory: the program waits in the meantime",
        change=f"{_not_blocking(facts)}\n"
        "# and copy the next batch on its own stream: voxelocity.Feed(..., device='cuda') does both",
    )


def _copies(facts: Facts) -> list[StackFacts]:
    """The loop's lines that copy batches, most frequent first, each once."""
    found = {stack.where: stack for stack in reversed(stacks_in(facts, ("copy",))) if stack.where}
    return list(found.values())[::-1]


def _not_blocking(facts: Facts) -> str:
    """The program's own line that copies, without waiting for the copy; in general form if it is not known."""
    lines = (re.sub(r"\.(to|cuda)\(([^()]*)\)", _with_flag, stack.line.strip()) for stack in _copies(facts))
    return next(
        (line for line in lines if "non_blocking=True" in line), "images = images.to('cuda', non_blocking=True)"
    )


def _with_flag(call: re.Match[str]) -> str:
    given = call.group(2).strip()
    return (
        f".{call.group(1)}({given}{', ' if given else ''}non_blocking=True)"
        if "non_block" not in given
        else call.group()
    )


def _copying(facts: Facts, loader: LoaderFacts, *, why: str, change: str) -> Found | None:
    copy_s, alone_s = part_s(facts, "copy"), experiment_s(facts, "copy")
    if not on_gpu(facts) or not facts.counted or not is_shown(facts, copy_s):
        return None
    return Found(
        cause=f"Copying batches takes {of_steps(facts, copy_s, has_share=True)}, {why}.",
        evidence=[
            *[f"{stack.where}: {stack.line.strip()}" for stack in _copies(facts)[:2]],
            f"{loader.kind}(pin_memory={loader.pin_memory}){at(loader.place)}",
            "" if alone_s is None else f"one batch copied alone: {duration_text(alone_s)}",
        ],
        saves_s=copy_s * _PINNED_SAVED,
        change=change,
        where=loader.place,
    )


@rule("VX204", "A line in the loop waits for the device at each step", pool="compute", names_work=True)
def waits_each_step(facts: Facts) -> list[Found]:
    """One finding per line that reads a tensor or synchronizes in nearly every step; on a CPU, one for all lines."""
    syncs = [sync for sync in facts.syncs if sync.num_steps > 0 and sync.count >= _EVERY_STEP * sync.num_steps]
    syncs.sort(key=lambda sync: -sync.seconds)
    gpu = [sync for sync in syncs if sync.on_device or on_gpu(facts)]
    idle_s = _idle_s(facts)
    whole_s = sum(sync.seconds for sync in gpu)
    if not gpu:
        return [_would_wait(syncs)] if syncs else []
    # The device's idle time is divided among the lines by how long they waited.
    return [_waiting(facts, sync, saves_s=idle_s * sync.seconds / max(whole_s, 1e-12)) for sync in gpu[:4]]


@rule("VX205", "The GPU waits for the next kernel to be started", pool="compute")
def launch_bound(facts: Facts) -> Found | None:
    """Kernels are so short that the CPU cannot launch them fast enough."""
    profile = facts.profile
    if profile is None or not on_gpu(facts) or profile.wall_ns <= 0:
        return None
    share = profile.launch_bound_ns / profile.wall_ns
    if share < _LAUNCH_SHARE:
        return None
    kernels = profile.groups.get("All kernels")
    mean = kernels.gpu_ns / kernels.number if kernels and kernels.number else 0.0
    return Found(
        cause=f"In {percent(share)} of the profiled steps the GPU had nothing to do while the program was still "
        "launching its next kernels.",
        evidence=[
            f"{profile.num_steps} steps profiled, {duration_text(profile.launch_bound_ns / 1e9)} of "
            f"{duration_text(profile.wall_ns / 1e9)} without a kernel",
            f"{kernels.number} kernels, {mean / 1000:.1f} µs each on average" if kernels else "",
        ],
        saves_s=min(share, 1.0) * (steps_s(facts) - part_s(facts, "wait")),
        change="network = torch.compile(network, mode='reduce-overhead')  # one CUDA graph instead of many launches",
        where=facts.network.where if facts.network else "",
    )


@rule("VX206", "CUDA_LAUNCH_BLOCKING makes the program wait for each kernel", pool="compute", names_work=True)
def launch_blocking(facts: Facts) -> Found | None:
    """The variable for finding errors is set in a training."""
    if facts.settings is None or not on_gpu(facts):
        return None
    value = facts.settings.environment.get("CUDA_LAUNCH_BLOCKING", "0")
    if value in ("", "0"):
        return None
    idle_s = _idle_s(facts)
    return Found(
        cause="The program waits for each kernel before it launches the next one, so the GPU is idle in between.",
        evidence=[f"CUDA_LAUNCH_BLOCKING={value}"],
        saves_s=idle_s if idle_s > 0.0 else None,
        change="unset CUDA_LAUNCH_BLOCKING",
    )


@rule("VX207", "The GPU's memory is given back to the driver in the loop", pool="compute", names_work=True)
def empty_cache(facts: Facts) -> Found | None:
    """`torch.cuda.empty_cache` runs repeatedly, and torch requests the memory again each time."""
    if not on_gpu(facts):
        return None
    why = "torch requests the returned memory again at once"
    return needless_call(facts, "torch.cuda.empty_cache", why=why, change="remove this line")


@rule("VX208", "DataParallel copies the network to each GPU at each step", pool="compute")
def data_parallel(facts: Facts) -> Found | None:
    """The network is wrapped in `DataParallel`, one Python process for all GPUs."""
    if facts.network is None or facts.network.wrapper != "DataParallel":
        return None
    return Found(
        cause="At each step, torch.nn.DataParallel sends the network to each GPU, gathers its outputs on the first "
        "one and launches all kernels from one Python process.",
        evidence=[f"network: DataParallel({facts.network.name}){at(facts.network.where)}"],
        change="network = torch.nn.parallel.DistributedDataParallel(network.to(rank), device_ids=[rank])\n"
        "# torchrun --nproc-per-node=gpu train.py",
        where=facts.network.where,
    )


def _idle_s(facts: Facts) -> float:
    """Seconds in the counted steps in which the device was idle although the batch was ready."""
    profile = facts.profile
    if profile is not None and profile.wall_ns > 0:
        return min(1.0, profile.launch_bound_ns / profile.wall_ns) * steps_s(facts)
    return part_s(facts, "other") if on_gpu(facts) else 0.0


def _waiting(facts: Facts, sync: SyncFacts, *, saves_s: float) -> Found:
    seen = _calls_text(sync)
    return Found(
        cause=f"{sync.call} waits in each step until the GPU has done all its work ({seen}); the GPU is then idle "
        "until Python has launched the next kernels.",
        evidence=[f"{sync.where}: {sync.line.strip()}", seen],
        saves_s=saves_s,
        change=_READ_SELDOM,
        where=sync.where,
        is_cause=saves_s > TELL_SHARE * steps_s(facts),
    )


def _would_wait(syncs: Sequence[SyncFacts]) -> Found:
    """What costs nothing here: one finding for all lines."""
    count, steps = sum(sync.count for sync in syncs), max(sync.num_steps for sync in syncs)
    calls = " and ".join(dict.fromkeys(sync.call for sync in syncs))
    return Found(
        cause=f"{calls} {'runs' if len({sync.call for sync in syncs}) == 1 else 'run'} in each step "
        f"({count_text(count, 'call')} in {count_text(steps, 'step')}). On a CPU this costs almost no time; on a GPU "
        "each call would wait until all work is done.",
        evidence=[f"{sync.where}: {sync.line.strip()} ({_calls_text(sync)})" for sync in syncs[:4]],
        saves_s=0.0,
        change=_READ_SELDOM,
        where=syncs[0].where,
        is_cause=False,
    )


def _calls_text(sync: SyncFacts) -> str:
    calls, steps = count_text(sync.count, "call"), count_text(sync.num_steps, "step")
    return f"{calls} in {steps}, {duration_text(sync.seconds)}"
