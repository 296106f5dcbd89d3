"""Rules on who makes the batches: own thread, too few workers or too many, restarted workers, threads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.diagnose.accounting import data_room_s, making_places, making_share, part_s, passes_of, steps_s
from voxelocity_observe.diagnose.facts import OWN_FEED, Facts, LoaderFacts
from voxelocity_observe.diagnose.rules.loader_model import (
    THREADED,
    LoaderModel,
    fit_loader_model,
    training_loader,
    workers_started_s,
)
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import (
    TELL_SHARE,
    beside_workers_s,
    compute_cores,
    is_shown,
    lines_of,
    num_cores,
    num_samples,
    of_steps,
    on_gpu,
    waits_for_data,
)
from voxelocity_observe.diagnose.rules.words import at, changed_call

# Workers cannot hide a batch that takes this many times the median without prefetched batches.
_LATE_FACTOR = 3.0
_NUM_BATCHES_JUDGED = 20
# Workers that compute for this share of their time wait for cores and not for a source.
_COMPUTING_SHARE = 0.75
# Batches that take less than this share of computing need nobody to make them meanwhile.
_LIGHT_SHARE = 0.25
_WITHOUT_WORKERS = {"persistent_workers": "", "prefetch_factor": "", "use_thread_workers": ""}
# A step that with workers still takes this many times its computing is far from the ceiling; the finding says why.
_FAR_FROM_CEILING = 1.5


def loader_change(facts: Facts, made: LoaderModel, num_workers: int) -> str:
    """The program's own call of its loader, or of the queue that makes its patches, with this many workers."""
    if made.loader.queue_workers is not None:
        return _queue_change(made.loader, num_workers) + spin_hint(facts, num_workers)
    arguments = {"num_workers": str(num_workers), "persistent_workers": "True"}
    if on_gpu(facts):
        arguments["pin_memory"] = "True"
    return loader_call(made.loader, arguments) + spin_hint(facts, num_workers)


def loader_call(loader: LoaderFacts, arguments: Mapping[str, str]) -> str:
    """The program's own call of its loader with these arguments; in general form if its source is not known."""
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return changed_call(loader.call, loader.variable, **arguments) or f"{loader.kind}(..., {given})"


def _queue_change(loader: LoaderFacts, num_workers: int) -> str:
    """TorchIO's queue takes the workers: they load whole subjects, and the loader only takes patches from it."""
    queue = changed_call(loader.dataset_call, loader.dataset_variable, num_workers=str(num_workers))
    return (
        (queue or f"queue = torchio.Queue(..., num_workers={num_workers})")
        + "\n"
        + loader_call(loader, {"num_workers": "0"})
        + "  # stays 0: the queue has the workers"
    )


def spin_hint(facts: Facts, num_workers: int) -> str:
    """What else to set if waiting threads would take the cores from this many workers; usually nothing."""
    settings = facts.settings
    if settings is None or on_gpu(facts) or settings.num_threads < 2:
        return ""
    if settings.num_threads + num_workers <= num_cores(facts):
        return ""
    if settings.environment.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        return ""
    return "\n# and start it with OMP_WAIT_POLICY=PASSIVE, or torch's threads spin on the workers' cores (VX353)"


def waiting_text(facts: Facts) -> str:
    """ "the network spends 6.1 s of 10 s (61 %) waiting for data"."""
    return f"the network spends {of_steps(facts, part_s(facts, 'wait'), has_share=True)} waiting for data"


def making_lines(made: LoaderModel) -> list[str]:
    """Evidence: the time of a step, of its wait, and of making its batches."""
    return [
        f"a step takes {duration_text(made.step_s)}, including {duration_text(made.wait_s)} waiting for its batch",
        f"a step's batch takes {duration_text(made.made_s)} to make: {duration_text(made.item_s)} in the data set, "
        f"{duration_text(made.collate_s)} in collating ({count_text(made.num_batches, 'batch', 'batches')} seen)",
        f"{count_text(made.cores, 'core')} for the program; computing keeps {made.compute_cores} busy",
    ]


def _is_torch_loader(made: LoaderModel) -> bool:
    """Whether processes make its batches, or the training's own thread; a thread of MONAI's may only hand them on."""
    return made.loader.kind != OWN_FEED and (made.loader.kind not in THREADED or made.num_workers > 0)


