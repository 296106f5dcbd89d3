"""A trace in Kineto's format of steps on a CUDA device, made of a few calls, for tests where there is no device."""

from __future__ import annotations

from typing import Any

_BASE_US = 4422629010660.914
_MAIN, _BACKWARD, _STREAM = 1166, 1201, 7


class CudaTrace:
    """Events as torch.profiler writes them; times are microseconds from the beginning.

    Attributes:
        events: those made so far, to be written as {"traceEvents": events}.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "ts": _BASE_US, "pid": _MAIN, "tid": 0, "args": {"name": "python"}},
            {
                "ph": "i",
                "s": "t",
                "name": "Iteration Start: PyTorch Profiler",
                "pid": "Traces",
                "tid": "Trace",
                "ts": 0,
            },
        ]

    def step(self, number: int, start: float, stop: float) -> None:
        """The mark of a profiled step."""
        self.annotation(f"ProfilerStep#{number}", start, stop)

    def annotation(self, name: str, start: float, stop: float) -> None:
        """A named range of the training thread."""
        self._add("user_annotation", name, start, stop, _MAIN, {"External id": 9000 + len(self.events)})

    def function(self, name: str, start: float, stop: float) -> None:
        """A Python function."""
        self._add("python_function", name, start, stop, _MAIN, {"Python id": len(self.events)})

    def operator(
        self, name: str, start: float, stop: float, external: int, shape: Any = None, *, backward: bool = False
    ) -> None:
        """An operator on the host, of the training thread or autograd's."""
        arguments: dict[str, Any] = {"External id": external, "Record function id": 0}
        if shape is not None:
            arguments["Input Dims"] = shape
        self._add("cpu_op", name, start, stop, _BACKWARD if backward else _MAIN, arguments)

    def launch(self, start: float, stop: float, correlation: int, *, name: str = "cudaLaunchKernel") -> None:
        """A call of the runtime in the training thread."""
        arguments = {"External id": correlation, "cbid": 211, "correlation": correlation}
        self._add("cuda_runtime", name, start, stop, _MAIN, arguments)
        flow = {"id": correlation, "pid": _MAIN, "tid": _MAIN, "ts": _BASE_US + start, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", **flow})

    def kernel(
        self, name: str, start: float, stop: float, correlation: int, *, external: int | None = None, stream: int = 7
    ) -> None:
        """A kernel on a stream of the device."""
        self._on_device("kernel", name, start, stop, correlation, external, stream)

    def copy(
        self, start: float, stop: float, correlation: int, *, name: str = "Memcpy HtoD (Pinned -> Device)"
    ) -> None:
        """A copy on the device; one called "Memset ..." is a fill."""
        kind = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
        self._on_device(kind, name, start, stop, correlation, None, _STREAM)

    def _on_device(
        self, kind: str, name: str, start: float, stop: float, correlation: int, external: int | None, stream: int
    ) -> None:
        arguments = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
        if external is not None:
            arguments["External id"] = external
        self._add(kind, name, start, stop, stream, arguments, process=0)
        flow = {"id": correlation, "pid": 0, "tid": stream, "ts": _BASE_US + start, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "f", **flow, "bp": "e"})

    def _add(
        self, kind: str, name: str, start: float, stop: float, thread: int, arguments: Any, *, process: int = _MAIN
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": kind,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": _BASE_US + start,
                "dur": stop - start,
                "args": arguments,
            }
        )
