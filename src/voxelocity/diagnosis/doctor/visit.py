"""The doctor's round: probe everything, judge everything, sum it up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voxelocity.diagnosis.doctor.check import Check, CheckUp
from voxelocity.diagnosis.doctor.checks.disk import judge_disk
from voxelocity.diagnosis.doctor.checks.gpu import judge_gpus
from voxelocity.diagnosis.doctor.checks.limits import judge_limits
from voxelocity.diagnosis.doctor.checks.memory import judge_memory
from voxelocity.diagnosis.doctor.checks.packages import judge_packages
from voxelocity.diagnosis.doctor.checks.processor import judge_processor
from voxelocity.diagnosis.doctor.checks.torch_build import judge_torch
from voxelocity.diagnosis.doctor.checks.variables import judge_variables
from voxelocity.diagnosis.doctor.disk import see_disk
from voxelocity.diagnosis.doctor.gpu import see_driver
from voxelocity.diagnosis.doctor.host import see_limits, see_memory, see_processor
from voxelocity.diagnosis.doctor.installed import see_packages
from voxelocity.diagnosis.doctor.seen import Seen
from voxelocity.diagnosis.doctor.torch_build import see_torch
from voxelocity.diagnosis.doctor.variables import Around
from voxelocity.diagnosis.doctor.verdict import verdict

# A loader with more is rare, however many cores there are.
_MAX_WORKERS = 16


def examine(folder: Path, *, environ: Mapping[str, str] = os.environ) -> CheckUp:
    """What this machine has for training, what is missing, and what each costs.

    Takes as long as `import torch` in a fresh process and about a second for the disk, to which it writes a nameless
    file of 256 MiB if there is room. Starts no CUDA in this process.

    Args:
        folder: whose disk is checked; it need not exist.
        environ: variables to check.
    """
    return judge(look(folder, environ=environ))


def look(folder: Path, *, environ: Mapping[str, str] = os.environ) -> Seen:
    """Everything that the probes see."""
    # A separate process imports torch meanwhile. The disk comes last and alone, because its speed is measured.
    with ThreadPoolExecutor(max_workers=1) as waiting:
        torch = waiting.submit(see_torch)
        driver, packages = see_driver(), see_packages()
        processor, memory, limits = see_processor(environ=environ), see_memory(), see_limits()
        seen_torch = torch.result()
    return Seen(
        driver=driver,
        torch=seen_torch,
        processor=processor,
        memory=memory,
        disk=see_disk(folder),
        limits=limits,
        packages=packages,
        environ=dict(environ),
    )


def judge(seen: Seen) -> CheckUp:
    """What was seen, in judged lines and one verdict. Pure."""
    checks = tuple(_checks(seen))
    return CheckUp(verdict=verdict(seen, checks), checks=checks)


def _checks(seen: Seen) -> Iterator[Check]:
    num_gpus, num_cores = len(seen.driver.gpus), seen.processor.num_budget
    yield from judge_gpus(seen.driver)
    yield from judge_torch(seen.torch, seen.driver, seen.processor, seen.environ)
    yield from judge_processor(seen.processor, num_gpus=num_gpus)
    yield from judge_memory(seen.memory, num_workers=min(num_cores, _MAX_WORKERS))
    yield from judge_disk(seen.disk)
    yield from judge_limits(seen.limits)
    yield from judge_variables(seen.environ, Around(num_cores=num_cores, num_gpus=num_gpus))
    yield from judge_packages(seen.packages, seen.torch)
