"""E7: what a prediction costs beyond its network: blending, mirroring, arg-max, restoring; by kernels and by torch.

Three, 14 and 104 classes; windows of 96 and of 128 voxels, half overlapping, on 350 x 350 x 300 voxels. DynUNet of
nnU-Net's widths with random weights in bfloat16. A result counts against the network alone on as many batches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gpu.experiment import Experiment, Row, Setting, device_ms
from voxelocity.core.region import Index3, Region
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import Preparation, PrepareConfig, Restoration, resize_record
from voxelocity.infer import PredictionSpec, Predictor, WindowConfig, arrays
from voxelocity.infer.mirrored import Mirrored, add_weighted, part_of
from voxelocity.infer.pending import Loaded
from voxelocity.infer.runtimes.auto import relative_difference, tolerance
from voxelocity.infer.runtimes.contract import Forward, NamedForward, RuntimeTask
from voxelocity.infer.runtimes.table import RUNTIMES
from voxelocity.infer.sinks import ClassMap
from voxelocity.infer.window import stitch_volumes
from voxelocity.step import NetworkConfig, PrecisionConfig, build_network
from voxelocity.step.fused import set_fused

_WIDTHS = (32, 64, 128, 256, 320, 320)
# Nothing new begins after this.
_MOST_S = 85.0
_ALONE_BATCHES = 12
_WHOLE, _TRIED = "whole predict, restored to 1 mm", "network alone, algorithms tried"
# nnU-Net and MONAI would call it a fine resampling: 1.5 mm prepared, 1 mm on the scan.
_SPACINGS = (1.5, 1.0)


@dataclass(frozen=True)
class _Sizes:
    """Of the experiment, or of its dry run."""

    volume: Index3
    sides: tuple[int, ...]
    classes: tuple[int, ...]
    batch_sizes: dict[int, int]
    widths: tuple[int, ...]

    def restored(self) -> Index3:
        x, y, z = (round(n * _SPACINGS[0] / _SPACINGS[1]) for n in self.volume)
        return (x, y, z)


_FULL = _Sizes((350, 350, 300), (96, 128), (14, 104, 3), {96: 4, 128: 2}, _WIDTHS)
_TINY = _Sizes((20, 18, 17), (16,), (3, 5), {16: 2}, (4, 8, 8))


class _Nothing:
    """A sink that keeps nothing."""

    def take(self, sums_kxyz: torch.Tensor, weights_xyz: torch.Tensor | None, box: Region) -> None:
        pass


class _Case:
    """A network of a number of classes and a side of windows, in the runtimes that are timed."""

    def __init__(self, setting: Setting, sizes: _Sizes, num_classes: int, side: int) -> None:
        self.setting, self.sizes, self.num_classes, self.side = setting, sizes, num_classes, side
        self.device = setting.device
        self.batch_size = sizes.batch_sizes[side]
        strides = [[2, 2, 2]] * (len(sizes.widths) - 1)
        config = NetworkConfig.parse({"name": "dynunet", "widths": list(sizes.widths), "strides": strides})
        self.network = build_network(config, num_channels=1, num_classes=num_classes, seed=0).eval()
        self.task = self._quickest_format()
        memory_format = self.task.precision.memory_format
        self.network = self.network.to(self.device, memory_format=memory_format)  # type: ignore[call-overload]
        self.forwards: dict[str, Forward] = {}
        self.alone_s: dict[str, float] = {}
        self.image = _image(sizes.volume)
        window = WindowConfig(shape_voxel=(side,) * 3, overlap=0.5, batch_size=self.batch_size, reuse_constant=False)
        self.window = window
        self.num_batches = -(-_num_windows(sizes.volume, side) // self.batch_size)

    def about(self) -> Row:
        layout = "channels_last" if self.task.precision.channels_last else "contiguous"
        return {"classes": self.num_classes, "window": self.side, "batch": self.batch_size, "layout": layout}

    def _quickest_format(self) -> RuntimeTask:
        """Channels last or not, whichever is quicker in eager mode with what is installed."""
        tasks, times = {}, {}
        for is_last in (False, True):
            compute = "bfloat16" if self.device.type == "cuda" else "float32"
            precision = PrecisionConfig.parse({"compute": compute, "channels_last": is_last})
            tasks[is_last] = RuntimeTask(
                num_channels=1,
                shape_voxel=(self.side,) * 3,
                batch_size=self.batch_size,
                device=self.device,
                precision=precision,
            )
            network = self.network.to(self.device, memory_format=precision.memory_format)  # type: ignore[call-overload]
            forward = RUNTIMES["eager"].load(network, tasks[is_last])
            windows = torch.zeros(tasks[is_last].batch_shape, device=self.device)
            with torch.no_grad():
                times[is_last] = device_ms(partial(forward, windows), self.setting, repeats=4, warmup=3)["ms"]
        return tasks[min(times, key=lambda is_last: times[is_last])]

    def load(self, name: str) -> None:
        """Builds a runtime and times the network alone in it."""
        begin_s = time.perf_counter()
        forward = RUNTIMES[name].load(self.network, self.task)
        built_s = time.perf_counter() - begin_s
        windows = torch.randn(self.task.batch_shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        with torch.no_grad():
            wanted = RUNTIMES["eager"].load(self.network, self.task)(windows).float()
            differs = relative_difference(forward(windows).float(), wanted)
            found = device_ms(partial(forward, windows), self.setting, repeats=_ALONE_BATCHES, warmup=2)
        self.forwards[name] = forward
        self.alone_s[name] = found["ms"] * self.num_batches / 1e3
        row = {**self.about(), "runtime": name, "what": "network alone", "build_s": built_s}
        row |= {"s": self.alone_s[name], "batch_ms": found["ms"], "batches": self.num_batches}
        row |= {"differs": differs, "is_refused": not differs <= tolerance(self.task)}
        self.setting.report("inference", row)

    def windows(self, name: str, sink: Callable[[], Any], **changes: Any) -> Any:
        """Seconds of one volume, from the image in main memory to a result that is complete on the device."""
        window = self.window.model_copy(update=changes)
        kept: list[Any] = []

        def run() -> None:
            kept[:] = [sink()]
            for stitched in stitch_volumes(
                self.forwards[name], [(self.image, kept[0])], window, device=self.device, num_outputs=self.num_classes
            ):
                stitched.check()

        return run, kept

    def predicting(self, name: str) -> Any:
        """The whole of a predictor, to classes on the grid of the scan in main memory."""
        spec = PredictionSpec.parse(
            {
                "channels": ["CT"],
                "labels": {index: f"class {index}" for index in range(self.num_classes)},
                "window": self.window.to_plain(),
                "precision": self.task.precision.to_plain(),
            }
        )
        preparation = Preparation(PrepareConfig.parse({"intensity": {"mode": "none"}, "dtype": "float32"}))
        predictor = Predictor(
            self.network, spec, preparation, device=self.device, forward=NamedForward(name, self.forwards[name])
        )
        grid = Grid.of(self.sizes.volume, np.diag([*[_SPACINGS[0]] * 3, 1.0]))
        prepared = Volume(case_id="phantom", image=self.image.numpy(), label=None, grid=grid)
        record = resize_record(self.sizes.restored(), self.sizes.volume)
        loaded = Loaded(prepared, prepared.with_(trace=(record,)), {"decode": 0.0, "prepare": 0.0})
        kept: list[Any] = []

        def run() -> None:
            kept[:] = [next(predictor.predict_loaded(iter([loaded]), on_failure=None, num_threads=8)).classes]

        return run, kept


def run(setting: Setting) -> None:
    """Reports the kernels alone, then whole volumes, the most telling ones first."""
    sizes = _TINY if setting.is_tiny else _FULL
    begin_s = time.perf_counter()

    def has_time() -> bool:
        return time.perf_counter() - begin_s < min(_MOST_S, 0.9 * setting.limit_s)

    with _interpreted(setting):
        for num_classes in sizes.classes:
            with setting.guard("kernels", classes=num_classes):
                _kernels(setting, sizes, num_classes)
    for side, num_classes in itertools.product(sizes.sides, sizes.classes):
        if has_time():
            with setting.guard("inference", classes=num_classes, window=side):
                _volume(setting, sizes, num_classes, side, has_time)
    for name in () if setting.is_tiny else ("tensorrt", "onnxruntime"):
        row = {"runtime": name, "what": "network alone", "classes": sizes.classes[0], "window": sizes.sides[0]}
        if why_not := RUNTIMES[name].why_not(setting.device):
            setting.report("inference", {**row, "error": why_not})
        elif has_time():
            with setting.guard("inference", **row):
                # A whole prediction in a runtime of another library, against its own network alone.
                case = _Case(setting, sizes, sizes.classes[0], sizes.sides[0])
                case.load(name)
                row = {**case.about(), "runtime": name, "path": "kernels", "what": "classes"}
                work = case.windows(name, partial(ClassMap, sizes.volume))
                _time(case, work, row, is_fused=True, repeats=1, warmups=0)
    if has_time():
        with setting.guard("inference", what=_WHOLE, path="torch"):
            _restore_in_main_memory(setting, sizes)


def _volume(setting: Setting, sizes: _Sizes, num_classes: int, side: int, has_time: Callable[[], bool]) -> None:
    case = _Case(setting, sizes, num_classes, side)
    is_main = side == sizes.sides[0]
    for name in ("eager", "cuda-graphs"):
        if not (why_not := RUNTIMES[name].why_not(setting.device)):
            with setting.guard("inference", **case.about(), runtime=name):
                case.load(name)
        elif not setting.is_tiny:
            setting.report("inference", {**case.about(), "runtime": name, "error": why_not})
    name = "cuda-graphs" if "cuda-graphs" in case.forwards else "eager"
    classes = partial(ClassMap, sizes.volume)
    kept: dict[str, Any] = {}

    def timed(
        what: str, work: Any, *, runtime: str = name, is_fused: bool = True, repeats: int, warmups: int = 0
    ) -> None:
        if has_time():
            row = {**case.about(), "runtime": runtime, "path": "kernels" if is_fused else "torch", "what": what}
            with setting.guard("inference", **row):
                _time(case, work, row, is_fused=is_fused, repeats=repeats, warmups=warmups)
            kept[f"{what} {row['path']}"] = work[1]

    # The first one compiles kernels and fills the allocator.
    timed("classes", case.windows(name, classes), repeats=2, warmups=1)
    timed(_WHOLE, case.predicting(name), repeats=2 if is_main else 1)
    timed("mirrored, classes", case.windows(name, classes, mirror_axes=(0,)), repeats=1)
    if not is_main:
        return
    timed("blended", case.windows(name, _Nothing), repeats=1)
    timed("classes", case.windows(name, classes), is_fused=False, repeats=1)
    _report_agreement(setting, case, kept, "classes")
    timed("mirrored, classes", case.windows(name, classes, mirror_axes=(0,)), is_fused=False, repeats=1)
    _report_agreement(setting, case, kept, "mirrored, classes")
    if num_classes == sizes.classes[0] and has_time():
        # In a thread of its own: torch keeps what cuDNN chose for each thread, whether it had tried or not.
        with setting.guard("inference", what=_TRIED), ThreadPoolExecutor(1) as pool:
            pool.submit(_time_tried_algorithms, case).result()
    if "cuda-graphs" in case.forwards:
        timed("classes", case.windows("eager", classes), runtime="eager", repeats=1)


def _restore_in_main_memory(setting: Setting, sizes: _Sizes) -> None:
    """The whole of a prediction without kernels of ours: last, as it is slow, and may have to compile its CPU code."""
    case = _Case(setting, sizes, sizes.classes[0], sizes.sides[0])
    name = "eager" if RUNTIMES["cuda-graphs"].why_not(setting.device) else "cuda-graphs"
    case.load(name)
    row = {**case.about(), "runtime": name, "path": "torch", "what": _WHOLE}
    before, after = case.predicting(name), case.predicting(name)
    _time(case, before, row, is_fused=False, repeats=1, warmups=0)
    _time(case, after, {**row, "path": "kernels"}, is_fused=True, repeats=1, warmups=0)
    kept = {f"{_WHOLE} torch": before[1], f"{_WHOLE} kernels": after[1]}
    _report_agreement(setting, case, kept, _WHOLE)


def _time_tried_algorithms(case: _Case) -> None:
    """The network alone where cuDNN tries its algorithms: what predictions could gain from that."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        forward = RUNTIMES["eager"].load(case.network, case.task)
        windows = torch.zeros(case.task.batch_shape, device=case.device)
        begin_s = time.perf_counter()
        with torch.no_grad():
            forward(windows)
            case.setting.synchronize()
            first_s = time.perf_counter() - begin_s
            found = device_ms(partial(forward, windows), case.setting, repeats=_ALONE_BATCHES, warmup=2)
    finally:
        torch.backends.cudnn.benchmark = before
    row = {**case.about(), "runtime": "eager", "what": _TRIED, "first_s": first_s}
    case.setting.report("inference", {**row, "batch_ms": found["ms"], "s": found["ms"] * case.num_batches / 1e3})


