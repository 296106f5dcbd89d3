"""Which code is the user's own, the text of its lines, what an instruction calls, and where loaders, data sets and
optimizers are made.

What libraries do is reported at the line that called them. Own code is not Python's, not installed and not the
recorder's. The script itself is own wherever it is, so a program that came with a package has lines too.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
import sysconfig
import weakref
from contextlib import suppress
from functools import lru_cache, wraps
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from .hooks import AttributePatches, WhenImported

_LONGEST_LINE = 160
# References to a frame's variables: the frame's, the caller's, and that of counting them.
_OWN_REFERENCES = 3
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
# Typed by the user, with no file: an interactive session and cells of a notebook.
_TYPED = ("<stdin>", "<ipython-input", "<python-input")
_TYPED_CELL = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_FILE = f"{os.sep}ipykernel_"
# Frameworks that take over the loop: the user's line that calls one of these starts everything and makes nothing.
_FRAMEWORKS = frozenset(
    ["pytorch_lightning", "lightning", "ignite", "monai", "transformers", "fastai", "nnunetv2", "composer"]
)
_TAKES_OVER = frozenset(["fit", "run", "train", "validate", "test", "predict", "evaluate", "run_training"])
# Libraries that are often installed from a checkout, outside of site-packages.
KNOWN_LIBRARIES = frozenset(
    {
        "torch", "torchvision", "torchio", "monai", "batchgenerators", "batchgeneratorsv2", "numpy", "scipy", "skimage",
        "nibabel", "pydicom", "SimpleITK", "lightning", "pytorch_lightning", "ignite", "accelerate", "voxelocity",
        "voxelocity_observe", "voxelocity_lab",
    }
)  # fmt: skip
_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_LONGEST_CALL = 400
# Makes its own loaders from the user's, over the same data set, in a call by the user.
_REMAKING = "accelerate."
_DATASETS = (("monai.data.dataset", "Dataset"), ("torchio.data.queue", "Queue"))


class SourceLine(NamedTuple):
    """A line of the user's own code: "file:line" and its text."""

    where: str
    line: str


NOWHERE = SourceLine("", "")


class OwnCode:
    """Distinguishes the user's own code. Any thread may ask; answers are cached, so asking again costs one lookup.

    Args:
        script: file that is own wherever it is; what runs as `__main__` if not given.
    """

    def __init__(self, script: str | None = None) -> None:
        self._script = script
        self._foreign: tuple[str, ...] = ()
        self._is_own: dict[tuple[str, str], bool] = {}

    def holds(self, code: CodeType, module_name: str) -> bool:
        """Whether this code is the user's own; `module_name` is the `__name__` that it runs under."""
        return self.holds_file(code.co_filename, module_name)

    def holds_file(self, filename: str, module_name: str) -> bool:
        """Whether a module of this file and name is the user's own."""
        key = (filename, module_name)
        found = self._is_own.get(key)
        if found is None:
            found = self._is_own[key] = self._judge(*key)
        return found

    def place_of_caller(self) -> SourceLine:
        """The innermost own line of the calling thread."""
        return self.place(sys._getframe(1))

    def where(self) -> str:
        """The "file:line" of `place_of_caller`, without reading the line; "" where no own code is on the stack.

        About 3 µs of CPU with own code ten frames away.
        """
        own = self.innermost(sys._getframe(1))
        return "" if own is None else f"{shown_file(own.f_code.co_filename)}:{line_of(own)}"

    @staticmethod
    def defined(function: Any) -> tuple[str, str]:
        """The qualified name of a function or a callable object, and "file:line" of its code; "" if it has none."""
        named = function if hasattr(function, "__qualname__") else type(function)
        module_name = getattr(named, "__module__", None) or ""
        name = f"{module_name}.{getattr(named, '__qualname__', '')}"
        # For an object of a class with `__call__`, the code of that method.
        method = vars(type(function)).get("__call__")
        code = getattr(function, "__code__", None) or getattr(method, "__code__", None)
        if not isinstance(code, CodeType):
            return name, ""
        return name, f"{shown_file(code.co_filename)}:{code.co_firstlineno}"

    def _judge(self, filename: str, module_name: str) -> bool:
        if filename.startswith("<"):
            return filename.startswith(_TYPED) or (filename == "<string>" and module_name == "__main__")
        path = _real(filename)
        if path == _real(_main_file() if self._script is None else self._script):
            # The command of an installed package is a script that an installer wrote.
            return os.path.dirname(path) != _real(sysconfig.get_path("scripts"))
        if not self._foreign:
            self._foreign = (*standard_folders(), os.path.join(os.path.dirname(os.path.realpath(__file__)), ""))
        if path.startswith(self._foreign) or is_installed(path):
            return False
        # torch.compile's own code is in a temporary folder; torch.fx names its code "<eval_with_key>".
        return module_name.partition(".")[0] not in KNOWN_LIBRARIES and "torchinductor_" not in path

    def innermost(self, frame: FrameType | None) -> FrameType | None:
        """The first own frame from `frame` outwards; None if there is none or it only started a framework."""
        known = self._is_own
        inner: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            # Hooks come here in every step: what was judged before is looked up without two calls per frame.
            try:
                is_own = known.get((code.co_filename, frame.f_globals.get("__name__", "")))
            except TypeError:
                # A program may name its module anything, even a list.
                is_own = None
            if is_own or (is_own is None and self.holds(code, module_of(frame))):
                return None if inner is not None and takes_over(inner) else frame
            inner, frame = frame, frame.f_back
        return None

    def place(self, frame: FrameType | None) -> SourceLine:
        """The innermost own line from `frame` outwards; empty where no own code is on the stack."""
        own = self.innermost(frame)
        return NOWHERE if own is None else self.at(own.f_code.co_filename, line_of(own), own.f_globals)

    def at(self, filename: str, number: int, module_globals: dict[str, Any] | None = None) -> SourceLine:
        """A line of a file as reported; the text is empty if the source cannot be read."""
        text = linecache.getline(filename, number, module_globals).strip()
        if len(text) > _LONGEST_LINE:
            text = text[: _LONGEST_LINE - 3] + "..."
        return SourceLine(f"{shown_file(filename)}:{number}", text)


