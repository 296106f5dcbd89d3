"""What every GPU of this machine is doing, as NVML reports it. It still samples without a driver, a GPU or all answers.

The cost on a real driver decides how often a question is asked: PCIe throughput makes the caller wait about 20 ms per
direction, so each GPU is asked every 5 s and the figure is kept in between; processes every 2 s, the power limit every
30 s, everything else at each sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.monitor.nvml import GpuName, Nvml, NvmlError, Subject, gpu_name, gpu_slices, visible_gpus
from voxelocity_observe.monitor.samples import GpuSample

_PROCESSES_EVERY_S = 2.0
_PCIE_EVERY_S = 5.0
_POWER_LIMIT_EVERY_S = 30.0
# Linux gives the first namespace of processes this fixed number (PROC_PID_INIT_INO).
_FIRST_NAMESPACE = "pid:[4026531836]"
# Names and bits of nvml.h. GpuIdle, bit 0, is left out: an idle GPU is not held back.
_REASONS = {
    0x002: "ApplicationsClocksSetting",
    0x004: "SwPowerCap",
    0x008: "HwSlowdown",
    0x010: "SyncBoost",
    0x020: "SwThermalSlowdown",
    0x040: "HwThermalSlowdown",
    0x080: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
}
_STRANGERS = "this is a container, and the driver numbers processes as the host does"
_NO_GPU = "GPUs: none can be sampled ({}); install NVIDIA's driver if this machine has one"


class GpuSampler:
    """Samples each GPU, or each slice of a GPU in slices (MIG), that the program may see.

    Power, temperature, clocks, PCIe and throttling of a slice are those of its whole device. Use it from one thread at
    a time; `close` releases the library. Making one never fails.

    Args:
        environ: where `CUDA_VISIBLE_DEVICES` is looked up; empty for every GPU.
        clock: returns seconds.
        load: gives `pynvml` or what has its functions, for tests.
        namespace: of the processes of this machine, as `/proc/self/ns/pid` links to it; looked up if not given.

    Attributes:
        gpus: what is sampled, also those lost since.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = system_clock,
        load: Callable[[], Any] | None = None,
        namespace: str | None = None,
    ) -> None:
        self.gpus: Sequence[GpuName] = ()
        self._refusals: dict[tuple[str, str], list[str]] = {}
        self._notes: list[str] = []
        self._devices: list[_Device] = []
        self._nvml: Nvml | None = None
        namespace = _namespace() if namespace is None else namespace
        try:
            self._nvml = Nvml(load)
            found = self._find(self._nvml, namespace=namespace, clock=clock)
        except NvmlError as refusal:
            self._notes.append(_NO_GPU.format(refusal.reason))
            self.close()
            return
        variable = environ.get("CUDA_VISIBLE_DEVICES")
        self.gpus = tuple(visible_gpus(variable, [device.gpu for device in found]))
        self._devices = [device for device in found if device.gpu in self.gpus]
        if found and not self.gpus:
            self._notes.append(f"GPUs: CUDA_VISIBLE_DEVICES={variable!r} hides all {len(found)} from the program")
        elif not found and not self._notes:
            self._notes.append(_NO_GPU.format("the driver reports none"))

    @property
    def missing(self) -> tuple[str, ...]:
        """What could not be asked so far, and why; each thing once."""
        lines = [f"{', '.join(labels)}: no {what} ({why})" for (what, why), labels in list(self._refusals.items())]
        unclear = [device.gpu.label for device in self._devices if device.processes.are_strangers]
        lines += [f"{', '.join(unclear)}: no memory by process ({_STRANGERS})"] if unclear else []
        return (*self._notes, *lines)

    def sample(self, pids: Collection[int] = ()) -> tuple[GpuSample, ...]:
        """Each GPU now; those that were lost are left out.

        Args:
            pids: processes of the watched program.
        """
        samples = []
        for device in list(self._devices):
            try:
                samples.append(device.sample(pids))
            except NvmlError as refusal:
                self._devices.remove(device)
                self._notes.append(f"{device.gpu.label}: lost while it was watched ({refusal.reason})")
        return tuple(samples)

    def close(self) -> None:
        """Releases the library; nothing is sampled afterwards."""
        self._devices = []
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _find(self, nvml: Nvml, *, namespace: str, clock: Clock) -> list[_Device]:
        """Every device and slice; one that cannot be opened is noted."""
        devices = []
        for index in range(int(nvml.ask("nvmlDeviceGetCount"))):
            try:
                handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
                whole = gpu_name(nvml, handle, index)
                slices = gpu_slices(nvml, handle, whole)
            except NvmlError as refusal:
                self._notes.append(f"GPU {index}: cannot be queried ({refusal.reason})")
                continue
            board = Subject(nvml, handle, self._teller(f"GPU {index}"))
            for gpu, own_handle in slices or [(whole, handle)]:
                own = board if gpu.slice is None else Subject(nvml, own_handle, self._teller(gpu.label))
                held = _HeldAnswers(clock)
                processes = _ProcessMemory(own, held, namespace in ("", _FIRST_NAMESPACE))
                devices.append(_Device(gpu, nvml, own, board, processes, held))
        return devices

    def _teller(self, label: str) -> Callable[[str, str], None]:
        return lambda what, why: self._refusals.setdefault((what, why), []).append(label)


