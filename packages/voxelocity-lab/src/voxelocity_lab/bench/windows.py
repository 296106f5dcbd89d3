"""`voxelocity bench windows`: sliding windows around a predictor that costs nothing: ours, MONAI's and a bare add."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from voxelocity.core.region import Index3, Region
from voxelocity_lab.bench.comparison import BenchSide, Comparison, Once, compare, cpu_ms
from voxelocity_lab.bench.peers import peer_side
from voxelocity_lab.bench.phantom import BenchFolders


@dataclass(frozen=True, kw_only=True)
class WindowScenario:
    """Segmentation of a whole scan: what is left is cutting windows out and putting logits together."""

    # An abdominal CT at 1.5 mm and its 13 organs.
    shape: Index3 = (256, 256, 256)
    num_classes: int = 14
    window: Index3 = (96, 96, 96)
    batch_size: int = 4
    # MONAI's default, its tutorials' and nnU-Net's, and one for the last half per cent of Dice.
    blends: tuple[tuple[float, str], ...] = ((0.25, "constant"), (0.5, "gaussian"), (0.625, "gaussian"))
    repeats: int = 5


def run(scenario: WindowScenario, folders: BenchFolders) -> Iterator[Comparison]:
    """Every comparison of this scenario, one after the other."""
    for overlap, mode in scenario.blends:
        yield _cpu_s(scenario, overlap, mode)
    yield _blending(scenario)


def _cpu_s(scenario: WindowScenario, overlap: float, mode: str) -> Comparison:
    from voxelocity.monai import sliding_window_inference

    image = torch.zeros(1, 1, *scenario.shape)
    # Zeros, because the peer multiplies logits in place and these are returned again.
    logits = torch.zeros(scenario.batch_size, scenario.num_classes, *scenario.window)

    def once(function: Callable[..., Any]) -> float:
        """CPU seconds of one whole image, over all threads."""
        given = (image, scenario.window, scenario.batch_size, lambda x: logits[: len(x)], overlap, mode)
        with torch.no_grad():
            return cpu_ms(lambda: function(*given)) / 1000.0

    def theirs() -> Once:
        import monai.inferers

        return functools.partial(once, monai.inferers.sliding_window_inference)

    return compare(
        f"overlap {overlap:g}, {mode}: {scenario.num_classes} classes of {'x'.join(map(str, scenario.shape))}",
        "s",
        [
            BenchSide(
                name="Voxelocity sliding_window_inference", once=functools.partial(once, sliding_window_inference)
            ),
            peer_side("MONAI sliding_window_inference", "MONAI", theirs),
        ],
        repeats=scenario.repeats,
        note=f"CPU time; windows of {'x'.join(map(str, scenario.window))}, {scenario.batch_size} a call; a predictor "
        "that returns the same zeros each time, so that only cutting and stitching is measured",
    )


def _blending(scenario: WindowScenario) -> Comparison:
    """What `voxelocity predict` takes to weight, add and hand over windows, against adding the same windows."""
    from voxelocity.data.patch import grid_regions
    from voxelocity.infer import WindowConfig
    from voxelocity.infer.window import stitch_volumes

    class Nothing:
        def take(self, sums_kxyz: torch.Tensor, weights_xyz: torch.Tensor | None, box: Region) -> None:
            pass

    overlap = 0.5
    image = torch.randn(1, *scenario.shape, generator=torch.Generator().manual_seed(0))
    logits = torch.zeros(scenario.batch_size, scenario.num_classes, *scenario.window)
    config = WindowConfig(shape_voxel=scenario.window, overlap=overlap, batch_size=scenario.batch_size)
    boxes = grid_regions(scenario.shape, scenario.window, overlap)

    def ours() -> None:
        volumes = [(image, Nothing())]
        for stitched in stitch_volumes(lambda x: logits[: len(x)], volumes, config, device=image.device):
            stitched.check()

    def bare() -> None:
        total = torch.zeros(scenario.num_classes, *scenario.shape)
        for number, box in enumerate(boxes):
            total[:, *box.slices] += logits[number % scenario.batch_size]

    return compare(
        f"weighting and adding windows: {scenario.num_classes} classes of {'x'.join(map(str, scenario.shape))}",
        "s",
        [
            BenchSide(name="Voxelocity, window engine", once=lambda: cpu_ms(ours) / 1000.0),
            BenchSide(name="adding the same windows to one large array", once=lambda: cpu_ms(bare) / 1000.0),
        ],
        repeats=scenario.repeats,
        note=f"CPU time; windows of {'x'.join(map(str, scenario.window))}, overlap {overlap:g}; the engine also "
        "weights by a Gaussian, checks for NaN and holds only what windows still change",
    )
