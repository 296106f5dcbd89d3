"""E1: which norm, memory format and cuDNN settings make a DynUNet's step quickest; what the fused norm takes alone.

torch keeps cuDNN's choices for each thread, under keys that do not say whether algorithms were tried. So each way runs
in a thread of its own, with its backward pass in the same thread; otherwise the second of two ways would compute as the
first.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gpu.experiment import Experiment, Row, Setting, device_ms
from voxelocity.step import (
    BackendConfig,
    LossConfig,
    NetworkConfig,
    backend_as_found,
    build_loss,
    build_network,
    dynunet,
    fused_norm,
    set_backend,
)
from voxelocity.step.fused_norm import NormLaunch, norm_act

CHANNELS_LAST = torch.channels_last_3d
_NUM_CLASSES = 3
_TWO = (2, 2, 2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and a batch.

    Attributes:
        name: in the rows.
        batch: patches.
        sides: of a patch.
        widths: of the network's levels.
        strides: between them.
        repeats: steps that are timed.
        has_reference: whether gradients are compared with those of float32.
    """

    name: str
    batch: int
    sides: tuple[int, int, int]
    widths: tuple[int, ...]
    strides: tuple[tuple[int, int, int], ...]
    repeats: int = 20
    has_reference: bool = True

    def network(self, num_channels: int = 1) -> nn.Module:
        config = NetworkConfig.parse({"name": "dynunet", "widths": self.widths, "strides": self.strides})
        return build_network(config, num_channels=num_channels, num_classes=_NUM_CLASSES, seed=0)

    def data(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(0)
        image = torch.randn((self.batch, 1, *self.sides), generator=rng)
        label = torch.randint(_NUM_CLASSES, (self.batch, *self.sides), generator=rng, dtype=torch.uint8)
        return image.to(device), label.to(device)


HIPPOCAMPUS = Case(name="8x32x48x32", batch=8, sides=(32, 48, 32), widths=(32, 64, 128, 256), strides=(_TWO,) * 3)
PATCHES_128 = Case(
    name="2x128^3", batch=2, sides=(128,) * 3, widths=(32, 64, 128, 256, 320, 320), strides=(_TWO,) * 5, repeats=12
)
BODIES = replace(
    PATCHES_128,
    name="8x160x160x80",
    batch=8,
    sides=(160, 160, 80),
    strides=(*(_TWO,) * 4, (2, 2, 1)),
    repeats=6,
    has_reference=False,
)
TINY = Case(name="1x8x8x8", batch=1, sides=(8, 8, 8), widths=(4, 8, 8), strides=(_TWO,) * 2)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a step computes.

    Attributes:
        name: in the rows.
        channels_last: whether channels are innermost.
        is_fused: whether our norm is used.
        tries: whether cuDNN tries its algorithms.
        compute: under autocast; "float32" for none.
        changes: of the network and the batch, and how the forward pass is called.
    """

    name: str
    channels_last: bool
    is_fused: bool
    tries: bool = False
    compute: str = "bfloat16"
    changes: Callable[[Step], None] | None = field(default=None)


class Step:
    """Forward pass, loss and backward pass of a case, one way; for one thread."""

    def __init__(self, case: Case, way: Way, device: torch.device) -> None:
        self.way, self.device = way, device
        memory_format = CHANNELS_LAST if way.channels_last else torch.contiguous_format
        self.network = case.network().to(device)
        self.image, self.label = case.data(device)
        if way.changes is not None:
            way.changes(self)
        self.network.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.image = self.image.to(memory_format=memory_format)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.network
        self._loss = build_loss(LossConfig())
        self.value = torch.zeros(())

    def __call__(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = None
        is_half = self.way.compute != "float32"
        dtype = getattr(torch, self.way.compute) if is_half else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=is_half):
            logits = self.forward(self.image)
        value = self._loss(logits, self.label)
        value.backward()  # type: ignore[no-untyped-call]
        self.value = value.detach()

    def gradients(self) -> torch.Tensor:
        found = [p.grad.flatten().float() for p in self.network.parameters() if p.grad is not None]
        return torch.cat(found)


_LAYOUTS = [
    ("contiguous, torch's norm", False, False),
    ("channels_last, torch's norm", True, False),
    ("channels_last, fused norm", True, True),
]
WAYS = [
    Way(
        name=f"{name}, {'algorithms tried' if tries else 'heuristics'}",
        channels_last=channels_last,
        is_fused=is_fused,
        tries=tries,
    )
    for tries in (False, True)
    for name, channels_last, is_fused in _LAYOUTS
]
FUSED, FUSED_TRIED = WAYS[2], WAYS[5]
# The layout that converts at each norm is not worth trials.
ORDER = [FUSED, WAYS[0], WAYS[1], FUSED_TRIED, WAYS[3]]
FLOAT32 = Way(name="float32", channels_last=False, is_fused=False, compute="float32")


@contextmanager
def switched(way: Way, device: torch.device) -> Iterator[None]:
    """The way's switches, with backward passes in the calling thread."""
    config = BackendConfig(cudnn_benchmark=way.tries, fused_norm=way.is_fused, tf32=way.compute != "float32")
    with torch.autograd.set_multithreading_enabled(False), backend_as_found(device):
        set_backend(config, device)
        yield


def in_own_thread(work: Callable[[], Any], way: Way, device: torch.device) -> Any:
    """What `work` returns, computed under the way's switches in a thread of its own."""

    def run() -> Any:
        with switched(way, device):
            return work()

    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure(case: Case, way: Way, setting: Setting, wanted: torch.Tensor | None, *, graph: bool = False) -> Row:
    """A row on steps of this way."""

    def work() -> Row:
        begin_s = time.perf_counter()
        step = Step(case, way, setting.device)
        is_cuda = setting.device.type == "cuda"
        step()
        synchronize(setting.device)
        first_s = time.perf_counter() - begin_s
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        row = device_ms(step, setting, repeats=case.repeats, warmup=3)
        row["patches_per_s"] = 1e3 * case.batch / row["ms"]
        row["first_step_s"] = first_s
        row["peak_bytes"] = torch.cuda.max_memory_allocated() if is_cuda else 0
        row["loss"] = float(step.value)
        if wanted is not None:
            gradients = step.gradients()
            if gradients.shape == wanted.shape:
                row["gradient_error"] = float((gradients - wanted).norm() / wanted.norm())
        if graph and is_cuda:
            try:
                row["graph_ms"] = replayed_ms(step, setting)
            except Exception as error:
                row["graph_error"] = f"{type(error).__name__}: {error}"[:200]
        return row

    base = {"case": case.name, "way": way.name}
    try:
        return {**base, **in_own_thread(work, way, setting.device)}
    except Exception as error:
        return {**base, "error": f"{type(error).__name__}: {error}"[:300]}


def replayed_ms(step: Callable[[], None], setting: Setting) -> float:
    """Milliseconds of the step as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return float(device_ms(graph.replay, setting)["ms"])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def reference(case: Case, setting: Setting) -> torch.Tensor | None:
    """Gradients in float32, without TF32."""

    def work() -> torch.Tensor:
        step = Step(case, FLOAT32, setting.device)
        step()
        return step.gradients()

    try:
        found: torch.Tensor = in_own_thread(work, FLOAT32, setting.device)
    except Exception as error:
        setting.report(
            "steps", {"case": case.name, "way": "float32", "error": f"{type(error).__name__}: {error}"[:300]}
        )
        return None
    return found


# Changes that only this experiment makes.


def padded_input(step: Step) -> None:
    """Seven channels of zeros are added to the image, so that its convolution can use wide loads."""
    step.image = torch.cat([step.image, step.image.new_zeros((len(step.image), 7, *step.image.shape[2:]))], dim=1)
    first: Any = step.network.get_submodule("input_block.conv1.conv")
    wide = nn.Conv3d(8, first.out_channels, first.kernel_size, first.stride, first.padding, bias=False)
    wide = wide.to(first.weight.device)
    with torch.no_grad():
        wide.weight.zero_()[:, :1] = first.weight
    step.network.get_submodule("input_block.conv1").conv = wide


def half_weights(step: Step) -> None:
    """Weights in bfloat16, so that autocast converts none: a bound, not a way to train."""
    step.network.to(torch.bfloat16)
    step.image = step.image.to(torch.bfloat16)


class _SplitUp(nn.Module):
    """A level of the way up that convolves its two inputs apart and adds, in place of joining them."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, features: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        inner, raised = self.block.conv_block, self.block.transp_conv(features)
        conv, half = inner.conv1.conv, raised.shape[1]
        weights = conv.weight.split(half, dim=1)
        parts = [
            nn.functional.conv3d(x, w.contiguous(memory_format=CHANNELS_LAST), None, conv.stride, conv.padding)
            for x, w in zip((raised, skip), weights, strict=True)
        ]
        joined = fused_norm.activated(inner.norm1, inner.lrelu, parts[0] + parts[1])
        return fused_norm.activated(inner.norm2, inner.lrelu, inner.conv2(joined))


def split_joints(step: Step) -> None:
    assert isinstance(step.network, dynunet.DynUNet)
    step.network.upsamples = nn.ModuleList(_SplitUp(block) for block in step.network.upsamples)


def all_algorithms(_: Step) -> None:
    torch.backends.cudnn.benchmark_limit = 0


EXTRAS = [
    replace(FUSED, name="fused, image padded to 8 channels", changes=padded_input),
    replace(FUSED, name="fused, two convolutions in place of a joint", changes=split_joints),
    replace(FUSED, name="fused, float16", compute="float16"),
    replace(FUSED, name="fused, weights in bfloat16", changes=half_weights),
    replace(FUSED_TRIED, name="fused, all algorithms tried", changes=all_algorithms),
]

LAUNCHES = [
    fused_norm.LAUNCH,
    NormLaunch(num_programs=512),
    NormLaunch(num_programs=2048),
    NormLaunch(tile=2048, num_warps=4, num_programs=2048),
    NormLaunch(tile=2048, num_warps=8, num_programs=1024),
    NormLaunch(tile=8192, num_warps=8, num_programs=512),
    NormLaunch(tile=8192, num_warps=16, num_programs=512),
    NormLaunch(tile=1024, num_warps=4, num_programs=4096),
]


def measure_norm(shape: tuple[int, ...], launches: list[NormLaunch], setting: Setting) -> None:
    """The norm alone, forward and backward, as gigabytes a second and as a share of what a copy reaches."""
    device = setting.device
    x = torch.randn(shape, device=device, dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    copy_to, count, size = torch.empty_like(x), x.numel(), "x".join(map(str, shape))
    copied = device_ms(lambda: copy_to.copy_(x), setting)
    copy_rate = 4e-6 * count / copied["ms"]
    setting.report("norm alone", {"shape": size, "what": "copy", "forward_ms": copied["ms"], "gb_per_s": copy_rate})
    weight, bias = (torch.ones(shape[1], device=device).requires_grad_() for _ in range(2))
    dy = torch.randn_like(x)

    def torchs(of: torch.Tensor) -> torch.Tensor:
        normed = nn.functional.instance_norm(of, weight=weight, bias=bias)
        return nn.functional.leaky_relu(normed, 0.01, inplace=True)

    ways: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], torch.memory_format]] = [
        ("torch's, contiguous", torchs, torch.contiguous_format),
        ("torch's, channels_last", torchs, CHANNELS_LAST),
    ]
    if device.type == "cuda" or device.type in fused_norm._DEVICES:
        for launch in launches:
            name = f"fused, tile {launch.tile}, {launch.num_warps} warps, {launch.num_programs} programs"

            def ours(of: torch.Tensor, launch: NormLaunch = launch) -> torch.Tensor:
                return norm_act(of, weight, bias, eps=1e-5, slope=0.01, launch=launch)

            ways.append((name, ours, CHANNELS_LAST))
    for name, compute, memory_format in ways:
        try:
            features = x.contiguous(memory_format=memory_format).requires_grad_()
            slopes = dy.contiguous(memory_format=memory_format)
            with torch.no_grad():
                forward = device_ms(lambda compute=compute, f=features: compute(f), setting)["ms"]  # type: ignore[misc]
            y = compute(features)
            back = device_ms(
                lambda y=y, f=features, s=slopes: torch.autograd.grad(y, [f, weight, bias], s, retain_graph=True),  # type: ignore[misc]
                setting,
            )["ms"]
            row = {"forward_ms": forward, "backward_ms": back}
            # Twice read and once written; backward, two tensors are.
            rates = {"forward": 6e-6 * count / forward, "backward": 1e-5 * count / back}
            row |= {f"{way}_share_of_copy": rate / copy_rate for way, rate in rates.items()}
            del y
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:300]}
        setting.report("norm alone", {"shape": size, "what": name, **row})


