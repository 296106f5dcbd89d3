"""The state of a training, saved in memory and restored: steps on resident batches must leave no trace.

This calls none of the program's code. Tensors, containers and attributes are copied and later written back in place, so
anything that refers to them (a scheduler to its optimizer, a captured graph to its memory) stays valid.
Found on the heap: networks with their buffers and gradients, optimizers, anything with `state_dict` and
`load_state_dict` (schedulers, scalers, averages of weights, metrics, loops of trainers), objects of the user's own
classes, containers of tensors that are shaped like weights, and random number generators. Not found: numbers in local
and global variables.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from functools import partial
from typing import Any, Callable

from .lines import OWN_CODE

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict)
# Up to this size, tensors of objects outside checkpoints count too: a metric's counts, a loss's weights.
_SMALL_ELEMENTS = 1 << 20
_SMALL_BYTES = 1 << 20
# Longer containers hold data, not state.
_LONGEST = 100_000
_STATES = (("ignite.engine.events", "State"),)
"""Classes, by module and name, that hold a trainer's state but have no `state_dict`."""

_OWN_PACKAGE = __name__.rpartition(".")[0]
_TRACED = ("FakeTensor", "FunctionalTensor")
_GIVES_ITEMS = ("__getitem__", "__iter__", "__next__")


