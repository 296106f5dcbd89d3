"""A machine on which nothing is to be mended; tests plant one fault at a time in it."""

from __future__ import annotations

import pytest

from voxelocity.diagnosis.doctor.records import (
    Disk,
    Driver,
    Gpu,
    Limits,
    Memory,
    Observations,
    Packages,
    Processor,
    Torch,
    Wanted,
)

GIB = 2**30


@pytest.fixture
def gpu():
    return Gpu(
        index=0,
        name="NVIDIA H100 80GB HBM3",
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
        pcie_generation_max=5,
        compute_mode="default",
    )


@pytest.fixture
def driver(gpu):
    return Driver(version="580.65.06", cuda=(13, 0), gpus=(gpu,), num_cards=1)


@pytest.fixture
def torch():
    return Torch(
        version="2.13.0+cu130",
        cuda="13.0",
        architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
        cudnn="9.20.0",
        sees_cuda=True,
        num_gpus=1,
        num_threads=16,
        import_s=1.6,
        import_cpu_s=1.5,
    )


@pytest.fixture
def processor():
    return Processor(
        name="AMD EPYC 9454",
        has_fast_bfloat16=True,
        num_cores=16,
        num_affine=16,
        num_budget=16,
        num_nodes=1,
        load=0.5,
    )


@pytest.fixture
def memory():
    return Memory(
        machine_bytes=128 * GIB,
        total_bytes=128 * GIB,
        available_bytes=120 * GIB,
        shm_bytes=64 * GIB,
        shm_free_bytes=64 * GIB,
        overcommit=0,
    )


@pytest.fixture
def disk():
    return Disk(
        folder="/scratch",
        free_bytes=500 * GIB,
        file_system="ext4",
        device="solid state",
        write_bytes_per_s=2e9,
        read_bytes_per_s=3e9,
    )


@pytest.fixture
def limits():
    return Limits(open_files=65_536, open_files_hard=65_536, processes=100_000)


@pytest.fixture
def packages():
    wanted = (
        Wanted(name="torch", versions=">=2.11"),
        Wanted(name="numpy", versions=">=2.0"),
        Wanted(name="lmdb", versions=">=1.6", extra="lmdb"),
    )
    versions = {"torch": "2.13.0+cu130", "numpy": "2.4.6", "lmdb": "3.0.0", "triton": "3.7.1"}
    return Packages(python="3.11.7", versions=versions, wanted=wanted)


@pytest.fixture
def seen(driver, torch, processor, memory, disk, limits, packages):
    return Observations(
        driver=driver,
        torch=torch,
        processor=processor,
        memory=memory,
        disk=disk,
        limits=limits,
        packages=packages,
        environ={"HOME": "/root"},
    )