def takes_over(frame: FrameType) -> bool:
    """Whether this is a framework's function that runs the whole training: own code that calls it only starts it."""
    return frame.f_code.co_name in _TAKES_OVER and module_of(frame).partition(".")[0] in _FRAMEWORKS


def shown_file(filename: str) -> str:
    """A file as users know it: cells of a notebook by their number, if the kernel provides it."""
    typed = _TYPED_CELL.match(filename)
    if typed:
        return f"cell {typed.group(1)}"
    if _KERNEL_FILE not in filename:
        return filename
    # The kernel gives each cell's code its own file name, and remembers which cell it was.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(filename)
    return "notebook cell" if number is None else f"cell {number}"


def standard_folders() -> tuple[str, ...]:
    """The folders of Python's own library, each with a separator at its end."""
    known = sysconfig.get_paths()
    places = {os.path.realpath(known[name]) for name in ("stdlib", "platstdlib") if name in known}
    return tuple(os.path.join(place, "") for place in sorted(places))


def is_installed(path: str) -> bool:
    """Whether the file came with an installed package."""
    return any(part in path for part in _INSTALLED)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of the frame's variables. Before Python 3.13 the frame would keep the requested dictionary, and with it
    the tensors of that moment; it is emptied again, unless the program itself holds it, by `locals()`."""
    names = frame.f_locals
    copied = dict(names)
    if (
        frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and type(names) is dict
        and sys.getrefcount(names) <= _OWN_REFERENCES
    ):
        names.clear()
    return copied


def line_of(frame: FrameType) -> int:
    """The line that runs; the line of the definition if the current instruction has none."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def module_of(frame: FrameType) -> str:
    """The `__name__` that the frame's code runs under, "" where it has none."""
    name = frame.f_globals.get("__name__", "")
    return name if isinstance(name, str) else ""


def _main_file() -> str:
    # The program's script is not known yet when the recorder starts.
    return getattr(sys.modules.get("__main__"), "__file__", None) or ""


def _real(path: str) -> str:
    try:
        return os.path.realpath(path) if path else ""
    except OSError:
        # The working folder was deleted.
        return path


# One cache for all hooks: whether a file is the user's does not depend on who asks.
OWN_CODE = OwnCode()


def call_text(frame: FrameType) -> str:
    """The dotted name that the frame's instruction calls, as written in the source; "" if none is found.

    Python 3.11 and later know the columns of an instruction; older ones use the whole line.
    """
    segment = _segment(frame)
    if segment is None:
        # Without columns: the first call in the line of a dotted name, which is the outermost one.
        found = _CALL.search(linecache.getline(frame.f_code.co_filename, line_of(frame), frame.f_globals))
        return found.group(1) if found else ""
    if not segment.endswith(")"):
        return ""
    depth = 0
    for at in range(len(segment) - 1, -1, -1):
        depth += {")": 1, "]": 1, "}": 1, "(": -1, "[": -1, "{": -1}.get(segment[at], 0)
        if depth == 0:
            found = re.search(r"[A-Za-z_][\w.]*$", segment[:at].rstrip())
            name = found.group(0) if found else ""
            # `f(x).item()` and `xs[0].item()` are methods of something unnamed.
            return name if segment[:at].rstrip() == name else "()." + re.sub(r"^.*\.", "", segment[:at].rstrip())
    return ""


