"""What experiments on training steps share: the networks of known plans, batches, and threads like those of a feed."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gpu.experiment import Setting
from voxelocity.core.batch import Batch, Draw
from voxelocity.core.region import Region
from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.augment import AugmentConfig, AugmentParams, ResidentSource, augment, needed_boxes, sample
from voxelocity.data.cache.device import DeviceTier, DeviceVolume
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

_NUM_CLASSES, _TWO = 3, (2, 2, 2)


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A step as a plan has it.

    Attributes:
        name: in tables.
        widths: of DynUNet's levels.
        shape_bxyz: of a batch with one channel.
        last_stride: before the lowest level; 2 along each axis between the others.
        repeats: steps that are timed.
    """

    name: str
    widths: tuple[int, ...]
    shape_bxyz: tuple[int, int, int, int]
    last_stride: tuple[int, int, int] = _TWO
    repeats: int = 20

    def build_network(self, *, dropout: float = 0.0) -> torch.nn.Module:
        """With the same weights each time."""
        strides = [*[_TWO] * (len(self.widths) - 2), self.last_stride]
        config = NetworkConfig.parse(
            {"name": "dynunet", "widths": list(self.widths), "strides": list(map(list, strides)), "dropout": dropout}
        )
        return build_network(config, num_channels=1, num_classes=_NUM_CLASSES, seed=0).train()


TINY = StepCase(name="tiny", widths=(4, 8, 8), shape_bxyz=(1, 8, 8, 8))
HIPPOCAMPUS = StepCase(name="hippocampus 8x32x48x32", widths=(32, 64, 128, 256), shape_bxyz=(8, 32, 48, 32))
MEDIUM = StepCase(name="2x96^3", widths=(32, 64, 128, 256, 320), shape_bxyz=(2, 96, 96, 96))
LARGE = StepCase(name="2x128^3", widths=(32, 64, 128, 256, 320, 320), shape_bxyz=(2, 128, 128, 128), repeats=12)


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
    momentum = 0.95 if optimizer == "muon" else 0.99
    return TrainingStep(
        case.build_network(dropout=dropout),
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


def resident_volume(device: torch.device, side: int) -> DeviceVolume:
    """A scan like a CT's of 2 by 2 by 1.5 times the side, on the device: int16 and a label, 3 bytes a voxel."""
    shape = (2 * side, 2 * side, side * 3 // 2)
    image = np.round(np.random.default_rng(0).normal(0.0, 300.0, size=(1, *shape))).astype(np.int16)
    label = (image[0] > 300).astype(np.uint8)
    grid = Grid.of(image.shape, np.eye(4))
    tier = DeviceTier(2 * image.nbytes + 4096, device)
    tier.put("a", Volume(case_id="a", image=image, label=label, grid=grid, scaling=(Scaling(1.0 / 300.0, 0.0),)))
    kept = tier.get("a")
    assert kept is not None, "it was just put"
    return kept


def resident_sources(volume: DeviceVolume, params: AugmentParams, region: Region) -> list[ResidentSource]:
    """What the kernels read of a volume for samples that all lie in this region."""
    boxes = needed_boxes(params, [region] * params.num_samples, [volume.grid.shape] * params.num_samples)
    return [ResidentSource(box=volume.locate(box), start=box.start, scaling=volume.scaling) for box in boxes]


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
        # Hippocampus cases are of this size.
        self._volume = resident_volume(setting.device, 12 if setting.is_tiny else 32)
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
            stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
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
            self.error = repr(error)[:200]

    def _make(self, number: int) -> None:
        size, *extent = self._case.shape_bxyz
        shape = (extent[0], extent[1], extent[2])
        draws = [Draw(case_id="a", case=0, epoch=number, draw=draw) for draw in range(size)]
        params = sample(draws, seed=0, num_channels=1, patch_shape=shape, config=AugmentConfig())
        device, volume = self._setting.device, self._volume
        region = Region((0, 0, 0), shape)
        sources = resident_sources(volume, params, region)
        if device.type != "cuda":
            # The resident kernels need a GPU; a dry run only shows that the threads work.
            time.sleep(0.001)
            return
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
