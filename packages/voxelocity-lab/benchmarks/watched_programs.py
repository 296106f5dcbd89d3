"""Programs of a fixed amount of work, for `benchmarks/own_cost.py` to put a watcher around.

    python benchmarks/watched_programs.py training --rounds 100

They do not use Voxelocity. The last line that they print is JSON: wall and CPU seconds of the rounds, and CPU
seconds of the whole process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable


def cpu_bound() -> Callable[[], None]:
    """About 10 ms of one core in pure Python."""

    def once() -> None:
        sum(number * number for number in range(100_000))

    return once


def training() -> Callable[[], None]:
    """One step of a small 3-D network on batches that a loader makes, on one core: tens of milliseconds."""
    import torch

    # With two threads that wait for each other, a neighbor on the machine would be measured instead of the watcher.
    torch.set_num_threads(1)

    class Patches(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            image = torch.randn((1, 24, 24, 24), generator=torch.Generator().manual_seed(index))
            return image, (image[0] > 0.5).long()

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv3d(1, 12, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(12, 12, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv3d(12, 2, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Patches(), batch_size=2)
    batches = iter(loader)

    def once() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        image, label = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(image), label)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return once


PROGRAMS = {"cpu": cpu_bound, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    once = PROGRAMS[options.program]()
    for _ in range(min(3, options.rounds)):
        once()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(options.rounds):
        once()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "process_cpu_s": time.process_time()}))


if __name__ == "__main__":
    main()