@rule("VX101", "Batches are made in the training's own thread, one after the other", pool="data")
def own_thread(facts: Facts) -> Found | None:
    """No worker makes the next batch while the network computes."""
    made = fit_loader_model(facts)
    if made is None or not _is_torch_loader(made) or not waits_for_data(facts):
        return None
    if made.num_workers > 0 or made.loader.queue_workers:
        return None
    is_queue = made.loader.queue_workers is not None
    count = made.best_workers()
    then_s = made.step_with(count)
    limit = (
        f", because making batches then keeps all cores busy; only less work per batch can reduce it to the "
        f"{duration_text(made.compute_s)} that it computes"
        if then_s > _FAR_FROM_CEILING * made.compute_s
        else ""
    )
    return Found(
        cause=f"With num_workers=0{' in the queue' if is_queue else ''}, {waiting_text(facts)}. "
        f"{count_text(count, 'worker')} would make the next batches in the meantime: a step would take "
        f"{duration_text(then_s)}{limit}.",
        evidence=[
            f"{'Queue' if is_queue else made.loader.kind}(num_workers=0){at(made.loader.place)}",
            *making_lines(made),
        ],
        saves_s=made.saves_s(count),
        # The workers of a queue finish subjects in another order than one thread does.
        risk="changes results" if is_queue else "safe",
        change=loader_change(facts, made, count),
        where=made.loader.place,
    )


@rule("VX102", "Scans are read and prepared in the training loop itself, without a loader", pool="data")
def no_loader(facts: Facts) -> Found | None:
    """The loop reads, unpacks or transforms between two steps, and no loader feeds it."""
    if training_loader(facts) is not None or not facts.counted:
        return None
    stacks = making_places(facts)
    made_s = part_s(facts, "wait", "other") * making_share(facts)
    if not is_shown(facts, made_s):
        return None
    steps = len(facts.counted)
    compute_s = max(0.0, steps_s(facts) - made_s) / steps
    busy_s = made_s * (
        1.0 - num_samples([stack for stack in stacks if stack.kind == "sleep"]) / max(1, num_samples(stacks))
    )
    cores = num_cores(facts)
    then_s = beside_workers_s(facts, compute_s, made_s / steps, busy_s / steps)
    saves_s = max(0.0, steps_s(facts) - steps * then_s)
    return Found(
        cause=f"The loop spends {of_steps(facts, made_s, has_share=True)} making its own batches, while the "
        "network does nothing.",
        evidence=[
            *lines_of(stacks, num_samples(stacks)),
            f"{count_text(cores, 'core')} for the program; computing keeps {compute_cores(facts)} busy",
        ],
        saves_s=min(saves_s, data_room_s(facts)),
        change="class Scans(torch.utils.data.Dataset):\n"
        "    def __len__(self): return len(cases)\n"
        f"    def __getitem__(self, index): ...  # the lines around {stacks[0].where}\n\n"
        "loader = torch.utils.data.DataLoader("
        f"Scans(), batch_size=..., shuffle=True, num_workers={max(1, min(cores, 8))}, persistent_workers=True)"
        + spin_hint(facts, max(1, min(cores, 8))),
        where=stacks[0].where,
    )


@rule("VX103", "Too few workers make the batches", pool="data")
def too_few_workers(facts: Facts) -> Found | None:
    """More workers would make batches as fast as the network takes them, and there are cores for them."""
    made = fit_loader_model(facts)
    if made is None or not _is_torch_loader(made) or made.num_workers == 0 or not waits_for_data(facts):
        return None
    count = made.best_workers()
    saves_s = made.saves_s(count)
    is_bound = made.made_s / made.num_workers > made.compute_s
    if count <= made.num_workers or not is_bound or not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"{count_text(made.num_workers, 'worker')} make{'' if made.num_workers > 1 else 's'} a batch every "
        f"{duration_text(made.made_s / made.num_workers)}, the network takes one every "
        f"{duration_text(made.compute_s)}; {waiting_text(facts)}, and cores are free.",
        evidence=[f"{made.loader.kind}(num_workers={made.num_workers}){at(made.loader.place)}", *making_lines(made)],
        saves_s=saves_s,
        change=loader_change(facts, made, count),
        where=made.loader.place,
    )


