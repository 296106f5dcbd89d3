"""Protects the program's files while its state, or the moment at which it writes, is not its own.

This holds from the first resident batch, and while the program is being ended: a `finally: torch.save(...)` would then
replace a finished model with one of some hundred steps. A write is refused by ending the program there. Returning
without writing would be worse: the program would then delete the previous checkpoint, or replace it with an empty file.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable

from .hooks import AttributePatches, forget, listen
from .process import absolute, process_age_s

_SYSTEM = ("/dev/", "/proc/", "/sys/")
# Compiled code that Python, Numba, Triton and torch.compile keep; not a result of the program.
_COMPILED = (*(f"{os.sep}{name}{os.sep}" for name in ("__pycache__", ".triton")), "torchinductor_")
_CREATING = os.O_CREAT | os.O_TRUNC
# Writers that open their files in C++ or Rust, where no audit event is raised: module, class ("" for a function of the
# module), function, position of the path, and the modes that replace a file ("" where the function has no mode).
_NATIVE_WRITERS = (
    ("torch._C", "", "PyTorchFileWriter", 0, ""),
    ("torch.jit._script", "RecursiveScriptModule", "save", 1, ""),
    ("safetensors.torch", "", "serialize_file", 1, ""),
    ("safetensors.numpy", "", "serialize_file", 1, ""),
    ("h5py", "File", "__init__", 1, "wx"),
    ("SimpleITK", "", "WriteImage", 1, ""),
)
# A lock or a file with a process id is smaller; a checkpoint is not.
_LARGEST_LOCK_BYTES = 4096
_PATH_NAMES = ("f", "filename", "fileName", "name")


class Guard:
    """Refuses writing from `arm` to `disarm`.

    It refuses to make or truncate a file, to move one into place, and to delete what is older than this process or may
    be a checkpoint of its own. Files that are already open, logs opened to append, and the deletion of a lock that this
    process made are not affected.

    Args:
        folder: of the recording, into which everything may be written.
        refuse: called with the path in the thread that wants to write; it raises to end the program, or returns if
            the path may be written after all.

    Attributes:
        is_armed: whether it refuses.
    """

    def __init__(self, folder: str, refuse: Callable[[str], None]) -> None:
        self._folder = os.path.join(os.path.abspath(folder), "")
        self._refuse = refuse
        self._began_s = time.time() - process_age_s()
        self._patches = AttributePatches()
        self._thread = threading.local()
        self.is_armed = False

    def arm(self) -> None:
        """Begins to refuse. A second call does nothing."""
        self.disarm()
        self.is_armed = True
        for module, owner, name, position, modes in _NATIVE_WRITERS:
            found = sys.modules.get(module)
            target = getattr(found, owner, None) if owner else found
            if target is not None and hasattr(target, name):
                self._patches.put(target, name, self._checked(getattr(target, name), position, modes))
        listen(self._heard)

    def disarm(self) -> None:
        """Everything may be written again. A second call does nothing."""
        self.is_armed = False
        forget(self._heard)
        self._patches.restore()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within the block this thread may write everything, for example when a data set caches what it makes."""
        before, self._thread.is_free = getattr(self._thread, "is_free", False), True
        try:
            yield
        finally:
            self._thread.is_free = before

    def _checked(self, original: Callable[..., Any], position: int, modes: str) -> Callable[..., Any]:
        @wraps(original, updated=())
        def checked(*args: Any, **kwargs: Any) -> Any:
            named = next((kwargs[key] for key in _PATH_NAMES if key in kwargs), None)
            given = args[position] if len(args) > position else named
            mode = kwargs.get("mode", args[position + 1] if len(args) > position + 1 else "r") if modes else ""
            if not modes or str(mode)[:1] in modes:
                # An open file has a name; a buffer in memory has none.
                self._check(given if isinstance(given, (str, os.PathLike)) else getattr(given, "name", None))
            return original(*args, **kwargs)

        return checked

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & os.O_ACCMODE != os.O_RDONLY and flags & _CREATING and not flags & os.O_APPEND:
                self._check(path, is_opened=True)
        elif event == "os.rename":
            self._check(arguments[1])
        elif event == "os.truncate":
            self._check(arguments[0])
        elif event in ("os.remove", "shutil.rmtree") and arguments[1:2] in ((), (-1,), (None,)):
            # With a folder's descriptor, it is within an `rmtree` that was checked as a whole.
            self._check(arguments[0], is_deleted=True)

    def _check(self, given: Any, *, is_opened: bool = False, is_deleted: bool = False) -> None:
        """Refuses to write to the path, or to delete it, if it is protected."""
        if getattr(self._thread, "is_free", False) or not isinstance(given, (str, bytes, os.PathLike)):
            return
        path = absolute(os.fsdecode(given))
        if path.startswith((self._folder, *_SYSTEM)) or any(part in path for part in _COMPILED):
            return
        if is_opened and os.path.isdir(path):
            # A temporary file without a name is opened by that of its folder.
            return
        if not is_deleted or self._is_kept(path):
            # A refusal is recorded, and may lead to the experiments, which write.
            with self.lifted():
                self._refuse(path)

    def _is_kept(self, path: str) -> bool:
        try:
            found = os.lstat(path)
        except OSError:
            return False
        is_file = stat.S_ISREG(found.st_mode)
        return found.st_mtime < self._began_s or (is_file and found.st_size > _LARGEST_LOCK_BYTES)