def _time(case: _Case, work: Any, row: Row, *, is_fused: bool, repeats: int, warmups: int) -> None:
    (run, kept), setting = work, case.setting
    set_fused("window", is_fused)
    try:
        if setting.is_tiny:
            repeats, warmups = 1, 0
        seconds = []
        for repeat in range(warmups + repeats):
            setting.synchronize()
            if setting.is_cuda:
                torch.cuda.reset_peak_memory_stats()
            begin_s = time.perf_counter()
            run()
            setting.synchronize()
            if repeat >= warmups:
                seconds.append(time.perf_counter() - begin_s)
    finally:
        set_fused("window", True)
    alone_s = case.alone_s[row["runtime"]] * (2 if "mirrored" in row["what"] else 1)
    kept[:] = [_as_array(output) for output in kept]
    figures = {"s": min(seconds), "high_s": max(seconds), "n": len(seconds), "over_network": min(seconds) / alone_s}
    peak = {"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if setting.is_cuda else {}
    setting.report("inference", {**row, **figures, **peak})


def _as_array(result: Any) -> Any:
    return result.result().cpu().numpy() if isinstance(result, ClassMap) else result


def _report_agreement(setting: Setting, case: _Case, kept: dict[str, Any], what: str) -> None:
    ours, theirs = kept.get(f"{what} kernels"), kept.get(f"{what} torch")
    if ours and theirs and isinstance(ours[0], np.ndarray) and isinstance(theirs[0], np.ndarray):
        share = float((ours[0] != theirs[0]).mean())
        row = {**case.about(), "what": what, "differing_voxels": share, "found": len(np.unique(theirs[0]))}
        setting.report("agreement", row)


def _kernels(setting: Setting, sizes: _Sizes, num_classes: int) -> None:
    """Each kernel and what torch does in its place, on one window and on one tile."""
    side, device = sizes.sides[0], setting.device
    generator = torch.Generator(device).manual_seed(0)
    shape = (num_classes, side, side, side)
    answers = torch.randn((2, *shape), generator=generator, device=device).to(torch.bfloat16)
    weights = torch.rand(shape[1:], generator=generator, device=device) + 0.1
    total = torch.zeros((num_classes, side, *sizes.volume[1:]), device=device)
    part = total[:, :, :side, :side]
    whole = Region.whole((side, side, side))
    values = num_classes * side**3

    def report(what: str, layout: str, work: Callable[[], object], num_bytes: float) -> None:
        for path in ("kernels", "torch"):
            set_fused("window", path == "kernels")
            try:
                found = device_ms(work, setting, repeats=8, warmup=2)
            finally:
                set_fused("window", True)
            row = {"what": what, "layout": layout, "classes": num_classes, "path": path, **found}
            setting.report("kernels", {**row, "gb_per_s": num_bytes / found["ms"] / 1e6})

    for layout in ("contiguous", "channels_last"):
        both = answers.contiguous(memory_format=torch.channels_last_3d) if layout == "channels_last" else answers
        first, last = both
        report("add", layout, lambda: arrays.add_weighted(part, first, weights), 10.0 * values)  # noqa: B023
        pair = Mirrored(first, last, (0, 2), None, 0.5)
        report("add a mirrored pair", layout, lambda: add_weighted(part, part_of(pair, whole), weights), 12.0 * values)  # noqa: B023
        # Against the sum of the same numbers by torch, in float32.
        total.zero_()
        add_weighted(part, part_of(pair, whole), weights)
        wanted = (first.float() + last.float().flip((1, 3))) * (0.5 * weights)
        differs = float((part - wanted).abs().max())
        setting.report("agreement", {"what": "add a mirrored pair", "classes": num_classes, "differs": differs})
        del wanted
    total.normal_(generator=generator)
    classes = ClassMap((total.shape[1], total.shape[2], total.shape[3]))
    box = Region.whole((total.shape[1], total.shape[2], total.shape[3]))
    report("largest class", "tile", lambda: classes.take(total, None, box), 4.0 * total.numel())
    report("finite", "tile", lambda: arrays.is_finite(total), 4.0 * total.numel())
    _restoring(setting, num_classes, total)


def _restoring(setting: Setting, num_classes: int, total: torch.Tensor) -> None:
    """A tile of noise, in which no two neighbors have one class, and one in which most have."""
    if not arrays.has_kernels(total):
        return
    from voxelocity.infer.device_restore import DeviceRestoration

    def restoration(shape: Index3) -> Restoration:
        x, y, z = (round(n * _SPACINGS[0] / _SPACINGS[1]) for n in shape)
        return Restoration([resize_record((x, y, z), shape)], shape, is_softmax=True, engine="numpy")

    shape: Index3 = (total.shape[1], total.shape[2], total.shape[3])
    weights = torch.rand(shape, device=setting.device) + 0.5
    for what in ("noise", "blocks"):
        if what == "blocks":
            total[:] = torch.nn.functional.interpolate(total[None, :, ::12, ::12, ::12], size=shape)[0]
        ours = DeviceRestoration(restoration(shape), setting.device, is_softmax=True, region_order=())
        found = device_ms(partial(ours.add, total, weights, start=(0, 0, 0)), setting, repeats=4, warmup=1)
        row = {"what": f"restore {what}", "layout": "tile", "classes": num_classes, "path": "kernels", **found}
        setting.report("kernels", row | {"restored_voxels": ours.result().size})
        # Against the slow reference, in a corner.
        corner = total[:, :16, :40, :40]
        near = weights[:16, :40, :40]
        reference = restoration((16, 40, 40))
        reference.add(corner.cpu().numpy(), weights_xyz=near.cpu().numpy())
        here = DeviceRestoration(reference, setting.device, is_softmax=True, region_order=())
        here.add(corner, near, start=(0, 0, 0))
        differing = float((reference.result() != here.result()).mean())
        setting.report("agreement", {"what": f"restore {what}", "classes": num_classes, "differing_voxels": differing})


@contextmanager
def _interpreted(setting: Setting) -> Iterator[None]:
    """In a dry run under TRITON_INTERPRET=1, kernels also run on the CPU."""
    before = arrays._KERNEL_DEVICES
    try:
        import triton

        if setting.device.type == "cpu" and triton.knobs.runtime.interpret:
            arrays._KERNEL_DEVICES = frozenset(("cpu",))
        yield
    finally:
        arrays._KERNEL_DEVICES = before


def _image(shape: Index3) -> torch.Tensor:
    """Smooth structures with noise, as (1, x, y, z) float32 in main memory."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn((1, 1, *(max(2, n // 16) for n in shape)), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape, mode="trilinear")[0]
    return smooth + 0.05 * torch.randn((1, *shape), generator=generator)


def _num_windows(shape: Index3, side: int) -> int:
    from voxelocity.infer.tiling import tiling_of

    return len(tiling_of(shape, (side, side, side), 0.5).windows)


EXPERIMENT = Experiment(
    id="E7",
    question="What does a prediction take beyond its network, and what of it is left with kernels of our own?",
    seconds=90.0,
    run=run,
)