@rule("VX104", "More workers than cores get into each other's way", pool="data")
def too_many_workers(facts: Facts) -> Found | None:
    """Workers beyond the cores take time from the network and from each other, and each has to be started."""
    made = fit_loader_model(facts)
    if made is None or not _is_torch_loader(made) or made.num_workers <= made.cores:
        return None
    count = made.best_workers()
    starts = passes_of(facts, "epoch start")
    starts_s = sum(start.seconds for start in starts)
    started_s = workers_started_s(facts, made.loader)
    # Batches made while an epoch starts cost no step time: the steps alone would look faster than they are.
    made_early_s = max(0.0, starts_s - started_s - len(starts) * made.made_s)
    crowded_s = max(0.0, made_early_s + made.num_steps * (made.step_s - made.step_with(count)))
    return Found(
        cause=f"{made.num_workers} workers share {count_text(made.cores, 'core')} with the network; "
        f"a step takes {duration_text(made.step_s)}, with {count} it would take "
        f"{duration_text(made.step_with(count))}.",
        evidence=[
            f"{made.loader.kind}(num_workers={made.num_workers}){at(made.loader.place)}",
            *making_lines(made),
            f"starting the workers took {duration_text(started_s)} in {len(starts)} epoch starts",
        ],
        saves_s=crowded_s + started_s,
        change=loader_change(facts, made, count),
        where=made.loader.place,
    )


@rule("VX105", "Workers are started again at each epoch", pool="data")
def restarted_workers(facts: Facts) -> Found | None:
    """Workers end with their epoch, and the next one waits for new ones and their first batch."""
    loader = training_loader(facts)
    if loader is None or loader.num_workers == 0 or loader.kind == OWN_FEED:
        return None
    starts = passes_of(facts, "epoch start")
    started_s = workers_started_s(facts, loader)
    if not starts or not is_shown(facts, started_s):
        return None
    return Found(
        cause=f"Starting {count_text(loader.num_workers, 'worker')} took {duration_text(started_s / len(starts))} on "
        f"average, at {count_text(len(starts), 'epoch start')}.",
        evidence=[
            f"{loader.kind}(num_workers={loader.num_workers}, persistent_workers=False){at(loader.place)}",
            f"epoch starts: {duration_text(sum(start.seconds for start in starts))} in all, the first batches included",
        ],
        saves_s=started_s,
        basis="measured",
        change=loader_call(loader, {"num_workers": str(loader.num_workers), "persistent_workers": "True"}),
        where=loader.place,
    )


@rule("VX119", "Workers cost more than the batches that they make", pool="data", names_work=True)
def needless_workers(facts: Facts) -> Found | None:
    """Batches that the program could make in no time come from workers, which take cores and have to start."""
    made = fit_loader_model(facts)
    if made is None or not _is_torch_loader(made) or made.num_workers == 0:
        return None
    starts = passes_of(facts, "epoch start")
    starts_s = max(0.0, sum(start.seconds for start in starts) - len(starts) * made.made_s)
    saves_s = starts_s + made.saves_s(0)
    # What takes a worker far more CPU time is not as quick there: the worker has lost what the data set keeps.
    is_slow = made.cpu_s > _LIGHT_SHARE * made.compute_s
    if is_slow or made.made_s > _LIGHT_SHARE * made.compute_s or not is_shown(facts, saves_s):
        return None
    return Found(
        cause=f"A step's batch takes {duration_text(made.made_s)} to make, and the step computes for "
        f"{duration_text(made.compute_s)}. With {count_text(made.num_workers, 'worker')} it takes "
        f"{duration_text(made.step_s)}, and epochs wait {duration_text(starts_s)} for their workers' first batches.",
        evidence=[
            f"{made.loader.kind}(num_workers={made.num_workers}){at(made.loader.place)}",
            *making_lines(made),
            f"{count_text(len(starts), 'epoch start')}, {duration_text(sum(start.seconds for start in starts))} in all",
        ],
        saves_s=saves_s,
        change=changed_call(made.loader.call, made.loader.variable, num_workers="0", **_WITHOUT_WORKERS)
        or f"{made.loader.kind}(..., num_workers=0)",
        where=made.loader.place,
    )


