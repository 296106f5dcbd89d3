"""The cores: how many are available here, and what they compute quickly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voxelocity.core.quantities import count_text
from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.seen import Processor

_check = partial(Check, section="CPU")

# Two cores give about 125 augmented patches of 96 x 96 x 96 a second (docs/log.md).
_PATCHES_PER_CORE = 62


def judge_processor(processor: Processor, *, num_gpus: int) -> Iterator[Check]:
    """Cores, instruction sets, NUMA, and the load of other programs."""
    yield _judge_budget(processor, num_gpus)
    yield _judge_bfloat16(processor, num_gpus)
    if processor.num_nodes is not None:
        yield _judge_nodes(processor.num_nodes)
    if processor.load is not None and processor.load > processor.num_cores:
        yield _check(
            name="load",
            level="note",
            found=f"{processor.load:.1f} programs are ready to run, on {count_text(processor.num_cores, 'core')}",
            costs="anything timed now, even by the doctor, looks slower than it is",
            cure="list them: top",
        )


def _judge_budget(processor: Processor, num_gpus: int) -> Check:
    found = f"{processor.name or 'a processor of unknown name'}; {count_text(processor.num_budget, 'core')} available"
    limit = _limit_text(processor)
    if processor.num_budget < processor.num_cores:
        found += f" of {processor.num_cores}, limited by {limit}"
    patches = _PATCHES_PER_CORE * processor.num_budget
    if processor.num_budget >= 4 or (num_gpus == 0 and processor.num_budget >= 2):
        return _check(name="cores", level="ok", found=found)
    return _check(
        name="cores",
        level="warning",
        found=found,
        costs=f"they make the batches: about {patches} augmented patches of 96 x 96 x 96 a second, less than a "
        "fast GPU takes"
        if num_gpus
        else "batches and the network share one core",
        cure=_more_cores(processor),
    )


def _judge_nodes(num_nodes: int) -> Check:
    if num_nodes == 1:
        return _check(name="NUMA", level="ok", found="the available cores are in one node")
    return _check(
        name="NUMA",
        level="note",
        found=f"the available cores are in {num_nodes} nodes, each with its own memory",
        costs="access to the memory or a GPU of another node is slower",
        cure="run one process per GPU, bound to its node: numactl --cpunodebind=0 --membind=0 voxelocity train ... "
        "(nvidia-smi topo -m shows which)",
    )


def _limit_text(processor: Processor) -> str:
    if processor.num_granted == processor.num_budget:
        return "SLURM's grant"
    return "affinity" if processor.num_affine == processor.num_budget else "the quota of its control group"


def _more_cores(processor: Processor) -> str:
    if processor.num_budget == processor.num_cores:
        return "use a machine with more cores; if there is a GPU, let it augment: --set data.augment.engine=triton"
    return {
        "SLURM's grant": "ask for more: #SBATCH --cpus-per-task=8",
        "affinity": "see what the process is bound to: taskset -cp $$",
    }.get(_limit_text(processor), "give the container more: docker run --cpus=8")


def _judge_bfloat16(processor: Processor, num_gpus: int) -> Check:
    if processor.has_fast_bfloat16 is None:
        return _check(name="bfloat16", level="ok", found="not known: the machine does not list its instruction sets")
    if processor.has_fast_bfloat16:
        return _check(name="bfloat16", level="ok", found="faster than float32")
    return _check(
        name="bfloat16",
        level="ok" if num_gpus else "note",
        found="not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core",
        costs="" if num_gpus else "networks compute in float32 on this CPU",
    )
