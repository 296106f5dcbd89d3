"""What a Python object is made of, as a digest that two processes agree on. Knows no transforms and no data sets.

Code from installed packages counts by name and version; any other function or class by what it does: its byte code, its
constants, its defaults, what it closes over, and the globals and modules that it names, recursively.
"""

from __future__ import annotations

import collections
import copyreg
import dis
import enum
import functools
import hashlib
import importlib
import logging
import os
import random
import re
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from monai.transforms import Randomizable

from voxelocity.core.native import NativeLoop, stamp
from voxelocity.monai.sources import FolderFacts, module_files, path_facts, version_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), range, slice)
_WORDS = (np.dtype, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_C_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    np.ufunc,
)
_WITHOUT_CONTENT = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
_RANDOM_STATES = (np.random.RandomState, np.random.Generator, torch.Generator, random.Random)
_CLASS_NOISE = re.compile(
    "__(dict|weakref|doc|module|annotations|annotate|abstractmethods|parameters|orig_bases|firstlineno"
    "|static_attributes|dataclass_params)__|_abc_impl|_is_protocol|_is_runtime_protocol"
)
_MAX_DEPTH = 200


class ObjectDigests:
    """Digests of objects. What could not be read is in `doubts`, in words; such a digest says too little.

    Args:
        with_files: text that names an existing file or folder counts with the facts of the file, or of the files in the
            folder (`path_facts`); otherwise only `Path` objects and absolute paths to files do.
        folders: facts of folders that are already known.
    """

    def __init__(self, *, with_files: bool = False, folders: FolderFacts | None = None) -> None:
        self._folders = (folders or FolderFacts()) if with_files else None
        self.doubts: list[str] = []
        self._drawn: frozenset[str] = frozenset()
        self._open: dict[int, int] = {}
        # Holds the objects too, because an id is reused once its object is gone.
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, value: object, where: str) -> bytes:
        """The digest of a value; `where` names it in a doubt."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return self._plain(value)
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._open:
            return digest("back to", str(len(self._open) - self._open[id(value)]))
        if len(self._open) > _MAX_DEPTH:
            return self._doubt(value, where, f"it is nested more than {_MAX_DEPTH} deep")
        self._open[id(value)] = len(self._open)
        try:
            found = self._compound(value, where)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = (value, found)
        return found

    def _plain(self, value: object) -> bytes:
        if isinstance(value, str) and (self._folders is not None or os.path.isabs(value)):
            return digest("str", value, *path_facts(value, folders=self._folders))
        return digest(type(value).__name__, repr(value))

    def _compound(self, value: Any, where: str) -> bytes:
        if isinstance(value, enum.Enum):
            return digest("enum", _name(type(value)), value.name, self.of(value.value, where))
        if isinstance(value, _WORDS):
            return digest(_name(type(value)), str(value))
        if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            return self._array(value, where)
        if isinstance(value, PurePath):
            return digest("path", str(value), *path_facts(str(value), folders=self._folders))
        if isinstance(value, (dict, types.MappingProxyType)):
            return digest("dict", _name(type(value)), *self._pairs(value, where))
        if isinstance(value, (list, tuple, collections.deque)):
            parts = (self.of(part, f"{where}[{i}]") for i, part in enumerate(value))
            return digest("sequence", _name(type(value)), *parts)
        if isinstance(value, (set, frozenset)):
            return digest("set", *sorted(self.of(part, f"{where}{{}}") for part in value))
        return self._code_like(value, where)

    def _code_like(self, value: Any, where: str) -> bytes:
        if isinstance(value, type):
            return self._class(value, where)
        if isinstance(value, types.ModuleType):
            return self._module(value, where)
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, types.CodeType):
            return self._code(value, where)
        if isinstance(value, types.MethodType):
            return digest("method", self.of(value.__self__, where), self.of(value.__func__, where))
        if isinstance(value, functools.partial):
            parts = [self.of(part, f"{where}.partial") for part in (value.func, value.args, value.keywords)]
            return digest("partial", *parts)
        if isinstance(value, (staticmethod, classmethod)):
            return digest(type(value).__name__, self.of(value.__func__, where))
        if isinstance(value, property):
            return digest("property", *(self.of(part, where) for part in (value.fget, value.fset, value.fdel)))
        if isinstance(value, _C_CALLABLES):
            return self._c_callable(value, where)
        if isinstance(value, _WITHOUT_CONTENT):
            return digest(type(value).__name__)
        if isinstance(value, _RANDOM_STATES):
            return self._doubt(value, where, "it holds a random state")
        if type(value).__module__.startswith("numba.") and (function := getattr(value, "py_func", None)) is not None:
            # A user's compiled loop; not its compiler, whose state changes with each call.
            return digest("compiled", self.of(function, where), self.of(value.targetoptions, where))
        if isinstance(value, NativeLoop):
            return digest("loop", value.name, *value.kinds, stamp())
        return self._object(value, where)

    def _array(self, value: Any, where: str) -> bytes:
        extra = b""
        if isinstance(value, torch.Tensor):
            if vars(value):
                extra = self.of(vars(value), where)
            place, kind = str(value.device), str(value.dtype)
            plain = value.detach().as_subclass(torch.Tensor).cpu().contiguous().reshape(-1)
            raw = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
            return digest("tensor", _name(type(value)), place, kind, str(tuple(value.shape)), raw, extra)
        if value.dtype.hasobject:
            return digest("objects", str(value.shape), self.of(value.tolist(), where))
        raw = np.ascontiguousarray(value).tobytes()
        return digest("array", _name(type(value)), value.dtype.str, str(value.shape), raw)

    def _pairs(self, values: Mapping[Any, Any], where: str) -> Iterator[bytes]:
        """Digests of keys and values, in an order that does not depend on the history of the dictionary."""
        yield from sorted(
            digest(self.of(key, f"{where} (a key)"), self.of(value, f"{where}[{key!r}]" if where else str(key)))
            for key, value in values.items()
        )

    def _attributes(self, values: Mapping[str, Any], where: str) -> Iterator[bytes]:
        for name in sorted(values):
            yield digest(name, self.of(values[name], f"{where}.{name}"))

    def _class(self, cls: type, where: str) -> bytes:
        version = version_of(cls.__module__)
        if version is not None or cls.__module__ == "builtins":
            return digest("class", _name(cls), str(version))
        body = {name: value for name, value in vars(cls).items() if not _CLASS_NOISE.fullmatch(name)}
        bases = [self.of(base, where) for base in cls.__bases__ if base is not object]
        return digest("own class", _name(cls), *bases, *self._attributes(body, f"{where}:{cls.__qualname__}"))

    def _module(self, module: types.ModuleType, where: str) -> bytes:
        version = version_of(module.__name__)
        if version is not None:
            return digest("module", module.__name__, version)
        files = module_files(module)
        if files is None:
            return self._doubt(module, where, "the module has no source file")
        return digest("own module", *(part for pair in files for part in pair))

    def _function(self, function: types.FunctionType, where: str) -> bytes:
        # Not `__module__`, which `functools.wraps` copies from the wrapped function.
        module_name = str(function.__globals__.get("__name__", ""))
        version = version_of(module_name)
        cells = [self._cell(cell, where) for cell in function.__closure__ or ()]
        state = [
            self.of(function.__defaults__, f"{where} (a default)"),
            self.of(function.__kwdefaults__, f"{where} (a default)"),
        ]
        if version is not None:
            return digest("function", module_name, function.__qualname__, version, *cells, *state)
        code = function.__code__
        named = sorted(set(_global_names(code)))
        globals_ = [digest(name, self._global(function, name, where)) for name in named]
        imports = [self._imported(function, *found, where) for found in dict.fromkeys(_imports(code))]
        return digest("own function", self.of(code, where), *cells, *state, *globals_, *imports)

    def _imported(
        self, function: types.FunctionType, name: str, names: tuple[str, ...], level: int, where: str
    ) -> bytes:
        """What an import within a function gives it. A module of the user's own is imported, as the function would."""
        version = None if level else version_of(name)
        if version is not None:
            return digest("import", name, version)
        try:
            module = importlib.__import__(name, function.__globals__, None, names, level)
        except ImportError:
            return digest("import", name, "missing")
        except Exception as error:  # whatever the module raises
            return self._doubt(function, where, f"it imports {name}, which fails: {error}")
        return digest("import", name, self.of(module, f"{where} (import {name})"))

    def _cell(self, cell: types.CellType, where: str) -> bytes:
        try:
            return self.of(cell.cell_contents, f"{where} (closed over)")
        except ValueError:
            return digest("empty cell")

    def _global(self, function: types.FunctionType, name: str, where: str) -> bytes:
        if name in function.__globals__:
            return self.of(function.__globals__[name], f"{where} (global {name})")
        return digest("builtin")

    def _code(self, code: types.CodeType, where: str) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        # A frozen set in a constant has no fixed order: `of` sorts it.
        return digest(
            "code", code.co_code, code.co_exceptiontable, repr(names), repr(counts), self.of(code.co_consts, where)
        )

    def _c_callable(self, value: Any, where: str) -> bytes:
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if not name:
            return self._doubt(value, where, "it is a C function without a name")
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            return digest("bound", name, self.of(owner, where))
        home = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
        return digest("built-in", str(home), name, str(version_of(home) if home else None))

    def _object(self, value: Any, where: str) -> bytes:
        cls: Any = type(value)
        maker = copyreg.dispatch_table.get(cls)
        try:
            # Asked of every object: one that cannot be pickled has state that its attributes do not show.
            reduced: Any = maker(value) if maker is not None else value.__reduce_ex__(4)
        except Exception as error:  # whatever the object's own method raises: it cannot be read
            return self._doubt(value, where, str(error) or type(error).__name__)
        parts = [self._class(cls, where)]
        is_usual = cls.__reduce__ is object.__reduce__ and cls.__reduce_ex__ is object.__reduce_ex__
        if maker is not None or not is_usual:
            parts.append(self._reduced(value, reduced, where))
        before = self._drawn
        if isinstance(value, Randomizable):
            # It may also set what it draws on the transforms inside it, as RandAxisFlip does.
            self._drawn = before | _drawn_names(cls)
        try:
            state = {name: part for name, part in _state(value) if name not in self._drawn}
            return digest("object", *parts, *self._attributes(state, where))
        finally:
            self._drawn = before

    def _reduced(self, value: object, reduced: Any, where: str) -> bytes:
        """What the object's own pickling gives, without attributes, which are read separately."""
        if isinstance(reduced, str):
            return digest(reduced)
        maker, arguments, state, *listed = reduced if len(reduced) > 2 else (*reduced, None)
        kept = None if hasattr(value, "__dict__") else state
        items = [None if part is None else list(part) for part in listed[:2]]
        return self.of([maker, arguments, kept, items], where)

    def _doubt(self, value: object, where: str, reason: str) -> bytes:
        text = f"{where or 'the chain'}: a {type(value).__name__} has no readable content ({reason})"
        if text not in self.doubts:
            self.doubts.append(text)
        return digest("doubt", text)


