"""E1: which norm, memory format and cuDNN settings make a DynUNet's step quickest; what the fused norm takes alone.

torch keeps cuDNN's choices for each thread, under keys that do not say whether algorithms were tried. So each way runs
in a thread of its own, with its backward pass in the same thread; otherwise the second of two ways would compute as the
first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gpu.experiment import Experiment, Row, Setting, capture, device_ms, profile_kernels
from gpu.steps import HIPPOCAMPUS, LARGE, TINY, StepCase, build_batches
from voxelocity.step import BackendConfig, LossConfig, backend_as_found, build_loss, dynunet, fused_norm, set_backend
from voxelocity.step.fused_norm import NormLaunch, norm_act

CHANNELS_LAST = torch.channels_last_3d
BODIES = replace(LARGE, name="8x160x160x80", shape_bxyz=(8, 160, 160, 80), last_stride=(2, 2, 1), repeats=6)


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
    channels_last: bool = True
    is_fused: bool = True
    tries: bool = False
    compute: str = "bfloat16"
    changes: Callable[[Step], None] | None = None


class Step:
    """Forward pass, loss and backward pass of a case, one way; for one thread."""

    def __init__(self, case: StepCase, way: Way, device: torch.device) -> None:
        self.way, self.device = way, device
        memory_format = CHANNELS_LAST if way.channels_last else torch.contiguous_format
        self.network = case.build_network().to(device)
        (batch,) = build_batches(case, device, 1)
        self.image, self.label = batch.image, batch.label
        if way.changes is not None:
            way.changes(self)
        self.network.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.image = self.image.to(memory_format=memory_format)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.network
        self._loss = build_loss(LossConfig())
        self.value = torch.zeros(())

    def __call__(self) -> None:
        self.network.zero_grad()
        is_half = self.way.compute != "float32"
        dtype = getattr(torch, self.way.compute) if is_half else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=is_half):
            logits = self.forward(self.image)
        value = self._loss(logits, self.label)
        value.backward()  # type: ignore[no-untyped-call]
        self.value = value.detach()

    def gradients(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten().float() for p in self.network.parameters() if p.grad is not None])


FUSED = Way(name="channels_last, fused norm, heuristics")
FUSED_TRIED = replace(FUSED, name="channels_last, fused norm, algorithms tried", tries=True)
PLAIN = Way(name="contiguous, torch's norm, heuristics", channels_last=False, is_fused=False)
# The layout that converts at each norm is not worth trials.
ORDER = [
    FUSED,
    PLAIN,
    Way(name="channels_last, torch's norm, heuristics", is_fused=False),
    FUSED_TRIED,
    replace(PLAIN, name="contiguous, torch's norm, algorithms tried", tries=True),
]
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

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def measure(case: StepCase, way: Way, setting: Setting, wanted: torch.Tensor | None) -> Row:
    """A row on steps of this way; of the smallest case also as a CUDA graph, which host time does not slow."""

    def work() -> Row:
        begin_s = time.perf_counter()
        step = Step(case, way, setting.device)
        step()
        setting.synchronize()
        first_s = time.perf_counter() - begin_s
        if setting.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        row = device_ms(step, setting, repeats=case.repeats, warmup=3)
        row |= {
            "patches_per_s": 1e3 * case.shape_bxyz[0] / row["ms"],
            "first_step_s": first_s,
            "loss": float(step.value),
        }
        row["peak_bytes"] = torch.cuda.max_memory_allocated() if setting.is_cuda else 0
        if wanted is not None and (gradients := step.gradients()).shape == wanted.shape:
            row["gradient_error"] = float((gradients - wanted).norm() / wanted.norm())
        if case is HIPPOCAMPUS and setting.is_cuda:
            try:
                row["graph_ms"] = device_ms(capture(step).replay, setting)["ms"]
            except Exception as error:
                row["graph_error"] = repr(error)[:200]
        return row

    return {"case": case.name, "way": way.name, **in_own_thread(work, way, setting.device)}


def find_reference(case: StepCase, setting: Setting) -> torch.Tensor | None:
    """Gradients in float32, without TF32."""

    def work() -> torch.Tensor:
        step = Step(case, FLOAT32, setting.device)
        step()
        return step.gradients()

    found: list[torch.Tensor] = []
    with setting.guard("steps", case=case.name, way=FLOAT32.name):
        found.append(in_own_thread(work, FLOAT32, setting.device))
    return found[0] if found else None


# Changes that only this experiment makes.


def pad_input(step: Step) -> None:
    """Adds seven channels of zeros to the image, so that its convolution can use wide loads."""
    step.image = torch.cat([step.image, step.image.new_zeros((len(step.image), 7, *step.image.shape[2:]))], dim=1)
    first: Any = step.network.get_submodule("input_block.conv1.conv")
    wide = nn.Conv3d(8, first.out_channels, first.kernel_size, first.stride, first.padding, bias=False)
    wide = wide.to(first.weight.device)
    with torch.no_grad():
        wide.weight.zero_()[:, :1] = first.weight
    step.network.get_submodule("input_block.conv1").conv = wide


def halve_weights(step: Step) -> None:
    """Keeps weights in bfloat16, so that autocast converts none: a bound, not a way to train."""
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


def try_all_algorithms(_: Step) -> None:
    torch.backends.cudnn.benchmark_limit = 0


EXTRAS = [
    replace(FUSED, name="fused, image padded to 8 channels", changes=pad_input),
    replace(FUSED, name="fused, two convolutions in place of a joint", changes=split_joints),
    replace(FUSED, name="fused, float16", compute="float16"),
    replace(FUSED, name="fused, weights in bfloat16", changes=halve_weights),
    replace(FUSED_TRIED, name="fused, all algorithms tried", changes=try_all_algorithms),
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
    """The norm alone, forward and backward, as a share of what a copy reaches."""
    table, size, device = "norm alone", "x".join(map(str, shape)), setting.device
    x = torch.randn(shape, device=device, dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    copy_to, count, dy = torch.empty_like(x), x.numel(), torch.randn_like(x)
    copied_ms = device_ms(lambda: copy_to.copy_(x), setting)["ms"]
    copy_rate = 4e-6 * count / copied_ms
    setting.report(table, {"shape": size, "what": "copy", "forward_ms": copied_ms, "gb_per_s": copy_rate})
    weight, bias = (torch.ones(shape[1], device=device).requires_grad_() for _ in range(2))

    def torchs(features: torch.Tensor) -> torch.Tensor:
        normed = nn.functional.instance_norm(features, weight=weight, bias=bias)
        return nn.functional.leaky_relu(normed, 0.01, inplace=True)

    def ours(launch: NormLaunch) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda features: norm_act(features, weight, bias, eps=1e-5, slope=0.01, launch=launch)

    ways: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], torch.memory_format]] = [
        ("torch's, contiguous", torchs, torch.contiguous_format),
        ("torch's, channels_last", torchs, CHANNELS_LAST),
    ]
    if setting.is_cuda or device.type in fused_norm._DEVICES:
        ways += [
            (f"fused, tile {s.tile}, {s.num_warps} warps, {s.num_programs} programs", ours(s), CHANNELS_LAST)
            for s in launches
        ]
    for name, compute, memory_format in ways:
        with setting.guard(table, shape=size, what=name):
            features = x.contiguous(memory_format=memory_format).requires_grad_()
            slopes = dy.contiguous(memory_format=memory_format)
            forward_ms, backward_ms = _both_ways_ms(compute, [features, weight, bias], slopes, setting)
            row = {"shape": size, "what": name, "forward_ms": forward_ms, "backward_ms": backward_ms}
            # Twice read and once written; backward, two tensors are.
            rates = {"forward": 6e-6 * count / forward_ms, "backward": 1e-5 * count / backward_ms}
            setting.report(table, row | {f"{way}_share_of_copy": rate / copy_rate for way, rate in rates.items()})


def _both_ways_ms(
    compute: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor], slopes: torch.Tensor, setting: Setting
) -> tuple[float, float]:
    """Milliseconds of a pass forward and of one back."""
    with torch.no_grad():
        forward_ms = device_ms(lambda: compute(inputs[0]), setting)["ms"]
    y = compute(inputs[0])
    back = device_ms(lambda: torch.autograd.grad(y, inputs, slopes, retain_graph=True), setting)
    return forward_ms, back["ms"]


def report_kernels(case: StepCase, way: Way, setting: Setting) -> None:
    """The kernels of a step that take longest."""
    table = f"kernels of a step, {case.name}"
    # In the main thread, as torch's profiler wants it; nothing else computes convolutions there.
    with setting.guard(table, way=way.name), switched(way, setting.device):
        kernels, _ = profile_kernels(Step(case, way, setting.device), setting)
        found = sorted(kernels, key=lambda kernel: -kernel[1])
        total_ms, launches = sum(ms for _, ms, _ in found), sum(count for _, _, count in found)
        for name, ms, count in [("all kernels", total_ms, launches), *found[:16]]:
            row = {"way": way.name, "kernel": name[:160], "ms": ms, "launches": count}
            setting.report(table, row | {"share": ms / max(total_ms, 1e-9)})


def run(setting: Setting) -> None:
    stop_s = time.monotonic() + max(setting.limit_s - 8.0, 1.0)
    best: dict[str, Way] = {}

    def steps(case: StepCase, ways: list[Way], *, has_reference: bool = True) -> None:
        wanted = find_reference(case, setting) if has_reference else None
        done: list[tuple[float, Way]] = []
        for way in ways:
            with setting.guard("steps", case=case.name, way=way.name):
                if time.monotonic() > stop_s:
                    raise TimeoutError("no time left")
                row = measure(case, way, setting, wanted)
                setting.report("steps", row)
                done.append((row["ms"], way))
        if done:
            best[case.name] = min(done, key=lambda found: found[0])[1]

    if setting.is_tiny:
        steps(TINY, [PLAIN, FUSED, FUSED_TRIED, *EXTRAS[:2]])
        measure_norm((1, 8, 4, 4, 4), LAUNCHES[:1], setting)
        report_kernels(TINY, FUSED, setting)
        return
    steps(HIPPOCAMPUS, ORDER)
    steps(LARGE, ORDER)
    for case in (LARGE, HIPPOCAMPUS):
        report_kernels(case, best.get(case.name, FUSED), setting)
    for shape, launches in (
        ((8, 32, 160, 160, 80), LAUNCHES),
        ((8, 32, 32, 48, 32), LAUNCHES),
        ((2, 64, 64, 64, 64), LAUNCHES[:1]),
        ((2, 320, 8, 8, 8), LAUNCHES[:1]),
    ):
        if time.monotonic() < stop_s:
            measure_norm(shape, launches, setting)
    steps(BODIES, [FUSED, PLAIN, FUSED_TRIED], has_reference=False)
    steps(LARGE, EXTRAS, has_reference=False)


EXPERIMENT = Experiment(
    id="E1",
    question="Norm and layout: contiguous or channels_last, torch's norm or ours, cuDNN's algorithms tried or not",
    seconds=75.0,
    run=run,
)
