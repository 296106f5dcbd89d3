"""The doctor's round: probe everything, check everything, and the first line: can it train, on what, what to fix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voxelocity_observe.core.quantities import count_text
from voxelocity_observe.diagnose.doctor import disk, hardware_checks, probes, software_checks
from voxelocity_observe.diagnose.doctor.records import LEVELS, Check, CheckUp, Observations

# A loader with more is rare, however many cores there are.
_MAX_WORKERS = 16

_FINE = ("ok", "missing")


def examine(folder: Path, *, environ: Mapping[str, str] = os.environ) -> CheckUp:
    """What this machine has for training, what is missing, and what each costs.

    Takes as long as `import torch` in a fresh process and about a second for the disk, to which it writes a nameless
    file of 256 MiB if there is room. Starts no CUDA in this process.

    Args:
        folder: whose disk is checked; it need not exist.
        environ: variables to check.
    """
    return judge(probe(folder, environ=environ))


def probe(folder: Path, *, environ: Mapping[str, str] = os.environ) -> Observations:
    """Everything that the probes find."""
    with ThreadPoolExecutor(max_workers=1) as waiting:
        torch = waiting.submit(probes.probe_torch)
        return Observations(
            driver=probes.probe_driver(),
            processor=probes.probe_processor(environ=environ),
            memory=probes.probe_memory(),
            limits=probes.probe_limits(),
            packages=probes.probe_packages(),
            environ=dict(environ),
            # All others are probed while a separate process imports torch; the disk last and alone, because its speed
            # is measured.
            torch=torch.result(),
            disk=disk.probe_disk(folder),
        )


def judge(observed: Observations) -> CheckUp:
    """What was observed, in judged lines and one verdict. Pure."""
    num_gpus, num_cores = len(observed.driver.gpus), observed.processor.num_budget
    checks = (
        *hardware_checks.check_gpus(observed.driver),
        *software_checks.check_torch(observed.torch, observed.driver, observed.processor, observed.environ),
        *hardware_checks.check_processor(observed.processor, num_gpus=num_gpus),
        *hardware_checks.check_memory(observed.memory, num_workers=min(num_cores, _MAX_WORKERS)),
        *hardware_checks.check_disk(observed.disk),
        *hardware_checks.check_limits(observed.limits),
        *software_checks.check_variables(observed.environ, num_cores=num_cores, num_gpus=num_gpus),
        *software_checks.check_packages(observed.packages, observed.torch),
    )
    return CheckUp(verdict=verdict(observed, checks), checks=checks)


def verdict(observed: Observations, checks: Sequence[Check]) -> str:
    """One or two sentences: whether training can run here, on what, and how much there is to fix."""
    stops = [check for check in checks if check.stops_training]
    if stops:
        first = stops[0]
        more = "" if len(stops) == 1 else f" And {count_text(len(stops) - 1, 'more thing')} must be fixed."
        return f"Training cannot run here: {first.section}, {first.name}: {first.found}.{more}"
    counts = Counter(check.level for check in checks)
    parts = [count_text(counts[level], level) for level in reversed(LEVELS) if level not in _FINE and counts[level]]
    outlook = f"To look at: {', '.join(parts)}." if parts else "Nothing to fix."
    return f"Training runs on {_place(observed)}. {outlook}"


def _place(observed: Observations) -> str:
    gpus, num_seen = observed.driver.gpus, observed.torch.num_gpus
    cores = count_text(observed.processor.num_budget, "CPU core")
    if not num_seen:
        has_gpu = observed.driver.num_cards or gpus
        return f"{cores}, and not on the GPU of this machine" if has_gpu else f"{cores}; there is no GPU"
    kinds = Counter(gpu.name or "GPU" for gpu in gpus)
    named = " and ".join(name if count == 1 else f"{count} x {name}" for name, count in kinds.items())
    shown = f" ({num_seen} of these available)" if len(gpus) > num_seen else ""
    return f"{named or 'a GPU that its driver does not describe'}{shown}, with {cores} to make batches"