def digest(*parts: str | bytes) -> bytes:
    """A digest of the parts, each with its length, so that no two lists of parts run together."""
    total = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.digest()


def _name(cls: type) -> str:
    # What a program calls `__main__` is `__mp_main__` in the processes that it spawns.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


def _state(value: object) -> Iterator[tuple[str, object]]:
    # Thread-local state, such as MONAI's tracing switch, is not an argument.
    own = getattr(value, "__dict__", {})
    yield from ((name, part) for name, part in own.items() if not isinstance(part, threading.local))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


@functools.lru_cache(maxsize=1024)
def _drawn_names(cls: type) -> frozenset[str]:
    """Attributes that a random class sets outside `__init__` and its setters: what it drew last, not arguments."""
    names = {"R"}
    for base in cls.__mro__:
        for name, method in vars(base).items():
            is_setter = name.startswith("set_") and name != "set_random_state"
            if isinstance(method, types.FunctionType) and name != "__init__" and not is_setter:
                names.update(i.argval for i in dis.get_instructions(method) if i.opname == "STORE_ATTR")
    return frozenset(names)


def _imports(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Of each import within the code: the module, the names taken from it, and the dots before it."""
    before: collections.deque[dis.Instruction] = collections.deque(maxlen=2)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level, names = (constant.argval for constant in before)
            yield str(instruction.argval), tuple(names or ()), int(level)
        if instruction.opname != "EXTENDED_ARG":
            before.append(instruction)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant)


def _global_names(code: types.CodeType) -> Iterable[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