def profile(case: Case, way: Way, setting: Setting) -> None:
    """The kernels of a step that take longest."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    num_steps = 1 if setting.is_tiny else 3
    is_cuda = setting.device.type == "cuda"

    def work() -> list[tuple[str, float, int]]:
        step = Step(case, way, setting.device)
        for _ in range(num_steps):
            step()
        synchronize(setting.device)
        with profiler(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as recorded:
            for _ in range(num_steps):
                step()
            synchronize(setting.device)
        return [
            (event.key, (event.self_device_time_total if is_cuda else event.self_cpu_time_total) / 1e3, event.count)
            for event in recorded.key_averages()
            if not is_cuda or event.device_type == DeviceType.CUDA
        ]

    table = f"kernels of a step, {case.name}"
    try:
        # In the main thread, as torch's profiler wants it; nothing else computes convolutions there.
        with switched(way, setting.device):
            found = work()
    except Exception as error:
        setting.report(table, {"way": way.name, "error": f"{type(error).__name__}: {error}"[:300]})
        return
    found.sort(key=lambda kernel: -kernel[1])
    total_ms, launches = sum(ms for _, ms, _ in found), sum(count for _, _, count in found)
    rows = [("all kernels", total_ms, launches), *found[:16]]
    for name, ms, count in rows:
        setting.report(
            table,
            {
                "way": way.name,
                "kernel": name[:160],
                "ms": ms / num_steps,
                "launches": count / num_steps,
                "share": ms / max(total_ms, 1e-9),
            },
        )


def run(setting: Setting) -> None:
    stop_s = time.monotonic() + max(setting.limit_s - 8.0, 1.0)
    best: dict[str, Way] = {}

    def steps(case: Case, ways: list[Way]) -> None:
        wanted = reference(case, setting) if case.has_reference else None
        rows = []
        for way in ways:
            if time.monotonic() > stop_s:
                setting.report("steps", {"case": case.name, "way": way.name, "error": "no time left"})
                continue
            rows.append((measure(case, way, setting, wanted, graph=case is HIPPOCAMPUS), way))
            setting.report("steps", rows[-1][0])
        done = [(row["ms"], way) for row, way in rows if "ms" in row]
        if done:
            best[case.name] = min(done, key=lambda found: found[0])[1]

    if setting.is_tiny:
        steps(TINY, [WAYS[0], FUSED, FUSED_TRIED, *EXTRAS[:2]])
        measure_norm((1, 8, 4, 4, 4), LAUNCHES[:1], setting)
        profile(TINY, FUSED, setting)
        return
    steps(HIPPOCAMPUS, ORDER)
    steps(PATCHES_128, ORDER)
    for case in (PATCHES_128, HIPPOCAMPUS):
        profile(case, best.get(case.name, FUSED), setting)
    for shape, launches in (
        ((8, 32, 160, 160, 80), LAUNCHES),
        ((8, 32, 32, 48, 32), LAUNCHES),
        ((2, 64, 64, 64, 64), LAUNCHES[:1]),
        ((2, 320, 8, 8, 8), LAUNCHES[:1]),
    ):
        if time.monotonic() < stop_s:
            measure_norm(shape, launches, setting)
        gc.collect()
        torch.cuda.empty_cache()
    steps(BODIES, [FUSED, WAYS[0], FUSED_TRIED])
    steps(replace(PATCHES_128, has_reference=False), EXTRAS)


EXPERIMENT = Experiment(
    id="E1",
    question="Norm and layout: contiguous or channels_last, torch's norm or ours, cuDNN's algorithms tried or not",
    seconds=75.0,
    run=run,
)