class KeptState:
    """The state found when it is made; `keep` copies it and `put_back` restores it.

    Make and use it in the thread that trains, between two steps. Other threads may run; what only they change is
    ignored.

    Args:
        torch: the module.
        generators: torch generators besides torch's own: those of the program's loaders.

    Attributes:
        num_bytes: bytes of host memory that the copies take.
    """

    def __init__(self, torch: Any, generators: list[Any]) -> None:
        self._torch = torch
        self._tensors: dict[int, Any] = {}
        self._arrays: dict[int, Any] = {}
        self._containers: dict[int, Any] = {}
        self._generators = _Generators(torch, generators)
        self._undo: list[Callable[[], None]] = []
        self._find()
        self.num_bytes = sum(_bytes_of(tensor) for tensor in self._tensors.values())
        self.num_bytes += sum(int(array.nbytes) for array in self._arrays.values())

    def keep(self) -> None:
        """Copies everything. Waits for the device, if there is one."""
        self._undo = [_kept_container(container) for container in self._containers.values()]
        self._undo += [_kept_tensor(self._torch, tensor) for tensor in self._tensors.values()]
        self._undo += [_kept_array(array) for array in self._arrays.values()]
        self._generators.keep()

    def put_back(self) -> None:
        """Restores what was kept, and releases the copies. A second call does nothing.

        Raises:
            Exception: something could not be written back; everything else was.
            KeyboardInterrupt: after everything was.
        """
        undo, self._undo = self._undo, []
        failure: BaseException | None = None
        for restore in [*undo, self._generators.put_back]:
            try:
                restore()
            except Exception as error:
                failure = failure or error
            except BaseException as error:
                # Ctrl-C must not leave half of the training's state behind.
                failure = error
                restore()
        self._tensors, self._arrays, self._containers = {}, {}, {}
        if failure is not None:
            raise failure

    def _find(self) -> None:
        kinds = _Kinds(self._torch)
        everything = gc.get_objects()
        weak: list[Any] = []
        for value in everything:
            kind = kinds.of(type(value))
            if kind == "generator":
                self._generators.add(value)
            elif kind:
                self._take_object(value, kind, weak)
        shapes = {tuple(held.shape) for held in self._tensors.values() if held.dim()}
        for value in everything:
            if type(value) in (dict, OrderedDict, list) and 0 < len(value) <= _LONGEST:
                first: Any = next(iter(value.values() if isinstance(value, dict) else value), None)
                if issubclass(type(first), self._torch.Tensor) and _is_plain(first) and tuple(first.shape) in shapes:
                    self._take(value, weak, is_strong=False)
        for tensor in weak:
            if tensor.grad_fn is None and (tensor.numel() <= _SMALL_ELEMENTS or tuple(tensor.shape) in shapes):
                self._tensors[id(tensor)] = tensor

    def _take_object(self, value: Any, kind: str, weak: list[Any]) -> None:
        # Not by `getattr`: what a class has in place of it may run any code, and pydantic's raises an error.
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if type(attributes) is not dict:
            return
        self._containers[id(attributes)] = attributes
        strong = {"network": ("_parameters", "_buffers"), "optimizer": ("state", "param_groups")}.get(kind, ())
        for name, held in list(attributes.items()):
            self._take(held, weak, is_strong=name in strong)

    def _take(self, value: Any, weak: list[Any], *, is_strong: bool) -> None:
        """A value and, if it is a container, what it holds."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            kind = type(one)
            if kind in _CONTAINERS:
                if id(one) not in self._containers and len(one) <= _LONGEST:
                    self._containers[id(one)] = one
                    waiting += list(one.values() if kind in _MAPPINGS else one)
            elif kind is tuple:
                waiting += one
            elif issubclass(kind, self._torch.Tensor) and _is_plain(one):
                if is_strong:
                    self._tensors[id(one)] = one
                else:
                    weak.append(one)
            elif kind is getattr(sys.modules.get("numpy"), "ndarray", None) and one.nbytes <= _SMALL_BYTES:
                self._arrays[id(one)] = one


class _Kinds:
    """The role of a class's objects in a training; each class is judged once."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        numpy: Any = sys.modules.get("numpy.random")
        self._generators = (random.Random, *((numpy.RandomState, numpy.Generator) if numpy is not None else ()))
        data = torch.utils.data
        self._others = (data.DataLoader, data.Dataset, data.Sampler, threading.Thread)
        self._known: dict[type, str] = {}

    def of(self, cls: type) -> str:
        """ "network", "optimizer", "state", "generator", or "" if it is not part of the training's state."""
        found = self._known.get(cls)
        if found is None:
            try:
                found = self._judge(cls)
            except Exception:
                # A class's attributes may run any code; one that raises is not part of the training.
                found = ""
            self._known[cls] = found
        return found

    def _judge(self, cls: type) -> str:
        if issubclass(cls, type) or issubclass(cls, self._others) or str(cls.__module__).startswith(_OWN_PACKAGE):
            return ""
        if issubclass(cls, self._torch.nn.Module):
            return "network"
        if issubclass(cls, self._torch.optim.Optimizer):
            return "optimizer"
        if issubclass(cls, self._generators):
            return "generator"
        if callable(getattr(cls, "state_dict", None)) and callable(getattr(cls, "load_state_dict", None)):
            return "state"
        if (cls.__module__, cls.__name__) in _STATES:
            return "state"
        # What yields items is data, however it is written.
        if any(hasattr(cls, name) for name in _GIVES_ITEMS):
            return ""
        return "state" if _is_own(cls) else ""


