"""Samples the stacks of threads many times a second while steps are counted: which of the user's lines runs, and what
it does, by a table of the functions on the stack.

A C function has no frame: what the innermost frame calls is read from its source and looked up like a frame's name.

A separate thread takes the samples, and needs the interpreter lock for it. While C code holds the lock (most of NumPy
does not; a Numba function without `nogil` does), a sample comes late, at the end of that code, and finds the line that
called it. Each sample therefore counts for the time since the one before. On programs with known shares (alternating
Python, and C that holds the lock for 0.5 to 200 ms), the shares were right within 2 points where each lasted 0.2 s, and
within 5 where it lasted 0.03 s. With equal weights, the samples were wrong by up to 45. If several such calls follow
each other within one period, the line among them stays unknown.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from .lines import NOWHERE, OwnCode, SourceLine, call_text, line_of, module_of, resolved, takes_over
from .steps import DATA_PARTS, Moment
from .transforms import uses_drawing
from .writer import Writer

PERIOD_S = 0.02
# A sample later than this was not delayed by a lock: the machine slept or the program was stopped.
_LATEST_S = 2.0
_OWN_NAME = "voxelocity-stacks"
# Functions at the root of threads that make items: of MONAI's `ThreadDataLoader`, alone and with thread workers.
_LOADING = (("monai.data.thread_buffer", "enqueue_values"), ("torch.utils.data._utils.worker", "_worker_loop"))
_Key = tuple[str, str, str, str, str]
_Row = tuple[str, str, str]


def _rows(*lines: str) -> tuple[_Row, ...]:
    """Rows (kind, module or its beginning, function or its beginning) of lines "kind module:function module ..."."""
    rows: list[_Row] = []
    for line in lines:
        kind, *targets = line.split()
        for target in targets:
            module, _, function = target.partition(":")
            rows.append((kind, module, function))
    return tuple(rows)


# Innermost frame first, then the first row that fits. "" as a module fits a method of which only the name is known.
_WORK = _rows(
    "sync torch.cuda:synchronize torch.cuda.streams:Stream.synchronize torch.cuda.streams:Event.synchronize",
    "read gzip:_PaddedFile",
    "gunzip gzip zlib isal indexed_gzip deflate zlib_ng bz2 lzma _compression compression",
    "gunzip voxelocity.data.decode.gunzip :decompress",
    # A sample that a fork has delayed finds the thread in what logging does around the fork.
    "other logging:_acquireLock logging:_releaseLock logging:_after_at_fork logging:_prepareFork logging:_afterFork",
    "log logging builtins:print tqdm rich loguru wandb mlflow tensorboard torch.utils.tensorboard tensorboardX",
    "log matplotlib",
    "resample scipy.ndimage skimage.transform SimpleITK:Resample nibabel.processing",
    "resample cv2:resize cv2:warpAffine cv2:remap PIL.Image:Image.resize monai.data.utils:affine_to_spacing",
    "transform monai.transforms.spatial.functional:rotate90",
    "resample monai.transforms.spatial.functional:spatial_resample monai.transforms.spatial.functional:resize",
    "resample monai.transforms.spatial.functional:rotate monai.transforms.spatial.functional:zoom",
    "resample monai.transforms.spatial.functional:affine_func monai.networks.layers.spatial_transforms",
    "decode PIL cv2:imdecode cv2:imread imageio tifffile:imread tifffile:TiffPage.asarray",
    "decode SimpleITK:ReadImage SimpleITK:ImageFileReader SimpleITK:ImageSeriesReader",
    "decode itk nrrd blosc2 numcodecs openslide cucim pydicom.pixels pydicom.pixel_data_handlers pickle",
    "read io builtins:open numpy.lib.format numpy.lib._format_impl numpy.lib.npyio numpy.lib._npyio_impl",
    "read numpy.core.memmap numpy._core.memmap numpy:fromfile numpy:load numpy:memmap nibabel h5py zarr fsspec pydicom",
    "read tifffile lmdb safetensors torch.serialization pathlib:Path.read_ SimpleITK :read :readinto",
    "sleep time:sleep :sleep",
)
# Only in a step: an item is made of tensors in host memory, which never wait.
_STEP_WORK = _rows("sync :item :tolist :cpu :synchronize")
# Only where items are made; in a network they are its work.
_DATA_WORK = _rows(
    "resample torch.nn.functional:interpolate torch.nn.functional:grid_sample",
    "resample torch.nn.functional:affine_grid torch.nn.functional:upsample",
)
# For the frames around it, if nothing above fits; innermost first.
_AROUND = _rows(
    "collate torch.utils.data._utils.collate monai.data.utils:list_data_collate",
    "collate monai.data.utils:pad_list_data_collate monai.data.utils:collate_meta_tensor",
    "transform monai.transforms torchio.transforms torchvision.transforms",
    "transform batchgenerators.transforms batchgenerators.augmentations batchgeneratorsv2.transforms",
    "transform albumentations kornia.augmentation volumentations skimage",
    "log logging:Logger.",
)
# What the user's own handler does for a logger is logging, even waiting for a server or writing a file.
_WITHIN_LOGGING = ("", "sleep", "read")
_FETCH = "torch.utils.data._utils.fetch"
_SYNCS = f"{__package__}.syncs"
_RECORDER = f"{__package__}."


class Stacks:
    """Samples the training thread, and threads that make items.

    Cost: 12 microseconds per sample in an empty loop, 100 in a MONAI program, whose work evicts the sampler's own data
    from the processor's caches (measured): 0.5 % of a core at the default period.

    Args:
        moment: where the program is.
        own_code: decides which code is the user's.
        thread: identifier of the thread to watch; the calling one if not given.
        period_s: mean time between samples. Each wait varies by up to half, to avoid any rhythm of the program.
    """

    def __init__(
        self, moment: Moment, own_code: OwnCode, *, thread: int | None = None, period_s: float = PERIOD_S
    ) -> None:
        self._moment = moment
        self._own_code = own_code
        self._reader = StackReader(own_code)
        self._places: dict[tuple[str, int], SourceLine] = {}
        self._functions: dict[str, tuple[str, bool]] = {}
        self.thread = threading.get_ident() if thread is None else thread
        self._period_s = period_s
        self._seconds: dict[_Key, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.own_s = 0.0
        """CPU seconds that sampling took so far."""
        self.failure = ""
        """Why sampling ended before `stop`, "" if it did not."""

    def start(self) -> None:
        """Begins to sample. The thread is a daemon: it never keeps the program from ending."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=_OWN_NAME, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling. What was seen stays, for `report`."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._thread = None

    def forget(self) -> None:
        """Called in a forked process: the sampling thread is not here, and may have held a lock at the fork."""
        self._thread = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def report(self, writer: Writer) -> None:
        """Writes one event `stacks` for each place seen, the most seen first."""
        with self._lock:
            seen = sorted(self._seconds.items(), key=lambda item: -item[1])
        for (part, where, line, kind, function), seconds in seen:
            within, draws = self._functions.get(where, ("", True))
            writer.write(
                "stacks",
                part=part,
                where=where,
                line=line,
                within=within,
                draws=draws,
                kind=kind,
                function=function,
                num_samples=max(1, round(seconds / self._period_s)),
                period_s=self._period_s,
            )

    def _run(self) -> None:
        # Its own generator: the program's draws must not change.
        draw = random.Random(0).uniform
        before = time.perf_counter()
        was_counting = False
        while not self._stop.wait(self._period_s * draw(0.5, 1.5)):
            now = time.perf_counter()
            is_counting = self._moment.is_counting() or self._is_predicting()
            if is_counting:
                began = time.thread_time()
                try:
                    self.look_once(min(now - before, _LATEST_S) if was_counting else self._period_s)
                except Exception as error:
                    # No failure may show in the program's output.
                    self.failure = f"sampling the stacks failed: {type(error).__name__}: {error}"
                    return
                self.own_s += time.thread_time() - began
            before, was_counting = now, is_counting

    def _is_predicting(self) -> bool:
        """Whether a network predicts before any step was counted: the program may never train."""
        return self._moment.current_part() == "validation" and not self._moment.counted_steps()

    def look_once(self, seconds: float) -> None:
        """Samples every thread of interest once; the sample counts for `seconds`."""
        part = self._moment.current_part()
        here = threading.get_ident()
        frames = sys._current_frames()
        try:
            for thread, frame in frames.items():
                if thread == self.thread:
                    self._count(frame, part, seconds)
                elif thread != here and _makes_items(frame):
                    self._count(frame, "worker", seconds)
        finally:
            # Keeping a frame would keep the arrays of its function alive.
            del frames

    def _count(self, frame: FrameType, part: str, seconds: float) -> None:
        found = self._reader.look(frame, part)
        place = NOWHERE if found.own is None else self._place(found.own)
        key = (part, place.where, place.line, found.kind, found.function)
        with self._lock:
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _place(self, own: FrameType) -> SourceLine:
        key = (own.f_code.co_filename, line_of(own))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = self._own_code.place(own)
            code = own.f_code
            self._functions[found.where] = str(getattr(code, "co_qualname", code.co_name)), uses_drawing(code)
        return found


