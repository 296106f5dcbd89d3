"""What a thread is doing, from the functions on its stack: a table of names, and how it is looked up.

A C function has no frame; what the innermost frame calls (`instruction`) is looked up like a frame's name.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from .instruction import call_text, resolved
from .lines import OwnCode, module_of, takes_over

# (kind, module or its beginning, function or its beginning); innermost frame first, then the first row that fits.
# "" as a module fits a method of which only the name is known.
_WORK: tuple[tuple[str, str, str], ...] = (
    ("sync", "torch.cuda", "synchronize"),
    ("sync", "torch.cuda.streams", "Stream.synchronize"),
    ("sync", "torch.cuda.streams", "Event.synchronize"),
    ("read", "gzip", "_PaddedFile"),
    ("gunzip", "gzip", ""),
    ("gunzip", "zlib", ""),
    ("gunzip", "isal", ""),
    ("gunzip", "indexed_gzip", ""),
    ("gunzip", "deflate", ""),
    ("gunzip", "zlib_ng", ""),
    ("gunzip", "bz2", ""),
    ("gunzip", "lzma", ""),
    ("gunzip", "_compression", ""),
    ("gunzip", "compression", ""),
    ("gunzip", "voxelocity.data.decode.gunzip", ""),
    ("gunzip", "", "decompress"),
    # A sample that a fork has delayed finds the thread in what logging does around the fork.
    ("other", "logging", "_acquireLock"),
    ("other", "logging", "_releaseLock"),
    ("other", "logging", "_after_at_fork"),
    ("other", "logging", "_prepareFork"),
    ("other", "logging", "_afterFork"),
    ("log", "logging", ""),
    ("log", "builtins", "print"),
    ("log", "tqdm", ""),
    ("log", "rich", ""),
    ("log", "loguru", ""),
    ("log", "wandb", ""),
    ("log", "mlflow", ""),
    ("log", "tensorboard", ""),
    ("log", "torch.utils.tensorboard", ""),
    ("log", "tensorboardX", ""),
    ("log", "matplotlib", ""),
    ("resample", "scipy.ndimage", ""),
    ("resample", "skimage.transform", ""),
    ("resample", "SimpleITK", "Resample"),
    ("resample", "nibabel.processing", ""),
    ("resample", "cv2", "resize"),
    ("resample", "cv2", "warpAffine"),
    ("resample", "cv2", "remap"),
    ("resample", "PIL.Image", "Image.resize"),
    ("resample", "monai.data.utils", "affine_to_spacing"),
    ("transform", "monai.transforms.spatial.functional", "rotate90"),
    ("resample", "monai.transforms.spatial.functional", "spatial_resample"),
    ("resample", "monai.transforms.spatial.functional", "resize"),
    ("resample", "monai.transforms.spatial.functional", "rotate"),
    ("resample", "monai.transforms.spatial.functional", "zoom"),
    ("resample", "monai.transforms.spatial.functional", "affine_func"),
    ("resample", "monai.networks.layers.spatial_transforms", ""),
    ("decode", "PIL", ""),
    ("decode", "cv2", "imdecode"),
    ("decode", "cv2", "imread"),
    ("decode", "imageio", ""),
    ("decode", "tifffile", "imread"),
    ("decode", "tifffile", "TiffPage.asarray"),
    ("decode", "SimpleITK", "ReadImage"),
    ("decode", "SimpleITK", "ImageFileReader"),
    ("decode", "SimpleITK", "ImageSeriesReader"),
    ("decode", "itk", ""),
    ("decode", "nrrd", ""),
    ("decode", "blosc2", ""),
    ("decode", "numcodecs", ""),
    ("decode", "openslide", ""),
    ("decode", "cucim", ""),
    ("decode", "pydicom.pixels", ""),
    ("decode", "pydicom.pixel_data_handlers", ""),
    ("decode", "pickle", ""),
    ("read", "io", ""),
    ("read", "builtins", "open"),
    ("read", "numpy.lib.format", ""),
    ("read", "numpy.lib._format_impl", ""),
    ("read", "numpy.lib.npyio", ""),
    ("read", "numpy.lib._npyio_impl", ""),
    ("read", "numpy.core.memmap", ""),
    ("read", "numpy._core.memmap", ""),
    ("read", "numpy", "fromfile"),
    ("read", "numpy", "load"),
    ("read", "numpy", "memmap"),
    ("read", "nibabel", ""),
    ("read", "h5py", ""),
    ("read", "zarr", ""),
    ("read", "fsspec", ""),
    ("read", "pydicom", ""),
    ("read", "tifffile", ""),
    ("read", "lmdb", ""),
    ("read", "safetensors", ""),
    ("read", "torch.serialization", ""),
    ("read", "pathlib", "Path.read_"),
    ("read", "SimpleITK", ""),
    ("read", "", "read"),
    ("read", "", "readinto"),
    ("sleep", "time", "sleep"),
    ("sleep", "", "sleep"),
)
# Only in a step: an item is made of tensors in host memory, which never wait.
_STEP_WORK: tuple[tuple[str, str, str], ...] = (
    ("sync", "", "item"),
    ("sync", "", "tolist"),
    ("sync", "", "cpu"),
    ("sync", "", "synchronize"),
)
# Only where items are made; in a network they are its work.
_DATA_WORK: tuple[tuple[str, str, str], ...] = (
    ("resample", "torch.nn.functional", "interpolate"),
    ("resample", "torch.nn.functional", "grid_sample"),
    ("resample", "torch.nn.functional", "affine_grid"),
    ("resample", "torch.nn.functional", "upsample"),
)
# For the frames around it, if nothing above fits; innermost first.
_AROUND: tuple[tuple[str, str, str], ...] = (
    ("collate", "torch.utils.data._utils.collate", ""),
    ("collate", "monai.data.utils", "list_data_collate"),
    ("collate", "monai.data.utils", "pad_list_data_collate"),
    ("collate", "monai.data.utils", "collate_meta_tensor"),
    ("transform", "monai.transforms", ""),
    ("transform", "torchio.transforms", ""),
    ("transform", "torchvision.transforms", ""),
    ("transform", "batchgenerators.transforms", ""),
    ("transform", "batchgenerators.augmentations", ""),
    ("transform", "batchgeneratorsv2.transforms", ""),
    ("transform", "albumentations", ""),
    ("transform", "kornia.augmentation", ""),
    ("transform", "volumentations", ""),
    ("transform", "skimage", ""),
    ("log", "logging", "Logger."),
)
DATA_PARTS = ("wait", "worker")
# What the user's own handler does for a logger is logging, even waiting for a server or writing a file.
_WITHIN_LOGGING = ("", "sleep", "read")
_FETCH = "torch.utils.data._utils.fetch"
_SYNCS = f"{__package__}.syncs"
_RECORDER = f"{__package__}."


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


def _fits(row: tuple[str, str, str], module: str, function: str) -> bool:
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