class _Generators:
    """States of all random number generators: the modules' own, and those that were added."""

    def __init__(self, torch: Any, more: list[Any]) -> None:
        self._torch = torch
        # In loaders other than torch's, `generator` may be something else.
        self._objects: list[Any] = [value for value in more if isinstance(value, torch.Generator)]
        self._undo: list[Callable[[], None]] = []

    def add(self, generator: Any) -> None:
        """One of Python's or NumPy's."""
        self._objects.append(generator)

    def keep(self) -> None:
        torch, numpy = self._torch, sys.modules.get("numpy.random")
        pairs: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
            (random.getstate, random.setstate),
            (torch.get_rng_state, torch.set_rng_state),
        ]
        if numpy is not None:
            pairs.append((numpy.get_state, numpy.set_state))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            pairs.append((torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
        for kept in self._objects:
            if isinstance(kept, random.Random):
                if not isinstance(kept, random.SystemRandom):
                    pairs.append((kept.getstate, kept.setstate))
            elif hasattr(kept, "bit_generator"):
                bits = kept.bit_generator
                pairs.append((partial(getattr, bits, "state"), partial(setattr, bits, "state")))
            else:
                pairs.append((kept.get_state, kept.set_state))
        self._undo = [partial(write, read()) for read, write in pairs]

    def put_back(self) -> None:
        undo, self._undo = self._undo, []
        for restore in undo:
            restore()


def kept_generators(torch: Any, more: list[Any]) -> Callable[[], None]:
    """Keeps the states of all random number generators; the returned function restores them."""
    generators, kinds = _Generators(torch, more), _Kinds(torch)
    for value in gc.get_objects():
        if kinds.of(type(value)) == "generator":
            generators.add(value)
    generators.keep()
    return generators.put_back


def _kept_container(container: Any) -> Callable[[], None]:
    """Keeps its values; restores them if it holds others by then."""
    if isinstance(container, dict):
        items = list(container.items())

        def put_back_items() -> None:
            if len(items) != len(container) or any(container.get(key, items) is not value for key, value in items):
                container.clear()
                container.update(items)

        return put_back_items
    values = list(container)

    def put_back_values() -> None:
        if len(values) == len(container) and all(now is before for now, before in zip(container, values)):
            return
        if isinstance(container, list):
            container[:] = values
        else:
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(values)

    return put_back_values


def _kept_tensor(torch: Any, tensor: Any) -> Callable[[], None]:
    """Keeps its values and its gradient's."""
    kept = _copied(torch, tensor)
    gradient = tensor.grad if tensor.is_leaf else None
    kept_gradient = None if gradient is None else _copied(torch, gradient)

    def put_back() -> None:
        _write(torch, tensor, kept)
        if tensor.is_leaf:
            if gradient is not None:
                _write(torch, gradient, kept_gradient)
            if tensor.grad is not gradient:
                tensor.grad = gradient

    return put_back


def _copied(torch: Any, tensor: Any) -> Any:
    with torch.no_grad():
        return tensor.detach().to("cpu", copy=True)


def _write(torch: Any, tensor: Any, kept: Any) -> None:
    # A tensor made in inference mode can only be written in that mode.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if tensor.shape != kept.shape or tensor.dtype != kept.dtype:
            tensor.data = kept.to(tensor.device)
        elif not torch.equal(tensor.detach().to("cpu"), kept):
            # What has not changed is left alone: an expanded tensor, for example, cannot be written.
            tensor.copy_(kept)


def _kept_array(array: Any) -> Callable[[], None]:
    kept = array.copy()

    def put_back() -> None:
        if array.flags.writeable:
            array[...] = kept

    return put_back


def _is_plain(tensor: Any) -> bool:
    """Whether it has values: not a tensor of a trace, nor a parameter that waits for its shape."""
    kind = type(tensor)
    if kind.__name__ in _TRACED or tensor.device.type == "meta" or hasattr(kind, "materialize"):
        return False
    return bool(tensor.layout == sys.modules["torch"].strided)


def _bytes_of(tensor: Any) -> int:
    own = int(tensor.numel()) * int(tensor.element_size())
    return 2 * own if tensor.is_leaf and tensor.grad is not None else own


def _is_own(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if cls.__module__ != "__main__" and not isinstance(file, str):
        return False
    methods = [getattr(value, "__code__", None) for value in vars(cls).values()]
    return any(OWN_CODE.holds(code, cls.__module__) for code in methods if code is not None)


def free_bytes() -> int:
    """Host memory that this process can still take; a very large number if unknown."""
    available = _number("/proc/meminfo", "MemAvailable:")
    found = [1 << 62 if available is None else 1024 * available]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, taken = _number(limit), _number(used)
        if most is not None and taken is not None:
            # The memory of cached files can be reclaimed.
            cached = _number(os.path.join(os.path.dirname(used), "memory.stat"), "inactive_file")
            found.append(max(0, most - taken) + (cached or 0))
    return min(found)


def _number(path: str, name: str = "") -> int | None:
    """The number after this name at the start of a line; None where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            return next(int(line[len(name) :].split()[0]) for line in file if line.startswith(name))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
