"""Facts of programs, made up: a clean one on a CPU, a clean one on a GPU, and what a test plants in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from voxelocity_observe.diagnose.facts import (
    PARTS,
    Ending,
    ExperimentFacts,
    Facts,
    FetchFacts,
    HostFacts,
    LoaderFacts,
    NetworkFacts,
    OptimizerFacts,
    Pass,
    ProcessFacts,
    SettingFacts,
    StackFacts,
    Step,
)
from voxelocity_observe.diagnose.result import Finding
from voxelocity_observe.diagnose.rules import RULES

NUM_STEPS = 100
WORKERS = {"num_workers": 2, "persistent_workers": True}
CLEAN_PARTS = {"wait": 0.0005, "forward": 0.0405, "backward": 0.055, "optimizer": 0.004}


def steps_of(parts: Mapping[str, float], *, count: int = NUM_STEPS, start_s: float = 5.0) -> list[Step]:
    """Equal steps, one behind the other, of these parts."""
    whole = {name: parts.get(name, 0.0) for name in PARTS}
    seconds = math.fsum(whole.values())
    return [
        Step(start_s=start_s + index * seconds, seconds=seconds, parts=whole, host_parts=whole, num_images=2)
        for index in range(count)
    ]


def loader_of(**fields: Any) -> LoaderFacts:
    """The training's loader."""
    return LoaderFacts(
        **{
            "key": 1,
            "kind": "DataLoader",
            "dataset": "Scans",
            "batch_size": 2,
            "collate": "torch.utils.data.default_collate",
            "is_for_training": True,
            "where": "train.py:40",
            "num_epochs": 2,
            **fields,
        }
    )


def fetch_of(*, batch_s: float, cpu_share: float = 1.0, collate_share: float = 0.05, worker: int = 0) -> FetchFacts:
    """`NUM_STEPS` batches of two items, each in `batch_s` seconds, of which this share is CPU time."""
    collate_s = batch_s * collate_share
    return FetchFacts(
        key=1,
        worker=worker,
        num_batches=NUM_STEPS,
        num_items=2 * NUM_STEPS,
        item_s=NUM_STEPS * (batch_s - collate_s),
        item_cpu_s=NUM_STEPS * (batch_s - collate_s) * cpu_share,
        collate_s=NUM_STEPS * collate_s,
        collate_cpu_s=NUM_STEPS * collate_s * cpu_share,
        batch_s=[batch_s] * NUM_STEPS,
        batch_bytes=2 * 2 * 4 * 64**3,
    )


def pass_of(kind: str, seconds: float, *, at: int, **fields: Any) -> Pass:
    """A pass that begins with step `at` of a clean program."""
    return Pass(kind=kind, start_s=5.0 + 0.1 * at, seconds=seconds, **fields)  # type: ignore[arg-type]


def stack_of(part: str, kind: str, num_samples: int, **fields: Any) -> StackFacts:
    """A place in which a thread was found, 10 ms apart."""
    given = {"where": "train.py:55", "line": f"{kind}(scan)", "function": "", "period_s": 0.01, **fields}
    return StackFacts(part=part, kind=kind, num_samples=num_samples, **given)


@pytest.fixture
def make() -> SimpleNamespace:
    """What facts are made of: `steps`, `loader`, `fetch`, `between` (a pass) and `stack`."""
    return SimpleNamespace(
        steps=steps_of, loader=loader_of, fetch=fetch_of, between=pass_of, stack=stack_of, parts=dict(CLEAN_PARTS)
    )


@pytest.fixture
def find() -> Callable[[str, Facts], Sequence[Finding]]:
    """What the rule of one code finds in facts."""
    rules = {rule.code: rule for rule in RULES}
    return lambda code, facts: rules[code](facts)


@pytest.fixture
def clean() -> Facts:
    """A program on 8 cores that computes all the time; two workers make its batches in time."""
    return Facts(
        command=["python", "train.py"],
        main=ProcessFacts(pid=2, parent_pid=1, role="main", versions={"torch": "2.13.0"}),
        seconds=16.0,
        ended=Ending(reason="program", time_s=16.0),
        status=0,
        steps=steps_of(CLEAN_PARTS),
        loaders=[loader_of(**WORKERS)],
        fetches=[fetch_of(batch_s=0.05)],
        settings=SettingFacts(device="cpu", num_threads=6),
        network=NetworkFacts(
            name="UNet",
            num_parameters=1_000_000,
            parameter_dtypes={"float32": 1_000_000},
            input_shapes=[((2, 1, 64, 64, 64), NUM_STEPS)],
            channels=[(32, 64), (64, 64), (1, 32)],
            kernel_dimensions=3,
            memory_format="channels_last_3d",
            input_dtype="torch.float32",
            where="train.py:42",
        ),
        optimizer=OptimizerFacts(name="AdamW", implementation="fused", where="train.py:30"),
        experiments=[ExperimentFacts(name="resident batch", unit="step", seconds=[0.098, 0.099, 0.1])],
        host=HostFacts(num_cpus=8, num_machine_cpus=8, cpu_share=0.8, memory_limit_bytes=64 * 1024**3),
    )


@pytest.fixture
def clean_gpu(clean: Facts) -> Facts:
    """The same on a GPU, with all that is commonly advised."""
    return replace(
        clean,
        loaders=[loader_of(**WORKERS, pin_memory=True)],
        settings=SettingFacts(
            device="cuda",
            device_name="NVIDIA A100",
            capability=(8, 0),
            has_cuda=True,
            autocast="bfloat16",
            allow_tf32_cudnn=True,
            allow_tf32_matmul=True,
            cudnn_benchmark=True,
            num_threads=8,
        ),
    )


@pytest.fixture
def waiting(clean: Facts) -> Callable[..., Facts]:
    """Makes facts of a program that waits: a step computes 0.1 s, then waits; the loader and its fetches as given."""

    def make(wait_s: float, loader: LoaderFacts, *fetches: FetchFacts, **fields: Any) -> Facts:
        parts = {"wait": wait_s, "forward": 0.04, "backward": 0.055, "optimizer": 0.005}
        planted = {"steps": steps_of(parts), "loaders": [loader], "fetches": list(fetches), **fields}
        return replace(clean, **planted)

    return make


@pytest.fixture(autouse=True)
def _charts_are_blank():
    """Not here, where they are looked at."""
