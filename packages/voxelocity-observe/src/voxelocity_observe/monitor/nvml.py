"""NVIDIA's management library, asked with care, and which GPUs there are. The one module that knows `pynvml`; it is
imported when first asked.

A driver may refuse any question: the device has no such sensor, the user may not ask, the device fell off the bus. A
refusal is data here. It is reported once, and a question that will never be answered is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Codes of nvml.h. Refused with one of the first, a question will be refused as long as the program runs: invalid
# argument, not supported, no permission, not found, no such function, other version, deprecated.
_FINAL = {2, 3, 4, 6, 13, 25, 26}
# Uninitialized (by someone else in this process), lost, reset required, no such GPU.
_LOST = {1, 15, 16, 28}


class NvmlError(Exception):
    """A question that NVML did not answer. Callers turn it into a gap in the samples; users never see it raised.

    Attributes:
        reason: in NVML's words.
        is_final: it will not be answered later either.
        is_lost: the device is gone.
    """

    def __init__(self, reason: str, *, is_final: bool = False, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_final = is_final
        self.is_lost = is_lost


class Nvml:
    """The library, initialized; `close` shuts it down, once.

    Args:
        load: gives the module `pynvml` or what has its functions.

    Raises:
        NvmlError: the package, the driver's library or the driver is not there, or may not be asked.
    """

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        try:
            self._library = (load or _load)()
        except ImportError:
            what = "the package nvidia-ml-py, which queries the driver, is not installed"
            raise NvmlError(what, is_final=True) from None
        self._is_open = False
        self.ask("nvmlInit")
        self._is_open = True

    def ask(self, function: str, *arguments: Any) -> Any:
        """What the function of this name answers.

        Raises:
            NvmlError: it does not answer, or this version of the package has no such function.
        """
        call = getattr(self._library, function, None)
        if call is None:
            raise NvmlError("Function Not Found", is_final=True)
        try:
            return call(*arguments)
        except self._library.NVMLError as error:
            code = int(error.value)
            raise NvmlError(_words(error, code), is_final=code in _FINAL, is_lost=code in _LOST) from None

    def ask_or_none(self, function: str, *arguments: Any) -> Any:
        """What the function of this name answers; None if it does not, or the package is too old to know it."""
        try:
            return self.ask(function, *arguments)
        except NvmlError:
            return None

    def constant(self, name: str) -> Any:
        """The constant of this name, None if this version of the package has none."""
        return getattr(self._library, name, None)

    def close(self) -> None:
        """Releases the library. A second call does nothing, nor does one after the driver is gone."""
        if self._is_open:
            self._is_open = False
            self.ask_or_none("nvmlShutdown")


class Subject:
    """One device, with a memory of what it does not answer.

    Args:
        tell: is called with (question, reason) when a question is refused for the first time.
    """

    def __init__(
        self, nvml: Nvml, handle: Any, tell: Callable[[str, str], None] = lambda question, reason: None
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._report = tell
        self._given_up: set[tuple[Any, ...]] = set()
        self._reported: set[str] = set()

    def ask(self, question: str, *calls: tuple[Any, ...]) -> Any:
        """The answer of the first call that gives one, None if none does.

        Args:
            question: what is asked, in words.
            calls: function name and the arguments after the handle; each further one is for older drivers.

        Raises:
            NvmlError: the device is gone.
        """
        reason = ""
        for call in calls:
            if call in self._given_up:
                continue
            try:
                return self._nvml.ask(call[0], self._handle, *call[1:])
            except NvmlError as refusal:
                if refusal.is_lost:
                    raise
                if refusal.is_final:
                    self._given_up.add(call)
                reason = reason or refusal.reason
        if reason and question not in self._reported:
            self._reported.add(question)
            self._report(question, reason)
        return None


def text(value: Any) -> str:
    """NVML's text; older versions of the package give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _load() -> Any:
    import pynvml

    return pynvml


def _words(error: Any, code: int) -> str:
    # For a code that it does not know the package asks the library, which gives bytes, or fails if it is not loaded.
    words = str(error)
    return words[2:-1] if words.startswith("b'") else words or f"NVML error {code}"


@dataclass(frozen=True, kw_only=True)
class GpuName:
    """A GPU, or with `slice` one part of it (MIG)."""

    index: int
    slice: int | None = None
    name: str = ""
    uuid: str = ""
    parent_uuid: str = ""

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if self.slice is None else f"GPU {self.index} slice {self.slice}"


def visible_gpus(variable: str | None, gpus: Sequence[GpuName]) -> list[GpuName]:
    """The GPUs that CUDA shows a program with this `CUDA_VISIBLE_DEVICES`, in the order of `gpus`.

    Indices are assumed to follow NVML's order, by bus: CUDA uses it with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, and on
    machines whose GPUs are alike. An index of a GPU in slices, and its UUID, stand for all of its slices. As in CUDA,
    what follows the first entry that names nothing is not seen.

    Args:
        variable: comma-separated indices, beginnings of `GPU-...` or of `MIG-...`; None if it is not set.
        gpus: all of them; of a GPU in slices only the slices.
    """
    if variable is None:
        return list(gpus)
    seen: list[GpuName] = []
    for entry in variable.split(","):
        found = _named(entry.strip(), gpus)
        if not found:
            break
        seen += found
    return [gpu for gpu in gpus if gpu in seen]


def _named(entry: str, gpus: Sequence[GpuName]) -> list[GpuName]:
    if entry.isascii() and entry.isdigit():
        return [gpu for gpu in gpus if gpu.index == int(entry)]
    if entry.startswith("GPU-"):
        return [gpu for gpu in gpus if (gpu.parent_uuid or gpu.uuid).startswith(entry)]
    if entry.startswith("MIG-"):
        return [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return []


def gpu_name(nvml: Nvml, handle: Any, index: int) -> GpuName:
    """The name of the device or slice with this handle.

    Raises:
        NvmlError: the device is gone.
    """
    subject = Subject(nvml, handle)
    name = text(subject.ask("name", ("nvmlDeviceGetName",)))
    return GpuName(index=index, name=name, uuid=text(subject.ask("UUID", ("nvmlDeviceGetUUID",))))


def gpu_slices(nvml: Nvml, handle: Any, whole: GpuName) -> list[tuple[GpuName, Any]]:
    """The slices in use of a GPU in slices, with their handles; none where it is whole or knows no slices.

    Raises:
        NvmlError: the device is gone.
    """
    subject = Subject(nvml, handle)
    mode = subject.ask("MIG mode", ("nvmlDeviceGetMigMode",))
    if mode is None or not mode[0]:
        return []
    slices = []
    for number in range(int(subject.ask("slices", ("nvmlDeviceGetMaxMigDeviceCount",)) or 0)):
        own_handle = subject.ask("slice", ("nvmlDeviceGetMigDeviceHandleByIndex", number))
        if own_handle is not None:
            own = gpu_name(nvml, own_handle, whole.index)
            name = replace(own, slice=number, name=own.name or whole.name, parent_uuid=whole.uuid)
            slices.append((name, own_handle))
    return slices