@rule("VX106", "Single batches come late, though most are in time", pool="data")
def late_batches(facts: Facts) -> Found | None:
    """Some batches take far longer than the others, and too few are prefetched to hide them."""
    made = fit_loader_model(facts)
    if made is None or not _is_torch_loader(made) or made.num_workers == 0 or not waits_for_data(facts):
        return None
    seconds = sorted(batch_s for fetch in facts.fetches if fetch.key == made.loader.key for batch_s in fetch.batch_s)
    if len(seconds) < _NUM_BATCHES_JUDGED:
        return None
    middle_s, late_s = statistics.median(seconds), seconds[math.ceil(0.95 * len(seconds)) - 1]
    # If the mean is too slow as well, prefetched batches are used up, and other rules apply.
    hidden_s = made.step_with(made.num_workers) - made.compute_s
    if late_s < _LATE_FACTOR * middle_s or hidden_s > 0.5 * made.wait_s:
        return None
    ahead = made.loader.prefetch_factor or 2
    need = max(ahead + 2, math.ceil(late_s / max(made.compute_s, 1e-9) / made.num_workers) + 1)
    saves_s = min(made.room_s, made.num_steps * max(0.0, made.wait_s - hidden_s))
    return Found(
        cause=f"Half of the batches take {duration_text(middle_s)} or less, one in twenty {duration_text(late_s)} or "
        f"more; with {ahead} prefetched by each worker, {waiting_text(facts)}.",
        evidence=[
            f"{len(seconds)} batches timed, the slowest {duration_text(seconds[-1])}",
            f"{made.loader.kind}(num_workers={made.num_workers}, prefetch_factor={ahead}){at(made.loader.place)}",
        ],
        saves_s=saves_s,
        change=loader_call(made.loader, {"num_workers": str(made.num_workers), "prefetch_factor": str(min(need, 16))}),
        where=made.loader.place,
    )


@rule("VX107", "Threads that make batches wait for each other, as Python runs one at a time", pool="data")
def threads_and_gil(facts: Facts) -> Found | None:
    """A thread-based loader makes batches in Python code that holds the interpreter's lock."""
    made = fit_loader_model(facts)
    if made is None or made.loader.kind not in THREADED or _is_torch_loader(made):
        return None
    # If the two take turns, the loop also stalls within its own calls, as the step without data shows. It stalls for no
    # longer than the thread works: any other difference from steps without data is noise of the machine.
    room_s = min(data_room_s(facts), part_s(facts, "wait") + made.num_steps * made.made_s)
    is_light = made.made_s < _LIGHT_SHARE * made.compute_s
    if not waits_for_data(facts) and (is_light or not is_shown(facts, room_s)):
        return None
    count = made.best_workers()
    return Found(
        cause=f"{made.loader.kind} makes batches in a thread of the program itself: {waiting_text(facts)}, because "
        "Python code of the thread and of the loop runs alternately.",
        evidence=[f"{made.loader.kind}{at(made.loader.place)}", *making_lines(made)],
        saves_s=min(room_s, made.saves_s(count)),
        change=f"torch.utils.data.DataLoader(..., num_workers={count}, persistent_workers=True)"
        + spin_hint(facts, count),
        where=made.loader.place,
    )


@rule("VX108", "Making batches needs more CPU than there is", pool="data")
def cores_used_up(facts: Facts) -> Found | None:
    """All cores are busy; no number of workers helps, only less work per batch."""
    made = fit_loader_model(facts)
    if made is None or not 0 < made.num_workers <= made.cores or not waits_for_data(facts):
        return None
    busy_s = made.compute_s * made.compute_cores + made.cpu_s
    if (
        busy_s / made.cores <= made.compute_s * (1.0 + TELL_SHARE)
        or busy_s / made.cores < _COMPUTING_SHARE * made.made_s / made.num_workers
    ):
        return None
    if not is_shown(facts, made.num_steps * (busy_s / made.cores - made.compute_s)):
        return None
    return Found(
        cause=f"A step and its batch need {duration_text(busy_s)} of CPU time together; on "
        f"{count_text(made.cores, 'core')} that is {duration_text(busy_s / made.cores)} a step. "
        f"Now {waiting_text(facts)}, and another worker would have no core.",
        evidence=[
            f"{made.loader.kind}(num_workers={made.num_workers}){at(made.loader.place)}",
            *making_lines(made),
            f"CPU time of a step's batch: {duration_text(made.cpu_s)}",
        ],
        change="from voxelocity.monai import compile\n\n"
        "chain = compile(chain)  # runs fixed transforms once and keeps the result, random ones in few passes",
        where=made.loader.place,
    )


@rule("VX109", "The feed's threads make fewer batches than the network takes", pool="data")
def feed_behind(facts: Facts) -> Found | None:
    """A run of `voxelocity train` waits for its own feed."""
    loader = training_loader(facts)
    if loader is None or loader.kind != OWN_FEED or not waits_for_data(facts):
        return None
    cores = num_cores(facts)
    has_cores = loader.num_workers < cores
    key = f"data.feed.num_threads={cores}" if has_cores else "data.augment.affine_probability=0.1"
    return Found(
        cause=f"With {count_text(loader.num_workers, 'thread')}, {waiting_text(facts)}.",
        evidence=[f"data.feed.num_threads={loader.num_workers}, {count_text(cores, 'core')} for the run"],
        risk="safe" if has_cores else "changes results",
        change=f"voxelocity train ... --set {key}",
    )
