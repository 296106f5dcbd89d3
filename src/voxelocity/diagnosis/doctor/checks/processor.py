"""The cores: how many are ours, and what they compute quickly."""

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
    """Cores, instruction sets, NUMA, and who else is at work."""
    yield _judge_budget(processor, num_gpus)
    yield _judge_bfloat16(processor, num_gpus)
    if processor.num_nodes is not None:
        yield _judge_nodes(processor.num_nodes)
    if processor.load is not None and processor.load > processor.num_cores:
        yield _check(
            name="load",
            level="note",
            found=f"{processor.load:.1f} programs want to run, on {count_text(processor.num_cores, 'core')}",
            costs="whatever is timed now, by the doctor too, looks slower than it is",
            cure="see which: top",
        )


def _judge_budget(processor: Processor, num_gpus: int) -> Check:
    found = f"{processor.name or 'a processor without a name'}; {count_text(processor.num_budget, 'core')} to use"
    limit = _limit_text(processor)
    if processor.num_budget < processor.num_cores:
        found += f" of {processor.num_cores}, by {limit}"
    patches = _PATCHES_PER_CORE * processor.num_budget
    if processor.num_budget >= 4 or (num_gpus == 0 and processor.num_budget >= 2):
        return _check(name="cores", level="ok", found=found)
    return _check(
        name="cores",
        level="warning",
        found=found,
        costs=f"batches are made on them: about {patches} augmented patches of 96 x 96 x 96 a second, less than a "
        "quick GPU takes"
        if num_gpus
        else "batches and the network share one core",
        cure=_more_cores(processor),
    )


def _judge_nodes(num_nodes: int) -> Check:
    if num_nodes == 1:
        return _check(name="NUMA", level="ok", found="our cores lie in one node")
    return _check(
        name="NUMA",
        level="note",
        found=f"our cores lie in {num_nodes} nodes, each with memory of its own",
        costs="memory of another node is read more slowly, and so is a GPU at another node",
        cure="a process for each GPU, bound to its node: numactl --cpunodebind=0 --membind=0 voxelocity train ... "
        "(nvidia-smi topo -m shows which)",
    )


def _limit_text(processor: Processor) -> str:
    if processor.num_granted == processor.num_budget:
        return "SLURM's grant"
    return "affinity" if processor.num_affine == processor.num_budget else "the quota of its control group"


def _more_cores(processor: Processor) -> str:
    if processor.num_budget == processor.num_cores:
        return "a machine with more cores; where there is a GPU, let it augment: --set data.augment.engine=triton"
    return {
        "SLURM's grant": "ask for more: #SBATCH --cpus-per-task=8",
        "affinity": "see who binds the process: taskset -cp $$",
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