def resolved(text: str, frame: FrameType) -> tuple[str, str] | None:
    """What a dotted name refers to. Only names of the module are looked up: reading the variables of a running
    function would change them."""
    root, *rest = text.split(".")
    found = frame.f_globals.get(root)
    if found is None:
        builtins = frame.f_globals.get("__builtins__")
        names = builtins if isinstance(builtins, dict) else getattr(builtins, "__dict__", {})
        return ("", rest[-1]) if rest else (("builtins", root) if root in names else None)
    if isinstance(found, ModuleType):
        return (".".join([found.__name__, *rest[:-1]]), rest[-1]) if rest else None
    # Other objects are left alone: an attribute of a lazy proxy could run code of the program.
    if isinstance(found, (type, FunctionType, BuiltinFunctionType)) and found.__module__:
        return found.__module__, ".".join([found.__qualname__, *rest])
    return ("", rest[-1]) if rest else None


def _segment(frame: FrameType) -> str | None:
    """Source text of the frame's current instruction; None where Python does not know its columns."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return None
    at = frame.f_lasti // 2
    line, end_line, column, end_column = next(islice(positions(), at, at + 1), (None,) * 4)
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, at, frame.f_globals) for at in range(line, end_line + 1)]
    if not all(lines):
        return None
    # Columns count bytes of UTF-8.
    encoded = [text.encode() for text in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    return b"".join(encoded).decode(errors="replace")


class Site(NamedTuple):
    """Where something was made: "file:line", the source of the call, and the variable that it was assigned to."""

    where: str
    call: str
    variable: str


NO_SITE = Site("", "", "")


class Sites:
    """Remembers where each loader, data set and optimizer was made, without keeping any of them alive.

    A framework iterates a loader in its own code, and may make it again for its own purposes; the line to change is the
    one in which the user made it.
    """

    def __init__(self) -> None:
        self._patches = AttributePatches()
        self._by_object: weakref.WeakKeyDictionary[Any, Site] = weakref.WeakKeyDictionary()
        # By identity: a data set of a dataclass, say, cannot be hashed.
        self._by_dataset: dict[int, tuple[weakref.ref[Any], Site]] = {}

    def hook(self, torch: Any, when_imported: WhenImported) -> None:
        """Replaces the constructors."""
        self._hook_class(torch.utils.data.DataLoader)
        self._hook_class(torch.optim.Optimizer)
        for module, name in _DATASETS:
            when_imported(module, lambda found, name=name: self._hook_class(getattr(found, name)))  # type: ignore[misc]

    def unhook(self) -> None:
        """Restores the constructors."""
        self._patches.restore()

    def of(self, made: Any) -> Site:
        """Where this was made; for a loader that a framework made again, where the first one over its data was made."""
        try:
            found = self._by_object.get(made, NO_SITE)
        except TypeError:
            return NO_SITE
        dataset = None if found.where else getattr(made, "dataset", None)
        known = None if dataset is None else self._noted(dataset)
        return found if known is None else known[1]

    def _noted(self, dataset: Any) -> tuple[weakref.ref[Any], Site] | None:
        known = self._by_dataset.get(id(dataset))
        return known if known is not None and known[0]() is dataset else None

    def _hook_class(self, cls: Any) -> None:
        original = cls.__init__

        @wraps(original)
        def hooked_init(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            # Some objects cannot be weakly referenced, such as a list as a data set; others run any code when asked.
            with suppress(Exception):
                self._note(self_)

        self._patches.put(cls, "__init__", hooked_init)

    def _note(self, made: Any) -> None:
        frame = sys._getframe(2)
        own = OWN_CODE.innermost(frame)
        if own is None or _is_remade(frame, own):
            return
        filename, number = own.f_code.co_filename, line_of(own)
        names = tuple(cls.__name__ for cls in type(made).__mro__)
        site = Site(f"{shown_file(filename)}:{number}", *call_at(filename, number, names))
        self._by_object[made] = site
        dataset = getattr(made, "dataset", None)
        if dataset is not None and self._noted(dataset) is None:
            self._by_dataset[id(dataset)] = weakref.ref(dataset), site


@lru_cache(maxsize=64)
def call_at(filename: str, number: int, names: tuple[str, ...]) -> tuple[str, str]:
    """The source of the call of one of these functions or classes within the statement that runs at this line, and what
    its value is assigned to ("" for neither)."""
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "", ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= number <= (node.end_lineno or number)
        and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in names
    ]
    if not calls:
        return "", ""
    call = max(calls, key=lambda node: node.lineno)
    targets = [
        node.targets[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value is call and len(node.targets) == 1
    ]
    text = ast.get_source_segment(source, call) or ""
    variable = ast.get_source_segment(source, targets[0]) or "" if targets else ""
    return (text, variable) if len(text) <= _LONGEST_CALL else ("", variable)


def _is_remade(frame: Any, own: Any) -> bool:
    """Whether a framework stands between the constructor and the user's own line."""
    while frame is not None and frame is not own:
        if module_of(frame).startswith(_REMAKING):
            return True
        frame = frame.f_back
    return False
