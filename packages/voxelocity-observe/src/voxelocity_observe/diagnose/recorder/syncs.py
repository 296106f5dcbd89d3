"""Calls that make the host wait for the device, and the lines that make them, in counted steps.

Methods of `torch.Tensor` are replaced by objects that count and call the original. These stay unchanged: results and
gradients (the original does the work), subclasses (their `__torch_function__` gets the original), comparison with the
original (equal, and with the same hash), TorchScript and fx (which go by name), and torch.compile (Dynamo handles
tensor methods by name, and sees the plain call in what an unbound one runs). Indexing by a mask, and library functions
that wait within C++, are not seen here; the profile has them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from types import MethodType
from typing import Any

from .hooks import AttributePatches
from .lines import OwnCode, SourceLine, module_of
from .steps import DATA_PARTS, Moment
from .writer import Writer

_METHODS = (
    "item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "to", "__bool__", "__float__", "__int__", "__index__",
    "is_nonzero", "equal",
)  # fmt: skip
_MOST_PLACES = 1000
# An optimizer's own count of its steps is in host memory on any machine.
_COUNTS_IN_MEMORY = "torch.optim"
_BETWEEN_STEPS = ("", "validation", "saving")
_Key = tuple[str, str, bool]


@dataclass
class _Count:
    place: SourceLine
    count: int = 0
    seconds: float = 0.0


class Syncs:
    """Replaces the calls from `start` to `stop`; only those of one thread, in counted steps, are counted.

    Calls on tensors in host memory count if they would wait with a device. Not counted: those while batches are made in
    the program itself ("wait"), those of an optimizer, and moves to a `torch.device`, which may be different
    elsewhere.

    Cost: 0.6 microseconds per call that is not counted, 4 per call that is (measured).

    Args:
        moment: where the program is.
        own_code: decides which code is the user's.
        thread: identifier of the training thread; the calling one if not given.
    """

    def __init__(self, moment: Moment, own_code: OwnCode, *, thread: int | None = None) -> None:
        self.moment = moment
        self.own_code = own_code
        self.thread = threading.get_ident() if thread is None else thread
        self._counts: dict[_Key, _Count] = {}
        self._patches = AttributePatches()
        self._is_started = False
        self._is_inside = False
        self.annotate: Callable[[str], Any] | None = None
        """While the profiler runs, makes a context that puts the call and its line into the trace."""

    def start(self) -> None:
        """Replaces the calls. torch must have been imported; further starts do nothing."""
        if self._is_started:
            return
        self._is_started = True
        torch = sys.modules["torch"]
        for name in _METHODS:
            if hasattr(torch.Tensor, name):
                self._patches.put(torch.Tensor, name, _Method(self, torch, name))
        for owner, prefix in ((torch.cuda, ""), (torch.cuda.Stream, "Stream."), (torch.cuda.Event, "Event.")):
            call = f"torch.cuda.{prefix}synchronize"
            self._patches.put(owner, "synchronize", _function(self, call, owner.synchronize))
        _forget_methods()

    def stop(self) -> None:
        """Restores every call. What was counted stays, for `report`."""
        self._is_started = False
        self._patches.restore()
        _forget_methods()

    def report(self, writer: Writer) -> None:
        """Writes one event `sync` for each (call, line, device)."""
        num_steps = self.moment.counted_steps()
        for (call, where, on_device), found in list(self._counts.items()):
            writer.write(
                "sync",
                call=call,
                where=where,
                line=found.place.line,
                count=found.count,
                num_steps=num_steps,
                seconds=found.seconds,
                on_device=on_device,
            )

    def is_wanted(self) -> bool:
        """Whether a call made now counts: outermost, in the training thread, in a counted step."""
        return (
            not self._is_inside
            and threading.get_ident() == self.thread
            and self.moment.is_counting()
            and self.moment.current_part() not in _BETWEEN_STEPS
        )

    def measure(self, call: str, on_device: bool, run: Callable[[], Any]) -> Any:
        """What `run` returns, counted for the user's line that is running."""
        caller = sys._getframe(2)
        if not on_device and (
            self.moment.current_part() in DATA_PARTS or module_of(caller).startswith(_COUNTS_IN_MEMORY)
        ):
            return run()
        place = self.own_code.place(caller)
        self._is_inside = True
        began = time.perf_counter()
        try:
            if self.annotate is None:
                return run()
            with self.annotate(f"sync: {call} at {place.where}"):
                return run()
        finally:
            seconds = time.perf_counter() - began
            self._is_inside = False
            self._add((call, place.where, on_device), place, seconds)

    def _add(self, key: _Key, place: SourceLine, seconds: float) -> None:
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= _MOST_PLACES:
                return
            found = self._counts[key] = _Count(place)
        found.count += 1
        found.seconds += seconds


class _Method:
    """Replaces a method of `torch.Tensor`."""

    def __init__(self, syncs: Syncs, torch: Any, name: str) -> None:
        self._syncs = syncs
        self._original = getattr(torch.Tensor, name)
        self._plain = torch.Tensor.__torch_dispatch__
        self._has_torch_function = torch.overrides.has_torch_function_unary
        self._handle_torch_function = torch.overrides.handle_torch_function
        compiler = getattr(torch, "compiler", None)
        self._is_dynamo_compiling = getattr(compiler, "is_dynamo_compiling", None) or torch._dynamo.is_compiling
        # Reading a tensor's device must not reach its subclass either.
        self._plainly = torch._C.DisableTorchFunction
        self._tensor = torch.Tensor
        self._call = "Tensor." + name
        self.__name__ = name
        self.__qualname__ = "Tensor." + name
        self.__doc__ = self._original.__doc__
        self.__wrapped__ = self._original

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._is_dynamo_compiling():
            # Only Dynamo runs this, for an unbound call: it knows the method by its name.
            return getattr(args[0], self.__name__)(*args[1:], **named)
        if not args or not isinstance(args[0], self._tensor):
            return self._original(*args, **named)
        tensor = args[0]
        original = self._original
        if self._has_torch_function(tensor):
            # As the original would do, but the original would look up its own name and find this object.
            original = partial(self._handle_torch_function, original, (tensor,))
        if (
            not self._syncs.is_wanted()
            or type(tensor).__torch_dispatch__ is not self._plain
            or (self.__name__ == "to" and not _goes_to_host(args[1:], named))
        ):
            return original(*args, **named)
        with self._plainly():
            on_device = tensor.is_cuda
        if self.__name__ == "to" and not on_device and not isinstance(named.get("device", args[-1]), str):
            return original(*args, **named)
        return self._syncs.measure(self._call, on_device, partial(original, *args, **named))

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> Any:
        return getattr, (self._tensor, self.__name__)


def _goes_to_host(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether `Tensor.to` is asked for host memory by name, and for a copy that waits."""
    target = named.get("device", args[0] if args else None)
    is_host = target == "cpu" if isinstance(target, str) else getattr(target, "type", None) == "cpu"
    return is_host and not named.get("non_blocking", False)


def _function(syncs: Syncs, call: str, original: Any) -> Any:
    @wraps(original)
    def synchronize(*args: Any, **named: Any) -> Any:
        if not syncs.is_wanted():
            return original(*args, **named)
        return syncs.measure(call, True, partial(original, *args, **named))

    return synchronize


def _forget_methods() -> None:
    """Dynamo keeps a set of the tensor methods it has met; this makes it again, because the methods have changed."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    for name in ("get_tensor_method", "is_aten_op_or_tensor_method"):
        clear = getattr(getattr(rules, name, None), "cache_clear", None)
        if clear is not None:
            clear()
