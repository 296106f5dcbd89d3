"""Where torch is hooked: calls of networks, backward, optimizers, copies to the device, `eval`, `train` and `save`; and
what else the training thread calls that is counted or ignored.

Every hook of torch only calls the original in another thread, within a part, after `unhook`, or in a function that
torch.compile traces. A hooked call within a part costs about 0.1 microseconds.
"""

from __future__ import annotations

import inspect
import sys
import time
from contextlib import suppress
from functools import partial, wraps
from threading import get_ident
from typing import Any, Callable

from .hooks import AttributePatches, WhenImported
from .lines import OWN_CODE, module_of
from .networks import Networks
from .steps import Steps
from .timeline import Ledger
from .writer import Writer

_Function = Callable[..., Any]
# Functions that make steps to choose how the program will train: they do not belong to the training.
_TRIALS = (("voxelocity.planning.step_timing", "time_steps"),)


class CallCounter:
    """Counts costly calls that belong outside steps, by the line that makes them while steps are counted."""

    def __init__(self, writer: Writer, steps: Steps) -> None:
        self._writer = writer
        self._steps = steps
        self._patches = AttributePatches()
        self._sums: dict[tuple[str, str, str], list[float]] = {}
        self._written: dict[tuple[str, str, str], tuple[float, int]] = {}

    def hook(self, owner: Any, name: str, call: str) -> None:
        """Counts calls of `owner.name` under the name `call`."""
        self._patches.put(owner, name, self._counted(getattr(owner, name), call))

    def unhook(self) -> None:
        self._patches.restore()

    def add(self, call: str, seconds: float) -> None:
        """One call, made by the user's innermost line."""
        if self._steps.phase == "watched":
            sums = self._sums.setdefault((call, *OWN_CODE.place_of_caller()), [0.0, 0.0])
            sums[0] += 1
            sums[1] += seconds

    def write(self) -> None:
        """Event `call` for each place that made a call since the last time."""
        for place, (count, seconds) in list(self._sums.items()):
            state = (count, self._steps.num_counted)
            if state != self._written.get(place):
                self._written[place] = state
                call, location, line = place
                self._writer.write(
                    "call",
                    call=call,
                    where=location,
                    line=line,
                    count=int(count),
                    num_steps=self._steps.num_counted,
                    seconds=round(seconds, 6),
                )

    def _counted(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if module_of(sys._getframe(1)).partition(".")[0] == "torch":
                # Its compiler collects garbage too, and the user's line can do nothing about that.
                return original(*args, **kwargs)
            started_s = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.add(call, time.perf_counter() - started_s)

        return counted


class TorchHooks:
    """All hooks of torch except those of its loaders, and of what makes steps that do not belong to the training.

    Attributes:
        call: the hook of a module's call, which calls `original_call`.
        optimizer: the one that stepped last; `sets_to_none` is from the last call of `zero_grad`.
    """

    def __init__(self, torch: Any, ledger: Ledger, steps: Steps, networks: Networks, calls: CallCounter) -> None:
        self.optimizer: Any = None
        self.optimizer_where = ""
        self.sets_to_none = True
        self._torch = torch
        self._ledger = ledger
        self._steps = steps
        self._networks = networks
        self._calls = calls
        self._patches = AttributePatches()
        self._handles: list[Any] = []
        self._is_optimizing = False
        compiler = getattr(torch, "compiler", None)
        self._is_compiling: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", lambda: False)

    def hook(self, when_imported: WhenImported, *, with_copies: bool) -> None:
        """Installs all hooks; those of copies to a device only `with_copies`."""
        for name, trial in _TRIALS:
            when_imported(name, partial(self.ignore, trial))
        torch, put = self._torch, self._patches.put
        module = torch.nn.Module
        self.original_call = module.__call__
        self.call = self._hooked_call(self.original_call)
        put(module, "__call__", self.call)
        _tell_dynamo(self.original_call, self.call)
        put(module, "train", self._hooked_train(module.train))
        for name in ("backward", "grad"):
            hooked = self._as_part(getattr(torch.autograd, name), "backward", begins=self._backward_begins)
            put(torch.autograd, name, hooked)
        self._hook_optimizers(torch.optim.Optimizer)
        clip = self._as_part(torch.nn.utils.clip_grad_norm_, "optimizer", begins=_always)
        saving = self._hooked_save(torch.save)
        # Also where they are defined, or they could not be pickled, as for a process that writes checkpoints.
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            put(owner, "clip_grad_norm_", clip)
        for owner in (torch, torch.serialization):
            put(owner, "save", saving)
        if with_copies:
            put(torch.Tensor, "to", self._as_part(torch.Tensor.to, "copy", begins=self._copy_begins))
            put(torch.Tensor, "cuda", self._as_part(torch.Tensor.cuda, "copy", begins=_is_in_host_memory))

    def ignore(self, name: str, module: Any) -> None:
        """All hooks do nothing within this function; its time counts for the part in which it is called."""
        original, ledger = getattr(module, name), self._ledger

        @wraps(original)
        def ignored(*args: Any, **kwargs: Any) -> Any:
            depth, ledger.depth = ledger.depth, ledger.depth + 1
            try:
                return original(*args, **kwargs)
            finally:
                ledger.depth = depth

        self._patches.put(module, name, ignored)

    def unhook(self) -> None:
        """Removes all hooks."""
        self._patches.restore()
        while self._handles:
            self._handles.pop().remove()
        _tell_dynamo(self.call, self.original_call)

    def _hooked_call(self, original: _Function) -> _Function:
        ledger, networks, is_compiling = self._ledger, self._networks, self._is_compiling

        def hooked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            if ledger.depth or get_ident() != ledger.thread:
                return original(self, *args, **kwargs)
            before = ledger.part
            networks.note_call(self, args, kwargs)
            ledger.begin("forward")
            try:
                return original(self, *args, **kwargs)
            finally:
                ledger.end(before)

        return hooked_call

    def _hooked_train(self, original: _Function) -> _Function:
        ledger, steps, is_compiling = self._ledger, self._steps, self._is_compiling

        @wraps(original)
        def train(self: Any, mode: bool = True) -> Any:
            if is_compiling() or ledger.depth or get_ident() != ledger.thread or self.training == mode:
                return original(self, mode)
            steps.settle()
            ledger.cut("train" if mode else "eval", where=OWN_CODE.where())
            ledger.mode = "" if mode else "validation"
            ledger.depth = 1
            try:
                return original(self, mode)
            finally:
                ledger.depth = 0

        return train

    def _as_part(
        self, original: _Function, part: str, *, begins: Callable[[tuple[Any, ...], dict[str, Any]], bool]
    ) -> _Function:
        """`original` as a part of the step that owns all that happens in it, where `begins(args, kwargs)` is true."""
        ledger, is_compiling = self._ledger, self._is_compiling

        @wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or ledger.depth or get_ident() != ledger.thread or not begins(args, kwargs):
                return original(*args, **kwargs)
            before = ledger.part
            ledger.begin(part)
            try:
                return original(*args, **kwargs)
            finally:
                ledger.end(before)

        return hooked

    def _backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self._ledger.running.num_backwards += 1
        return True

    def _zero_grad_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self.sets_to_none = bool(kwargs.get("set_to_none", args[1] if len(args) > 1 else True))
        return True

    def _copy_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return _is_in_host_memory(args, kwargs) and _goes_to_device(self._torch.device, args[1:], kwargs)

    def _hooked_save(self, original: _Function) -> _Function:
        ledger, steps, calls = self._ledger, self._steps, self._calls

        @wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if ledger.depth or get_ident() != ledger.thread:
                return original(*args, **kwargs)
            steps.settle(may_end=False)
            mode = ledger.mode
            ledger.cut("save", where=OWN_CODE.where())
            ledger.mode, ledger.depth = "saving", 1
            started_s = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                calls.add("torch.save", time.perf_counter() - started_s)
                ledger.depth = 0
                if ledger.thread:
                    ledger.cut("saved")
                    ledger.mode = mode

        return save

    def _hook_optimizers(self, base: Any) -> None:
        """Hooks every class of optimizers, including those defined or first made later."""
        make_hooked = base.profile_hook_step

        def profile_hook_step(func: _Function) -> _Function:
            return self._hooked_step(make_hooked(func), func)

        self._patches.put(base, "profile_hook_step", staticmethod(profile_hook_step))
        zero_grad = self._as_part(base.zero_grad, "optimizer", begins=self._zero_grad_begins)
        self._patches.put(base, "zero_grad", zero_grad)
        for cls in _subclasses(base):
            step = vars(cls).get("step")
            if getattr(step, "hooked", False):
                hooked = self._hooked_step(step, getattr(step, "__wrapped__", step))
                hooked.hooked = True  # type: ignore[attr-defined]
                self._patches.put(cls, "step", hooked)
        # Schedulers keep the step that their optimizer had when they were made, which bypasses a hook of the class.
        optimizer = sys.modules[base.__module__]
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._before_unhooked_step),
            optimizer.register_optimizer_step_post_hook(self._after_unhooked_step),
        ]
        scaler = getattr(getattr(self._torch, "amp", None), "GradScaler", None) or self._torch.cuda.amp.GradScaler
        self._patches.put(scaler, "step", self._hooked_scaler_step(scaler.step))
        for name in ("unscale_", "update"):
            self._patches.put(scaler, name, self._as_part(getattr(scaler, name), "optimizer", begins=_always))

    def _hooked_step(self, original: _Function, bare: _Function) -> _Function:
        """The hooked step, without `__wrapped__`, by which torch.compile would strip it from the class."""
        is_compiling = self._is_compiling

        def step(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return bare(self_, *args, **kwargs)
            return self._step(self_, original, (self_, *args), kwargs)

        step.__doc__ = original.__doc__
        with suppress(TypeError, ValueError):
            # A scaler looks there for what the optimizer takes.
            step.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return step

    def _hooked_scaler_step(self, original: _Function) -> _Function:
        @wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._step(optimizer, original, (scaler, optimizer, *args), kwargs)

        return step

    def _step(self, optimizer: Any, original: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An optimizer's step, which ends the step of the training; a scaler may skip the inner one."""
        ledger, steps = self._ledger, self._steps
        if ledger.thread and get_ident() != ledger.thread and steps.num_steps == 0 and not self._is_optimizing:
            # The program trains in a separate thread.
            ledger.start()
        if ledger.depth or get_ident() != ledger.thread or self._is_optimizing:
            return original(*args, **kwargs)
        self._optimizer_begins(optimizer)
        self._is_optimizing = True
        try:
            return original(*args, **kwargs)
        finally:
            self._is_optimizing = False
            if ledger.thread:
                self._optimizer_ended(optimizer)

    def _optimizer_begins(self, optimizer: Any) -> None:
        self._steps.optimizer_begins(optimizer)
        if self.optimizer is not optimizer:
            self.optimizer, self.optimizer_where = optimizer, OWN_CODE.where()
        self._ledger.move("optimizer")

    def _optimizer_ended(self, optimizer: Any) -> None:
        self._ledger.move("other")
        self._steps.optimizer_ended(optimizer)

    def _before_unhooked_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_unhooked_step():
            self._optimizer_begins(optimizer)

    def _after_unhooked_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_unhooked_step():
            self._optimizer_ended(optimizer)

    def _is_unhooked_step(self) -> bool:
        ledger = self._ledger
        return not (self._is_compiling() or self._is_optimizing or ledger.depth or get_ident() != ledger.thread)


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _is_in_host_memory(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].device.type == "cpu")


def _tell_dynamo(before: Any, after: Any) -> None:
    """torch.compile compares a module's call with the one it knows, and compiles any other more slowly."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = after  # type: ignore[attr-defined]


def _goes_to_device(device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(target, bool) or target is None:
        return False
    if isinstance(target, int):
        return True
    if isinstance(target, str):
        return not target.startswith("cpu")
    if isinstance(target, device):
        return bool(target.type != "cpu")
    return getattr(getattr(target, "device", None), "type", "cpu") != "cpu"


def _subclasses(base: Any) -> list[Any]:
    found: list[Any] = []
    for cls in base.__subclasses__():
        found += [cls, *_subclasses(cls)]
    return found
