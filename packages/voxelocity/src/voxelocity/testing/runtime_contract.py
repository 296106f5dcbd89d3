"""Tests that every runtime must pass (`infer.runtimes.contract`). Subclass in a test, and name one.

class TestOpenVino(RuntimeContract):
    name = "openvino"

A runtime that cannot be used here is skipped, with what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from voxelocity.infer.runtimes.auto import relative_difference, tolerance
from voxelocity.infer.runtimes.contract import Forward, RuntimeTask
from voxelocity.infer.runtimes.table import RUNTIMES
from voxelocity.step import NetworkConfig, PrecisionConfig, build_network

_NUM_CHANNELS, _NUM_CLASSES = 2, 3


def example_network(name: str = "unet", **settings: Any) -> torch.nn.Module:
    """A small network for two channels and three classes, in evaluation mode, on the CPU.

    Args:
        name: of `NetworkConfig`; the UNet is traced in the least time.
        settings: others of `NetworkConfig`.
    """
    values = {"name": name, "widths": (4, 8, 8), "strides": ((2, 2, 2), (2, 2, 1)), **settings}
    config = NetworkConfig.parse(values)
    return build_network(config, num_channels=_NUM_CHANNELS, num_classes=_NUM_CLASSES, seed=1).eval()


def example_task(device: str = "cpu", compute: str = "float32") -> RuntimeTask:
    """Batches of three windows whose axes all differ."""
    return RuntimeTask(
        num_channels=_NUM_CHANNELS,
        shape_voxel=(16, 12, 8),
        batch_size=3,
        device=torch.device(device),
        precision=PrecisionConfig.parse({"compute": compute, "channels_last": compute != "float32"}),
    )


def example_windows(task: RuntimeTask, num: int, seed: int = 0) -> torch.Tensor:
    """Noise, (num, c, x, y, z)."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn((num, *task.batch_shape[1:]), generator=numbers).to(task.device)


class RuntimeContract:
    """Tests of any runtime, on `example_network` and `example_task`."""

    name = ""
    """In `RUNTIMES`."""
    device = "cpu"

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls) -> RuntimeTask:
        if cls.device == "cuda" and not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device here")
        task = example_task(cls.device)
        if why_not := RUNTIMES[cls.name].why_not(task.device):
            pytest.skip(why_not)
        return task

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, task: RuntimeTask) -> torch.nn.Module:
        return example_network().to(task.device)

    @pytest.fixture(scope="class")
    @classmethod
    def forward(cls, network: torch.nn.Module, task: RuntimeTask) -> Iterator[Forward]:
        found = torch.get_num_threads()
        yield RUNTIMES[cls.name].load(network, task)
        assert torch.get_num_threads() == found, "torch computes with as many threads as before"

    @pytest.mark.parametrize("num", [3, 1, 2])
    def test_a_batch_of_any_size_gives_the_logits_of_the_network(
        self, forward: Forward, network: torch.nn.Module, task: RuntimeTask, num: int
    ) -> None:
        windows = example_windows(task, num)
        with torch.no_grad():
            logits, wanted = forward(windows), network(windows)
        assert logits.shape == (num, _NUM_CLASSES, *task.shape_voxel)
        assert logits.is_floating_point()
        assert logits.device == windows.device
        assert relative_difference(logits.float(), wanted) <= tolerance(task)

    def test_equal_windows_give_equal_logits(self, forward: Forward, task: RuntimeTask) -> None:
        windows = example_windows(task, task.batch_size)
        with torch.no_grad():
            first = forward(windows).clone()
            # Another batch in between, so that a runtime that returns the last logits does not pass.
            assert not torch.equal(forward(example_windows(task, task.batch_size, seed=1)), first)
            assert torch.equal(forward(windows), first)

    def test_windows_are_not_changed(self, forward: Forward, task: RuntimeTask) -> None:
        windows = example_windows(task, task.batch_size)
        with torch.no_grad():
            forward(windows)
        assert torch.equal(windows, example_windows(task, task.batch_size))

    def test_windows_in_another_memory_order_give_the_same_logits(self, forward: Forward, task: RuntimeTask) -> None:
        windows = example_windows(task, task.batch_size)
        with torch.no_grad():
            wanted = forward(windows).float().clone()
            for other in (
                windows.contiguous(memory_format=torch.channels_last_3d),
                windows.transpose(2, 4).contiguous().transpose(2, 4),
            ):
                assert relative_difference(forward(other).float(), wanted) <= tolerance(task)

    def test_the_network_can_still_be_used(self, forward: Forward, network: torch.nn.Module, task: RuntimeTask) -> None:
        windows = example_windows(task, 1)
        reference = example_network().to(task.device)
        with torch.no_grad():
            forward(windows)
            assert relative_difference(network(windows), reference(windows)) <= tolerance(task)
        assert not network.training
