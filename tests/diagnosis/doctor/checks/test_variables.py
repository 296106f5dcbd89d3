from __future__ import annotations

import pytest

from voxelocity.diagnosis.doctor.checks.variables import judge_variables
from voxelocity.diagnosis.doctor.variables import VARIABLES, Around


def names(environ, *, num_cores=8, num_gpus=2):
    checks = judge_variables(environ, Around(num_cores=num_cores, num_gpus=num_gpus))
    return [check.name for check in checks if check.level != "ok"]


HURTING = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
    "CUDA_CACHE_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "ACTIVE",
    "KMP_BLOCKTIME": "infinite",
    "PYTHONDEVMODE": "1",
    "PYTHONTRACEMALLOC": "25",
}
HARMLESS = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "",
    "NVIDIA_TF32_OVERRIDE": "1",
    "NCCL_P2P_DISABLE": "0",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "NUMBA_DISABLE_JIT": "0",
    "OMP_NUM_THREADS": "8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "200",
}


def test_every_variable_of_the_table_is_planted_here():
    assert {variable.name for variable in VARIABLES} == set(HURTING)


@pytest.mark.parametrize("name", HURTING)
def test_a_variable_that_hurts_is_found_with_its_cost(name):
    (check,) = judge_variables({name: HURTING[name]}, Around(num_cores=8, num_gpus=2))
    assert (check.name, check.found) == (name, f"={HURTING[name]}")
    assert check.level in ("note", "warning")
    assert check.costs
    assert name in check.cure


def test_values_that_do_no_harm_are_passed_over():
    (check,) = judge_variables(HARMLESS, Around(num_cores=8, num_gpus=2))
    assert (check.level, check.found) == ("ok", "nothing set that slows training down")


def test_a_variable_about_gpus_is_nothing_without_them():
    assert names({"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}, num_gpus=0) == []
    assert names({"NCCL_P2P_DISABLE": "1"}, num_gpus=1) == []


def test_one_thread_is_right_on_one_core_and_for_ranks_that_share_the_cores():
    assert names({"OMP_NUM_THREADS": "1"}, num_cores=1) == []
    assert names({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}) == []
    assert names({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1"}) == ["OMP_NUM_THREADS"]


def test_a_variable_is_changed_where_removing_it_would_not_do():
    (check,) = judge_variables({"OMP_WAIT_POLICY": "ACTIVE"}, Around(num_cores=8, num_gpus=0))
    assert check.cure == "export OMP_WAIT_POLICY=PASSIVE"
