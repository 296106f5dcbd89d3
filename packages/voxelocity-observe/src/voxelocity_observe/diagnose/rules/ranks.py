"""Rules on several ranks: one that is slow or waits, gradients that computing does not hide, a cache for each."""

from __future__ import annotations

from statistics import fmean

from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.diagnose.accounting import COMPUTING, part_s, steps_s
from voxelocity_observe.diagnose.facts import Facts, RankFacts
from voxelocity_observe.diagnose.rules.loader_model import is_own_run, training_loader
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import is_shown, of_steps
from voxelocity_observe.diagnose.rules.words import percent

# Of the forward passes; ranks of equal devices differ by a few percent by chance.
_IMBALANCE = 1.15
_CACHES = ("CacheDataset", "SmartCacheDataset", "CacheNTransDataset")


@rule("VX601", "Ranks wait for the slowest of them", pool="compute")
def slow_rank(facts: Facts) -> Found | None:
    """One rank needs longer for its forward passes, in which ranks do not wait for each other."""
    seconds = {rank.rank: _step_s(rank, "forward") for rank in facts.ranks if rank.num_steps}
    if len(seconds) < 2:
        return None
    slow = max(seconds, key=lambda rank: seconds[rank])
    others_s = fmean(value for rank, value in seconds.items() if rank != slow)
    if others_s <= 0.0 or seconds[slow] < _IMBALANCE * others_s:
        return None
    # With shares in proportion to their speed, all ranks would need as long.
    balanced = len(seconds) / sum(seconds[slow] / max(value, 1e-9) for value in seconds.values())
    saves_s = part_s(facts, *COMPUTING) * (1.0 - balanced)
    change = (
        "voxelocity launch ... train ... --set parallel.balance=measured"
        if is_own_run(facts)
        else f"nvidia-smi; top  # what else runs where rank {slow} does, and whether its clock is held back"
    )
    return Found(
        cause=f"Rank {slow} needs {seconds[slow] / others_s:.1f} times as long for its forward passes as the other "
        f"{count_text(len(seconds) - 1, 'rank')}, which wait for it in each backward pass.",
        evidence=[
            "a forward pass by rank: "
            + ", ".join(f"{rank}: {duration_text(value)}" for rank, value in sorted(seconds.items())),
            f"with shares in proportion to their speed, a step would take {percent(balanced)} of its time",
        ],
        saves_s=saves_s,
        change=change,
    )


@rule("VX602", "A rank waits for its batches, and all others for it", pool="data")
def waiting_rank(facts: Facts) -> Found | None:
    """The batches of another rank than the one in this report come late."""
    own = next((rank for rank in facts.ranks if rank.rank == facts.main.rank), None)
    others = [rank for rank in facts.ranks if rank.rank != facts.main.rank and rank.num_steps]
    if own is None or not own.num_steps or not others:
        return None
    late = max(others, key=lambda rank: _step_s(rank, "wait"))
    saves_s = (_step_s(late, "wait") - _step_s(own, "wait")) * len(facts.counted)
    if not is_shown(facts, saves_s) or _step_s(late, "wait") < 2.0 * _step_s(own, "wait"):
        return None
    return Found(
        cause=f"Rank {late.rank} waits {duration_text(_step_s(late, 'wait'))} for data in each step, and rank "
        f"{own.rank} then waits for its gradients.",
        evidence=[f"rank {own.rank} itself waits {duration_text(_step_s(own, 'wait'))} for data in each step"],
        saves_s=saves_s,
        change="sampler = torch.utils.data.DistributedSampler(dataset)  # equal shares; and look at that rank's disk",
    )


@rule("VX603", "Computing does not hide the exchange of gradients", pool="compute")
def exposed_exchange(facts: Facts) -> Found | None:
    """DistributedDataParallel sums gradients during the backward pass; what remains after it is waited for."""
    optimizer = facts.optimizer
    if optimizer is None or facts.main.world_size < 2 or not facts.counted:
        return None
    # More than one sum a step is VX315's.
    exposed_s = optimizer.sync_s * min(1.0, optimizer.synced_per_step) * len(facts.counted)
    if not is_shown(facts, exposed_s):
        return None
    return Found(
        cause=f"The ranks spend {of_steps(facts, exposed_s, has_share=True)} only exchanging gradients: the backward "
        "pass ends before the exchange does.",
        evidence=[f"{duration_text(optimizer.sync_s)} of each sum over {facts.main.world_size} ranks is not hidden"],
        saves_s=exposed_s / 2.0,
        change="network = DistributedDataParallel(network, bucket_cap_mb=5, gradient_as_bucket_view=True)\n"
        "network.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes; changes roundings",
        risk="changes results",
    )


@rule("VX604", "Each rank keeps its own copy of the cache", pool="memory")
def copied_cache(facts: Facts) -> Found | None:
    """A cache in the memory of each process of a machine holds all cases as often as there are ranks."""
    loader, num_ranks = training_loader(facts), facts.main.num_local_ranks
    if loader is None or num_ranks < 2 or loader.dataset not in _CACHES:
        return None
    return Found(
        cause=f"{loader.dataset} keeps its items in the memory of each of the {num_ranks} ranks on this machine, and "
        "each rank prepares them.",
        evidence=[f"steps took {duration_text(steps_s(facts))} on rank {facts.main.rank}"],
        change="from voxelocity.monai import PersistentDataset  # kept once for all ranks, and mapped by each",
        is_cause=False,
    )


def _step_s(one: RankFacts, part: str) -> float:
    """Seconds of a part in a step of a rank."""
    return one.parts.get(part, 0.0) / max(1, one.num_steps)
