"""A machine without a fault; tests plant one fault at a time in it."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from voxelocity_observe.diagnose.doctor.records import (
    Disk,
    Driver,
    Gpu,
    Memory,
    Observations,
    Packages,
    Processor,
    ResourceLimits,
    Torch,
)

GIB = 2**30


@pytest.fixture
def gpu():
    return Gpu(
        index=0,
        name="NVIDIA H100",
        memory_bytes=80 * GIB,
        memory_used_bytes=GIB // 2,
        capability=(9, 0),
        has_mig=False,
        is_persistent=True,
        has_ecc=True,
        num_uncorrected=0,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=5,
        compute_mode="default",
    )


@pytest.fixture
def machine(gpu):
    return Observations(
        driver=Driver(version="580.65.06", cuda=(13, 0), gpus=(gpu,), num_cards=1),
        torch=Torch(
            version="2.13.0+cu130",
            cuda="13.0",
            architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
            cudnn="9.20.0",
            num_gpus=1,
            num_threads=16,
            import_s=1.6,
            import_cpu_s=1.5,
        ),
        processor=Processor(
            name="AMD EPYC", has_fast_bfloat16=True, num_cores=16, num_affine=16, num_budget=16, num_nodes=1, load=0.5
        ),
        memory=Memory(
            machine_bytes=128 * GIB,
            total_bytes=128 * GIB,
            available_bytes=120 * GIB,
            shm_bytes=64 * GIB,
            shm_free_bytes=64 * GIB,
            overcommit=0,
        ),
        disk=Disk(
            folder="/scratch", free_bytes=500 * GIB, file_system="ext4", write_bytes_per_s=2e9, read_bytes_per_s=3e9
        ),
        limits=ResourceLimits(open_files=65_536, open_files_hard=65_536, processes=100_000),
        packages=Packages(
            python="3.11.7",
            versions={"torch": "2.13.0+cu130", "numpy": "2.4.6", "lmdb": "3.0.0", "triton": "3.7.1"},
            wanted={"": [Requirement("torch>=2.11"), Requirement("numpy>=2.0")], "lmdb": [Requirement("lmdb>=1.6")]},
        ),
        environ={"HOME": "/root"},
    )
