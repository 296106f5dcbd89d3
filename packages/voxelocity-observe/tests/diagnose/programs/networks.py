"""Small programs with one fault each in the network, its optimizer or the loop. Their batches are there already."""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

NUM_STEPS = 40
SIDE = 16


def _train(
    *,
    after_step: Callable[..., object] = lambda loss: None,
    dtype: torch.dtype = torch.float32,
    set_to_none: bool = True,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    network: nn.Module | None = None,
) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 2, 3)]
    network = (network or nn.Sequential(*layers)).to(dtype)
    batch = torch.zeros(1, 1, SIDE, SIDE, SIDE, dtype=dtype)
    chosen = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)))(network.parameters())
    for _ in range(NUM_STEPS):
        chosen.zero_grad(set_to_none=set_to_none)
        loss = network(batch).square().mean()
        loss.backward()
        chosen.step()
        after_step(loss)


def clean(folder: Path) -> None:
    """All at its ceiling: the network computes all of the time."""
    layers = [nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1), nn.Conv3d(16, 2, 3)]
    _train(network=nn.Sequential(*layers).to(memory_format=torch.channels_last_3d))


def item_each_step(folder: Path) -> None:
    """Reads the loss at each step."""
    losses = []
    _train(after_step=lambda loss: losses.append(loss.item()))


def float64(folder: Path) -> None:
    """Computes in float64."""
    _train(dtype=torch.float64)


def contiguous(folder: Path) -> None:
    """Leaves the tensors as they are: channels outermost."""
    _train()


def anomaly_detection(folder: Path) -> None:
    """Leaves a switch for finding errors on."""
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        _train()


def deterministic(folder: Path) -> None:
    """Asks for deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    try:
        _train()
    finally:
        torch.use_deterministic_algorithms(False)


def filled_gradients(folder: Path) -> None:
    """Fills gradients with zeros."""
    _train(set_to_none=False)


def looping_optimizer(folder: Path) -> None:
    """AdamW one by one over many small parameters."""
    network = nn.Sequential(nn.Conv3d(1, 2, 3), *[nn.BatchNorm3d(2, track_running_stats=False) for _ in range(40)])
    _train(network=network, optimizer=lambda p: torch.optim.AdamW(p, foreach=False))


def one_thread(folder: Path) -> None:
    """One thread; the table says that there are eight cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _train()
    finally:
        torch.set_num_threads(before)


def many_threads(folder: Path) -> None:
    """Four threads; the table says that there is one core. Its layers are so small that one thread computes them."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**3, 4))
        _train(network=network)
    finally:
        torch.set_num_threads(before)


def varying_shapes(folder: Path) -> None:
    """A compiled network that is given another shape again and again, and may not be compiled for all of them."""
    torch.compiler.reset()
    network = nn.Conv3d(1, 2, 3)
    compiled = torch.compile(network, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    for number in range(8):
        optimizer.zero_grad()
        compiled(torch.zeros(1, 1, 6 + number, 6, 6)).square().mean().backward()
        optimizer.step()


def graph_breaks(folder: Path) -> None:
    """A compiled network that is left for Python in its midst."""
    torch.compiler.reset()

    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv3d(1, 2, 3), nn.Conv3d(2, 2, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = self.first(images)
            torch._dynamo.graph_break()
            return self.second(features)

    network = Telling()
    compiled = torch.compile(network, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    with warnings.catch_warnings():
        # torch's own, at a break.
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(10):
            optimizer.zero_grad()
            compiled(torch.zeros(1, 1, 6, 6, 6)).square().mean().backward()
            optimizer.step()


def garbage(folder: Path) -> None:
    """Collects garbage at each step, among some objects of its own; what was there before is left out of it."""
    gc.freeze()
    try:
        kept = [[number] for number in range(40_000)]
        _train(after_step=lambda loss: gc.collect())
        kept.clear()
    finally:
        gc.unfreeze()


def logging_each_step(folder: Path) -> None:
    """Logs at each step to a handler that takes its time."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(0.01)

    log = logging.getLogger("planted")
    log.propagate = False
    handler = Slow()
    log.addHandler(handler)
    try:
        _train(after_step=lambda loss: log.warning("a step"))
    finally:
        log.removeHandler(handler)


def busy_loop(folder: Path) -> None:
    """Does something of its own after each step."""
    _train(after_step=lambda loss: sum(number * number for number in range(60_000)))


def scores_each_step(folder: Path) -> None:
    """Post-processes and scores the predictions of each step, on batches of a loader."""
    from monai.metrics import DiceMetric
    from monai.transforms import AsDiscrete

    side = 3 * SIDE
    network, dice, post = nn.Conv3d(1, 2, 3, padding=1), DiceMetric(), AsDiscrete(argmax=True, to_onehot=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    for images in torch.utils.data.DataLoader(torch.zeros(NUM_STEPS, 1, side, side, side)):
        optimizer.zero_grad()
        outputs = network(images)
        outputs.square().mean().backward()
        optimizer.step()
        dice(y_pred=[post(output) for output in outputs], y=[torch.ones(2, side, side, side) for _ in outputs])


def sample_by_sample(folder: Path) -> None:
    """Calls the network with each sample of a batch by itself."""

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Conv3d(2, 2, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    scans = torch.utils.data.TensorDataset(torch.zeros(4 * NUM_STEPS, 1, 8, 8, 8))
    for (images,) in torch.utils.data.DataLoader(scans, batch_size=4):
        optimizer.zero_grad()
        torch.stack([network(image[None]).square().mean() for image in images]).mean().backward()
        optimizer.step()


def growing_memory(folder: Path) -> None:
    """Keeps the loss of each step with its graph."""
    losses = []
    _train(after_step=lambda loss: losses.append(loss))
