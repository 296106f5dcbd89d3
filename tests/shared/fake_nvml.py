"""A driver whose answers are a table: what `pynvml` offers, as far as the sampler asks."""
# ruff: noqa: N802, N815

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30


def gpu_answers(number: int = 0, **other: Any) -> dict[str, Any]:
    """Answers of a healthy GPU by function name; a code of NVML's errors, as `Refused`, is raised."""
    return {
        "nvmlDeviceGetName": "Made-up H100",
        "nvmlDeviceGetUUID": f"GPU-{number}000-aaaa",
        "nvmlDeviceGetMigMode": Refused(3),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=20),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10 * GIB, total=80 * GIB),
        "nvmlDeviceGetPowerUsage": 250_500,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTemperature": 55,
        "nvmlDeviceGetClockInfo": lambda kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetPcieThroughput": lambda kind: {0: 1_000, 1: 2_000}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": 0x5,
        "nvmlDeviceGetComputeRunningProcesses": [
            SimpleNamespace(pid=100, usedGpuMemory=3 * GIB),
            SimpleNamespace(pid=200, usedGpuMemory=GIB),
        ],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        **other,
    }


class Refused:
    def __init__(self, code: int) -> None:
        self.code = code


class FakeNvml:
    """The module. `calls` counts the questions by (function, handle)."""

    NVMLError = pynvml.NVMLError
    nvmlMemory_v2 = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, *gpus: dict[str, Any], begin: Any = None, without: tuple[str, ...] = ()) -> None:
        self.table: dict[Any, dict[str, Any]] = dict(enumerate(gpus))
        self.calls: dict[tuple[str, Any], int] = {}
        self.num_open = 0
        self._num_gpus = len(gpus)
        self._begin = begin
        self._without = without

    def nvmlInit(self) -> None:
        self._answer(self._begin, ())
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self._num_gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._answer(self.table[index].get("handle", index), ())

    def __getattr__(self, function: str) -> Any:
        if not function.startswith("nvml") or function in self._without:
            raise AttributeError(function)

        def ask(handle: Any, *arguments: Any) -> Any:
            self.calls[function, handle] = self.calls.get((function, handle), 0) + 1
            return self._answer(self.table[handle].get(function, Refused(13)), arguments)

        return ask

    def _answer(self, answer: Any, arguments: tuple[Any, ...]) -> Any:
        if isinstance(answer, Refused):
            raise self.NVMLError(answer.code)
        return answer(*arguments) if callable(answer) else answer