def _makes_items(frame: FrameType | None) -> bool:
    """Whether a loader started the thread."""
    while frame is not None:
        if any(frame.f_code.co_name == name and module_of(frame) == module for module, name in _LOADING):
            return True
        frame = frame.f_back
    return False


class Look(NamedTuple):
    """The result of one look at a stack: the user's frame (None if there is none), the kind, a library's function."""

    own: FrameType | None
    kind: str
    function: str


class _Known(NamedTuple):
    """What is known about a piece of code. Holds the code itself, so its `id` stays unique."""

    code: CodeType
    module: str
    is_own: bool
    is_recorder: bool
    kind_in_step: str
    kind_in_data: str
    around: str
    public: str
    full: str


class StackReader:
    """Finds what threads are doing. Caches what it learns about a piece of code or an instruction.

    Cost: 10 microseconds for a short stack, once its code is known (measured).
    """

    def __init__(self, own_code: OwnCode) -> None:
        self._own_code = own_code
        # By `id`: hashing code reads all of its content each time.
        self._known: dict[int, _Known] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def look(self, frame: FrameType | None, part: str) -> Look:
        """What the thread with this innermost frame is doing.

        The kind is the innermost one that the table knows, up to the user's own innermost frame; then that of the
        frames around it (a collate function, a library's transform, a logger); "other" if neither is known.
        """
        makes_items = part in DATA_PARTS
        kind, function, private, around = "", "", "", ""
        own: FrameType | None = None
        inner: FrameType | None = None
        is_innermost = True
        while frame is not None and not (own is not None and (around or kind not in _WITHIN_LOGGING)):
            known = self._known.get(id(frame.f_code)) or self._learn(frame)
            if known.is_recorder:
                # The recorder's own frames, within a call that it has replaced.
                kind = kind or ("sync" if known.module == _SYNCS and not makes_items else "")
                frame = frame.f_back
                continue
            if own is None:
                if is_innermost:
                    call = self.called(frame)
                    # C functions in private modules are called by a public function that is on the stack.
                    if call is not None and "._" not in call[0]:
                        # gzip reads its own unpacked buffer, except in the class that reads the file.
                        if known.kind_in_data != "gunzip":
                            kind = kind or _kind(*call, makes_items)
                        function = _public(*call)
                if known.is_own:
                    if inner is not None and takes_over(inner):
                        # The framework runs; the user's line only started it.
                        break
                    own = frame
                else:
                    kind = kind or (known.kind_in_data if makes_items else known.kind_in_step)
                    function = function or known.public
                    private = private or known.full
            around = around or (self._around_fetch(frame) if known.module == _FETCH else known.around)
            is_innermost = False
            inner, frame = frame, frame.f_back
        if around == "log" and kind in _WITHIN_LOGGING:
            kind = "log"
        return Look(own, kind or around or "other", function or (private if own is None else ""))

    def called(self, frame: FrameType) -> tuple[str, str] | None:
        """(module, function) that the frame's instruction calls; ("", name) for a method; None if it calls nothing."""
        key = (id(frame.f_code), frame.f_lasti)
        text = self._texts.get(key)
        if text is None:
            if key[0] not in self._known:
                self._learn(frame)
            text = self._texts[key] = call_text(frame)
        return resolved(text, frame) if text else None

    def _around_fetch(self, frame: FrameType) -> str:
        found = self.called(frame)
        return "collate" if found is not None and found[1].endswith("collate_fn") else ""

    def _learn(self, frame: FrameType) -> _Known:
        code, module = frame.f_code, module_of(frame)
        name = str(getattr(code, "co_qualname", code.co_name))
        found = _Known(
            code=code,
            module=module,
            is_own=self._own_code.holds(code, module),
            is_recorder=module.startswith(_RECORDER),
            kind_in_step=_kind(module, name, False),
            kind_in_data=_kind(module, name, True),
            around=next((row[0] for row in _AROUND if _fits(row, module, name)), ""),
            public=_public(module, name),
            full=f"{module}.{name}",
        )
        self._known[id(code)] = found
        return found


@lru_cache(maxsize=4096)
def _kind(module: str, function: str, makes_items: bool) -> str:
    rows = _WORK + (_DATA_WORK if makes_items else _STEP_WORK)
    return next((row[0] for row in rows if _fits(row, module, function)), "")


def _fits(row: _Row, module: str, function: str) -> bool:
    _, wanted_module, wanted = row
    if not wanted_module:
        return not module and function == wanted
    return (module == wanted_module or module.startswith(wanted_module + ".")) and function.startswith(wanted)


@lru_cache(maxsize=4096)
def _public(module: str, name: str) -> str:
    """The name that the user can look up: without private modules; "" if the function itself is private."""
    parts = module.split(".")
    private = next((at for at, part in enumerate(parts) if part.startswith("_")), len(parts))
    named = name.split(".")
    if private == 0 or not parts[0] or any(_is_private(part) for part in named):
        return ""
    return ".".join([*parts[:private], *named])


def _is_private(name: str) -> bool:
    return name.startswith("<") or (name.startswith("_") and not name.endswith("__"))
