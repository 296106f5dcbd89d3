"""What experiments on training steps share: the networks of known plans, batches, and threads like those of a feed."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gpu.experiment import Setting
from voxelocity.core.batch import Batch, Draw
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.augment import AugmentConfig, ResidentSource, augment, needed_box, sample
from voxelocity.data.cache.device import DeviceTier
from voxelocity.step import (
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    TrainingStep,
    build_loss,
    build_network,
)
from voxelocity.step.optimizer_table import OptimizerName


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A step as a plan has it.

    Attributes:
        name: in tables.
        widths: of DynUNet's levels.
        shape_bxyz: of a batch with one channel.
        num_classes: of the output.
    """

    name: str
    widths: tuple[int, ...]
    shape_bxyz: tuple[int, int, int, int]
    num_classes: int = 3


TINY = StepCase(name="tiny", widths=(4, 8, 8), shape_bxyz=(1, 8, 8, 8))
HIPPOCAMPUS = StepCase(name="hippocampus 8x32x48x32", widths=(32, 64, 128, 256), shape_bxyz=(8, 32, 48, 32))
MEDIUM = StepCase(name="2x96^3", widths=(32, 64, 128, 256, 320), shape_bxyz=(2, 96, 96, 96))
LARGE = StepCase(name="2x128^3", widths=(32, 64, 128, 256, 320, 320), shape_bxyz=(2, 128, 128, 128))


def build_step(
    case: StepCase,
    device: torch.device,
    *,
    optimizer: OptimizerName = "adamw",
    step_graph: bool = False,
    dropout: float = 0.0,
    compute: Literal["bfloat16", "float16"] = "bfloat16",
    said: list[str] | None = None,
) -> TrainingStep:
    """The step of a plan on a GPU, with a running average; what it warns of goes to `said`."""
    strides = [(2, 2, 2)] * (len(case.widths) - 1)
    config = NetworkConfig.parse(
        {"name": "dynunet", "widths": list(case.widths), "strides": [list(s) for s in strides], "dropout": dropout}
    )
    momentum = 0.95 if optimizer == "muon" else 0.99
    return TrainingStep(
        build_network(config, num_channels=1, num_classes=case.num_classes, seed=0).train(),
        build_loss(LossConfig()),
        optimizer=OptimizerConfig(name=optimizer, learning_rate=4e-3, momentum=momentum, average_decay=0.98),
        precision=PrecisionConfig(compute=compute, channels_last=True, step_graph=step_graph),
        device=device,
        warn=(said if said is not None else []).append,
    )


def build_batches(case: StepCase, device: torch.device, num: int = 4) -> list[Batch]:
    """Different batches on the device, whose label follows from the image."""
    numbers = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(num):
        size, *shape = case.shape_bxyz
        image = torch.randn((size, 1, *shape), generator=numbers)
        smooth = torch.nn.functional.avg_pool3d(image, 5, stride=1, padding=2)[:, 0]
        label = (smooth > 0.05).to(torch.uint8) + (smooth > 0.15).to(torch.uint8)
        batches.append(Batch(image=image.to(device), label=label.to(device), draws=(), regions=(), step=0))
    return batches


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class FeedLike:
    """Threads that make batches as a feed does: draw, sample, place, augment on a stream of their own, wait for it.

    Attributes:
        num_batches: made so far.
        error: the first that a thread had; "" without one.
    """

    def __init__(self, setting: Setting, case: StepCase, num_threads: int, *, pause_s: float = 0.0) -> None:
        self.num_batches, self.error, self._pause_s = 0, "", pause_s
        self._setting, self._case = setting, case
        self._stop = threading.Event()
        side = 24 if setting.is_tiny else 64
        numbers = np.random.default_rng(0)
        # Hippocampus cases are of this size.
        volume = Volume(
            case_id="a",
            image=numbers.integers(-500, 500, (1, side, side, side), dtype=np.int16),
            label=numbers.integers(0, 3, (side, side, side), dtype=np.uint8),
            grid=Grid.of((1, side, side, side), np.eye(4)),
            scaling=(Scaling(0.002, 0.0),),
        )
        tier = DeviceTier(1 << 24, setting.device)
        tier.put("a", volume)
        self._volume: Any = tier.get("a")
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_threads)]

    def __enter__(self) -> FeedLike:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20.0)

    def _work(self) -> None:
        try:
            device = self._setting.device
            stream: Any = None
            if device.type == "cuda":
                stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                number = 0
                while not self._stop.is_set():
                    self._make(number)
                    if stream is not None:
                        stream.synchronize()
                    number += 1
                    self.num_batches += 1
                    if self._pause_s:
                        time.sleep(self._pause_s)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"[:200]

    def _make(self, number: int) -> None:
        size, *extent = self._case.shape_bxyz
        shape = (extent[0], extent[1], extent[2])
        draws = [Draw(case_id="a", case=0, epoch=number, draw=draw) for draw in range(size)]
        params = sample(draws, seed=0, num_channels=1, patch_shape=shape, config=AugmentConfig())
        device, volume = self._setting.device, self._volume
        region = Region((0, 0, 0), shape)
        boxes = [needed_box(params, row, region, volume.grid.shape) for row in range(size)]
        if device.type != "cuda":
            # The resident kernels need a GPU; a dry run only shows that the threads work.
            time.sleep(0.001)
            return
        sources = [ResidentSource(box=volume.locate(b), start=b.start, scaling=volume.scaling) for b in boxes]
        image = torch.empty((size, 1, *shape), device=device)
        label = torch.empty((size, *shape), dtype=torch.uint8, device=device)
        augment(sources, [region] * size, params, image, label, engine="triton")


@contextlib.contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    """Python's switch interval within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