class _HeldAnswers:
    """Answers that are kept for a while, because asking is expensive."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, Any]] = {}

    def get(self, name: str, every_s: float, ask: Callable[[], Any]) -> Any:
        now_s = self._clock()
        kept = self._kept.get(name)
        if kept is None or now_s - kept[0] >= every_s:
            kept = self._kept[name] = (now_s, ask())
        return kept[1]


@dataclass(eq=False)
class _Device:
    """One GPU or slice, and the questions it is asked."""

    gpu: GpuName
    _nvml: Nvml
    _own: Subject
    _board: Subject
    processes: _ProcessMemory
    _held: _HeldAnswers

    def sample(self, pids: Collection[int]) -> GpuSample:
        constant = self._nvml.constant
        busy = self._own.ask("utilization", ("nvmlDeviceGetUtilizationRates",))
        memory = self._own.ask(
            "memory figures",
            # The second version does not count as used what the driver keeps for itself.
            *([("nvmlDeviceGetMemoryInfo", version)] if (version := constant("nvmlMemory_v2")) else []),
            ("nvmlDeviceGetMemoryInfo",),
        )
        program_memory_bytes, num_others = self.processes.figures(pids)
        board = self._board.ask
        limit_mw = self._held.get(
            "limit", _POWER_LIMIT_EVERY_S, lambda: board("power limit", ("nvmlDeviceGetEnforcedPowerLimit",))
        )
        temperature = ("nvmlDeviceGetTemperature", constant("NVML_TEMPERATURE_GPU"))
        return GpuSample(
            index=self.gpu.index,
            slice=self.gpu.slice,
            name=self.gpu.name,
            uuid=self.gpu.uuid,
            busy_share=None if busy is None else busy.gpu / 100,
            memory_busy_share=None if busy is None else busy.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            program_memory_bytes=program_memory_bytes,
            num_other_processes=num_others,
            power_w=_divided(board("power", ("nvmlDeviceGetPowerUsage",)), 1000),
            power_limit_w=_divided(limit_mw, 1000),
            temperature_c=_divided(board("temperature", temperature)),
            sm_clock_mhz=_divided(board("SM clock", ("nvmlDeviceGetClockInfo", constant("NVML_CLOCK_SM")))),
            memory_clock_mhz=_divided(board("memory clock", ("nvmlDeviceGetClockInfo", constant("NVML_CLOCK_MEM")))),
            pcie_receive_bytes_per_s=self._pcie("RX"),
            pcie_send_bytes_per_s=self._pcie("TX"),
            throttle_reasons=self._throttle_reasons(),
        )

    def _pcie(self, direction: str) -> float | None:
        call = ("nvmlDeviceGetPcieThroughput", self._nvml.constant(f"NVML_PCIE_UTIL_{direction}_BYTES"))
        # NVML counts thousands of bytes (nvidia-smi's manual calls the same figure KB/s).
        kilobytes = self._held.get(direction, _PCIE_EVERY_S, lambda: self._board.ask("PCIe throughput", call))
        return None if kilobytes is None else kilobytes * 1000.0

    def _throttle_reasons(self) -> tuple[str, ...]:
        bits = self._board.ask(
            "throttle reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        return tuple(name for bit, name in _REASONS.items() if (bits or 0) & bit)


@dataclass(eq=False)
class _ProcessMemory:
    """Whose memory it is. In a container the driver may number processes as the host does, which is of no use here.

    Attributes:
        are_strangers: whether processes were seen but none can be identified as the program's.
    """

    _own: Subject
    _held: _HeldAnswers
    _are_numbers_ours: bool
    are_strangers: bool = False

    def figures(self, pids: Collection[int]) -> tuple[int | None, int | None]:
        """Bytes of the program, and the number of other processes; None if unknown."""
        processes = self._held.get("processes", _PROCESSES_EVERY_S, self._ask)
        if processes is None:
            return None, None
        if not self._are_numbers_ours and not self._have_met(processes, pids):
            return None, None
        program = [num_bytes for pid, num_bytes in processes.items() if pid in pids]
        known = None if any(num_bytes is None for num_bytes in program) else sum(b or 0 for b in program)
        return known, len(processes) - len(program)

    def _have_met(self, processes: Mapping[int, int | None], pids: Collection[int]) -> bool:
        self._are_numbers_ours = any(pid in pids for pid in processes)
        self.are_strangers = bool(processes) and not self._are_numbers_ours
        return self._are_numbers_ours

    def _ask(self) -> dict[int, int | None] | None:
        """Bytes by process; a process that computes and draws is in both lists with the same bytes."""
        computing = self._own.ask("memory by process", ("nvmlDeviceGetComputeRunningProcesses",))
        if computing is None:
            return None
        drawing = self._own.ask("memory of drawing processes", ("nvmlDeviceGetGraphicsRunningProcesses",)) or ()
        return {int(p.pid): None if p.usedGpuMemory is None else int(p.usedGpuMemory) for p in (*drawing, *computing)}


def _divided(value: Any, divisor: int = 1) -> float | None:
    return None if value is None else value / divisor


def _namespace() -> str:
    try:
        return os.readlink(Path("/proc/self/ns/pid"))
    except OSError:
        return ""
