"""What several rules ask of facts: which device, how many cores, what the stacks of a part were doing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from voxelocity_observe.core.quantities import duration_text
from voxelocity_observe.diagnose.accounting import COMPUTING, part_s, steps_s, watched_s
from voxelocity_observe.diagnose.facts import CallFacts, Facts, StackFacts
from voxelocity_observe.diagnose.rules.rule import Found
from voxelocity_observe.diagnose.rules.words import percent

# Less than this is within the difference between two recordings of the same program, and not worth a line.
TELL_SHARE = 0.01

_HALF_TYPES = ("bfloat16", "float16", "half")


def on_gpu(facts: Facts) -> bool:
    """Whether the network is on a CUDA device."""
    return facts.settings is not None and facts.settings.device == "cuda"


def computes_in_half(facts: Facts) -> bool:
    """Whether the network computes in 16 bits, by autocast or by its own weights."""
    if facts.settings is not None and any(name in facts.settings.autocast for name in _HALF_TYPES):
        return True
    return facts.network is not None and any(name in facts.network.input_dtype for name in _HALF_TYPES)


def has_tensor_cores(facts: Facts) -> bool:
    """Whether the device multiplies matrices in 16 bits many times faster: NVIDIA GPUs of capability 7.0 and up."""
    return on_gpu(facts) and facts.settings is not None and tuple(facts.settings.capability) >= (7, 0)


def of_steps(facts: Facts, seconds: float, *, has_share: bool = False) -> str:
    """ "6.1 s of 10 s", of the counted steps; with the share, "6.1 s of 10 s (61 %)"."""
    text = f"{duration_text(seconds)} of {duration_text(steps_s(facts))}"
    return f"{text} ({percent(seconds / steps_s(facts))})" if has_share else text


def num_cores(facts: Facts) -> int:
    """Cores that the process may use, its share if several ranks run on the machine; 1 if unknown."""
    if facts.host is not None:
        return max(1, facts.host.num_cpus // facts.main.num_local_ranks)
    known = facts.environment.get("num_cpus")
    return (
        known if isinstance(known, int) and known > 0 else max(1, facts.settings.num_threads if facts.settings else 1)
    )


def compute_cores(facts: Facts) -> int:
    """Cores that computing a step keeps busy: with a GPU the one that launches its work, otherwise torch's threads."""
    threads = 1 if on_gpu(facts) or facts.settings is None else facts.settings.num_threads
    return max(1, min(threads, num_cores(facts)))


def beside_workers_s(facts: Facts, compute_s: float, made_s: float, cpu_s: float) -> float:
    """Seconds of computing if one worker per core makes its data meanwhile, which takes `cpu_s` of CPU time."""
    cores = num_cores(facts)
    return max(compute_s, made_s / cores, (compute_s * compute_cores(facts) + cpu_s) / cores)


def compute_s(facts: Facts) -> float:
    """Seconds in which the counted steps computed."""
    return part_s(facts, *COMPUTING)


def waits_for_data(facts: Facts) -> bool:
    """Whether the network waited for data long enough to report it."""
    return bool(facts.counted) and part_s(facts, "wait") >= TELL_SHARE * watched_s(facts)


def is_shown(facts: Facts, seconds: float) -> bool:
    """Whether these seconds are a large enough share of the watched time to report."""
    return seconds > 0.0 and seconds >= TELL_SHARE * watched_s(facts)


def has_fixed_shapes(facts: Facts) -> bool:
    """Whether nearly all batches had one shape; the last batch of an epoch may be smaller."""
    shapes = facts.network.input_shapes if facts.network else ()
    total = sum(count for _, count in shapes)
    return total > 0 and shapes[0][1] >= 0.9 * total


def stacks_in(facts: Facts, parts: Collection[str], kinds: Collection[str] | None = None) -> Sequence[StackFacts]:
    """Stacks sampled in these parts, most frequent first."""
    found = [stack for stack in facts.stacks if stack.part in parts and (kinds is None or stack.kind in kinds)]
    return sorted(found, key=lambda stack: -stack.num_samples)


def network_line(facts: Facts) -> str:
    """ "file:line" of the user's network, or of the line that calls it most; "" if neither is known."""
    if facts.network is not None and facts.network.where:
        return facts.network.where
    return next((stack.where for stack in stacks_in(facts, ("forward",)) if stack.where), "")


def num_samples(stacks: Sequence[StackFacts]) -> int:
    """How often a thread was sampled in these places."""
    return sum(stack.num_samples for stack in stacks)


def stack_line(stack: StackFacts, of: int) -> str:
    """One line of evidence: the share of the samples, the place, and its source."""
    share = stack.num_samples / max(1, of)
    function = f" in {stack.function}" if stack.function else ""
    place = f", {stack.where}: {stack.line.strip()}" if stack.where else ""
    return f"{share * 100:.0f} % of the samples{function}{place}"


def lines_of(stacks: Sequence[StackFacts], of: int, *, most: int = 3) -> list[str]:
    """Lines of evidence, one per line of the user's code, most frequent first, with its most frequent function."""
    found: dict[str, StackFacts] = {}
    for stack in sorted(stacks, key=lambda stack: -stack.num_samples):
        known = found.get(stack.where)
        found[stack.where] = (
            stack if known is None else replace(known, num_samples=known.num_samples + stack.num_samples)
        )
    return [stack_line(stack, of) for stack in sorted(found.values(), key=lambda stack: -stack.num_samples)[:most]]


def calls_named(facts: Facts, *names: str) -> Sequence[CallFacts]:
    """Costly calls of these names, the longest first; only calls made in at least every tenth counted step."""
    found = [call for call in facts.calls if call.call in names and call.count >= 0.1 * max(1, call.num_steps)]
    return sorted(found, key=lambda call: -call.seconds)


def needless_call(facts: Facts, name: str, *, why: str, change: str) -> Found | None:
    """A costly call in the loop that the training can do without; None where it is not made."""
    calls = calls_named(facts, name)
    if not calls:
        return None
    seconds = sum(call.seconds for call in calls)
    return Found(
        cause=f"{name}() ran {sum(call.count for call in calls)} times in {calls[0].num_steps} steps and took "
        f"{duration_text(seconds)}; {why}.",
        evidence=[
            f"{call.where}: {call.line.strip()}, {call.count} calls, {duration_text(call.seconds)}" for call in calls
        ],
        saves_s=seconds,
        basis="measured",
        change=f"# {calls[0].line.strip()}  <- {change}",
        where=calls[0].where,
    )


def part_share_of(facts: Facts, *parts: str) -> float:
    """These parts as a share of the counted steps."""
    return part_s(facts, *parts) / max(steps_s(facts), 1e-9)


def fits_in_memory(facts: Facts, num_bytes: int) -> bool:
    """Whether half of the free memory holds this many bytes; True if the memory is unknown."""
    host = facts.host
    if host is None or host.memory_limit_bytes <= 0:
        return True
    return num_bytes <= (host.memory_limit_bytes - host.memory_bytes) / 2
