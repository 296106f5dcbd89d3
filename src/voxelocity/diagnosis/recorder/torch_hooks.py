"""Where torch is hooked: calls of networks, backward, optimizers, copies to the device, `eval`, `train` and `save`.

Every hook only calls the original in another thread, within a part, after `unhook`, or in a function that
torch.compile traces. A hooked call within a part costs about 0.1 microseconds.
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from threading import get_ident
from typing import Any, Callable

from .calls import Calls
from .ledger import Ledger
from .lines import OWN_CODE
from .networks import Networks
from .patches import Patches
from .steps import Steps

_Function = Callable[..., Any]


class TorchHooks:
    """All hooks of torch except those of its loaders.

    Attributes:
        optimizer: the one that stepped last; `sets_to_none` is from the last call of `zero_grad`.
    """

    def __init__(self, torch: Any, ledger: Ledger, steps: Steps, networks: Networks, calls: Calls) -> None:
        self.optimizer: Any = None
        self.optimizer_where = ""
        self.sets_to_none = True
        self._torch = torch
        self._ledger = ledger
        self._steps = steps
        self._networks = networks
        self._calls = calls
        self._patches = Patches()
        self._handles: list[Any] = []
        self._is_optimizing = False
        compiler = getattr(torch, "compiler", None)
        self._is_compiling: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", lambda: False)

    def hook(self, *, with_copies: bool) -> None:
        """Installs all hooks.

        Args:
            with_copies: whether to hook copies to a device; without a device there are none.
        """
        torch, put = self._torch, self._patches.put
        module = torch.nn.Module
        self._original_call = module.__call__
        self._call = self._hooked_call(self._original_call)
        put(module, "__call__", self._call)
        _tell_dynamo(self._original_call, self._call)
        put(module, "train", self._hooked_train(module.train))
        for name in ("backward", "grad"):
            put(torch.autograd, name, self._hooked_backward(getattr(torch.autograd, name)))
        put(torch, "save", self._hooked_save(torch.save))
        self._hook_optimizers(torch.optim.Optimizer)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            put(owner, "clip_grad_norm_", self._as_optimizer(owner.clip_grad_norm_))
        if with_copies:
            for name in ("to", "cuda"):
                put(torch.Tensor, name, self._hooked_copy(getattr(torch.Tensor, name)))

    @property
    def call_and_original(self) -> tuple[_Function, _Function]:
        """The hook of a module's call, and what it calls."""
        return self._call, self._original_call

    def unhook(self) -> None:
        """Removes all hooks."""
        self._patches.restore()
        while self._handles:
            self._handles.pop().remove()
        _tell_dynamo(self._call, self._original_call)

    def _hooked_call(self, original: _Function) -> _Function:
        ledger, networks, is_compiling = self._ledger, self._networks, self._is_compiling

        def hooked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            if ledger.depth or get_ident() != ledger.thread:
                return original(self, *args, **kwargs)
            before = ledger.part
            networks.called(self, args, kwargs)
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

    def _hooked_backward(self, original: _Function) -> _Function:
        ledger, is_compiling = self._ledger, self._is_compiling

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or ledger.depth or get_ident() != ledger.thread:
                return original(*args, **kwargs)
            before = ledger.part
            ledger.running.num_backwards += 1
            ledger.begin("backward")
            try:
                return original(*args, **kwargs)
            finally:
                ledger.end(before)

        return backward

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
        self._patches.put(base, "zero_grad", self._as_optimizer(base.zero_grad, is_zero_grad=True))
        for cls in _subclasses(base):
            step = vars(cls).get("step")
            if getattr(step, "hooked", False):
                hooked = self._hooked_step(step, getattr(step, "__wrapped__", step))
                hooked.hooked = True  # type: ignore[attr-defined]
                self._patches.put(cls, "step", hooked)
        # Schedulers keep the step that their optimizer had when they were made, which bypasses a hook of the class.
        optimizer = sys.modules[base.__module__]
        for register, hook in (
            (optimizer.register_optimizer_step_pre_hook, self._before_unhooked_step),
            (optimizer.register_optimizer_step_post_hook, self._after_unhooked_step),
        ):
            self._handles.append(register(hook))
        scaler = getattr(getattr(self._torch, "amp", None), "GradScaler", None) or self._torch.cuda.amp.GradScaler
        self._patches.put(scaler, "step", self._hooked_scaler_step(scaler.step))
        for name in ("unscale_", "update"):
            self._patches.put(scaler, name, self._as_optimizer(getattr(scaler, name)))

    def _hooked_step(self, original: _Function, bare: _Function) -> _Function:
        """The hooked step, without `__wrapped__`, by which torch.compile would strip it from the class."""
        is_compiling = self._is_compiling

        def step(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return bare(self_, *args, **kwargs)
            return self._step(self_, original, (self_, *args), kwargs)

        step.__doc__ = original.__doc__
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
        steps.optimizer_begins(optimizer)
        if self.optimizer is not optimizer:
            self.optimizer, self.optimizer_where = optimizer, OWN_CODE.where()
        self._is_optimizing = True
        ledger.move("optimizer")
        try:
            return original(*args, **kwargs)
        finally:
            self._is_optimizing = False
            if ledger.thread:
                ledger.move("other")
                steps.optimizer_ended(optimizer)

    def _before_unhooked_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ledger = self._ledger
        if self._is_compiling() or self._is_optimizing or ledger.depth or get_ident() != ledger.thread:
            return
        self._steps.optimizer_begins(optimizer)
        if self.optimizer is not optimizer:
            self.optimizer, self.optimizer_where = optimizer, OWN_CODE.where()
        ledger.move("optimizer")

    def _after_unhooked_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ledger = self._ledger
        if self._is_compiling() or self._is_optimizing or ledger.depth or get_ident() != ledger.thread:
            return
        ledger.move("other")
        self._steps.optimizer_ended(optimizer)

    def _as_optimizer(self, original: _Function, *, is_zero_grad: bool = False) -> _Function:
        ledger, is_compiling = self._ledger, self._is_compiling

        @wraps(original)
        def optimizing(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or ledger.depth or get_ident() != ledger.thread:
                return original(*args, **kwargs)
            if is_zero_grad:
                self.sets_to_none = bool(kwargs.get("set_to_none", args[1] if len(args) > 1 else True))
            before = ledger.part
            ledger.begin("optimizer")
            try:
                return original(*args, **kwargs)
            finally:
                ledger.end(before)

        return optimizing

    def _hooked_copy(self, original: _Function) -> _Function:
        ledger, is_compiling, device = self._ledger, self._is_compiling, self._torch.device
        is_cuda = original is self._torch.Tensor.cuda

        @wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or ledger.depth or get_ident() != ledger.thread:
                return original(self, *args, **kwargs)
            if self.device.type != "cpu" or not (is_cuda or _goes_to_device(device, args, kwargs)):
                return original(self, *args, **kwargs)
            before = ledger.part
            ledger.begin("copy")
            try:
                return original(self, *args, **kwargs)
            finally:
                ledger.end(before)

        return copy


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
