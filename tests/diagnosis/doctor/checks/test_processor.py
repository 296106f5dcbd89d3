from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.doctor.checks.processor import judge_processor


def blamed(processor, *, num_gpus=1):
    return [check for check in judge_processor(processor, num_gpus=num_gpus) if check.level != "ok"]


def test_a_sound_processor_is_described(processor):
    found = [check.found for check in judge_processor(processor, num_gpus=1)]
    assert found == ["AMD EPYC 9454; 16 cores available", "faster than float32", "the available cores are in one node"]


@pytest.mark.parametrize(
    ("changes", "limit", "cure"),
    [
        ({"num_granted": 1}, "by SLURM's grant", "#SBATCH --cpus-per-task=8"),
        ({"num_affine": 1}, "by affinity", "taskset -cp $$"),
        ({}, "by the quota of its control group", "docker run --cpus=8"),
    ],
)
def test_what_holds_the_cores_back_is_named_with_its_cure(processor, changes, limit, cure):
    (check,) = blamed(replace(processor, num_budget=1, **changes))
    assert check.found.endswith(f"1 core available of 16, limited {limit}")
    assert cure in check.cure


def test_few_cores_are_enough_without_a_gpu(processor):
    two = replace(processor, num_cores=2, num_affine=2, num_budget=2)
    assert blamed(two, num_gpus=0) == []
    (check,) = blamed(two)
    assert check.costs.startswith("they make the batches: about 124 augmented patches")
    assert "data.augment.engine=triton" in check.cure
    (alone,) = blamed(replace(two, num_budget=1), num_gpus=0)
    assert alone.costs == "batches and the network share one core"


def test_a_cpu_without_bfloat16_is_a_note_where_it_trains(processor):
    plain = replace(processor, has_fast_bfloat16=False)
    assert blamed(plain, num_gpus=1) == []
    (check,) = blamed(plain, num_gpus=0)
    assert (check.level, check.costs) == ("note", "networks compute in float32 on this CPU")
    assert check.found == "not faster than float32: neither AMX nor AVX-512 BF16 of an AMD core"
    assert blamed(replace(processor, has_fast_bfloat16=None), num_gpus=0) == []


def test_cores_in_several_nodes_are_told(processor):
    (check,) = blamed(replace(processor, num_nodes=2))
    assert check.found == "the available cores are in 2 nodes, each with its own memory"
    assert "numactl" in check.cure


def test_a_busy_machine_is_told(processor):
    (check,) = blamed(replace(processor, load=40.25))
    assert check.found == "40.2 programs are ready to run, on 16 cores"
