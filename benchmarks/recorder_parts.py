"""What each part of the recorder costs a small training program that decodes and augments in its own process.

    python benchmarks/recorder_parts.py [--rounds 15]

Each side is the same 12 steps, alternating in one process. The figure is CPU time of the whole process, so that other
work on the machine disturbs it little; a repeat of the first side shows how much it still does. Single calls are timed
as well. Writes `benchmarks/results/recorder_parts.json`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import DataLoader, Dataset
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandFlipd,
    RandGaussianNoised,
    RandSpatialCropd,
    ScaleIntensityd,
)

from harness import head, parser_of, write_record
from voxelocity.bench.comparison import Comparison, Side, compare
from voxelocity.diagnosis.recorder.files import Files
from voxelocity.diagnosis.recorder.lines import OwnCode
from voxelocity.diagnosis.recorder.stacks import Stacks
from voxelocity.diagnosis.recorder.syncs import Syncs
from voxelocity.diagnosis.recorder.transforms import TransformTimer
from voxelocity.testing.watched_moment import WatchedMoment

_SIDE = 64
_CASES = 12
_KEYS = ("image",)


def program(folder: Path) -> Callable[[], None]:
    """One epoch of 12 steps on gzipped scans of 64 x 64 x 64 voxels, with a loss that is read at each step."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(_CASES):
        path = folder / f"case_{number}.nii.gz"
        nib.save(nib.Nifti1Image(rng.normal(100, 20, (_SIDE,) * 3).astype(np.int16), np.eye(4)), path)
        items.append({"image": str(path)})
    chain = Compose(
        [
            LoadImaged(_KEYS),
            EnsureChannelFirstd(_KEYS),
            ScaleIntensityd(_KEYS),
            RandSpatialCropd(_KEYS, (32, 32, 32), random_size=False),
            RandFlipd(_KEYS, prob=0.5),
            RandGaussianNoised(_KEYS, prob=0.5),
        ]
    )
    loader = DataLoader(Dataset(items, chain), batch_size=1, shuffle=True, num_workers=0)
    network = torch.nn.Sequential(torch.nn.Conv3d(1, 8, 3), torch.nn.ReLU(), torch.nn.Conv3d(8, 1, 3))
    optimizer = torch.optim.SGD(network.parameters(), 0.01)

    def train() -> None:
        for batch in loader:
            optimizer.zero_grad()
            loss = network(batch["image"].as_tensor()).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()

    return train


@contextmanager
def watching(*makers: Callable[[], Any]) -> Iterator[None]:
    """The program while these parts of the recorder run."""
    with ExitStack() as stack:
        for make in makers:
            part = make()
            part.start()
            stack.callback(part.stop)
        yield


def calls(folder: Path) -> dict[str, float]:
    """Microseconds of single calls, CPU time of the thread, the least of five runs."""
    moment = WatchedMoment("forward")
    own_code = OwnCode(script=__file__)
    tensor, path = torch.ones(1), folder / "case_0.nii.gz"
    stacks = Stacks(moment, own_code)
    found = {"one look at the stacks": _least(lambda: stacks.look_once(0.015))}
    found["Tensor.item as it is"] = _least(tensor.item)
    with watching(lambda: Syncs(moment, own_code)):
        found["Tensor.item that is counted"] = _least(lambda: tensor.item())
        moment.counting = False
        found["Tensor.item that is not counted"] = _least(lambda: tensor.item())
        moment.counting = True
    chain = Compose([lambda item: item])
    found["a chain of one function as it is"] = _least(lambda: chain(0))
    with watching(lambda: TransformTimer(moment)):
        found["a chain of one function that is timed"] = _least(lambda: chain(0))
    found["opening a file as it is"] = _least(lambda: path.open("rb").close())
    with watching(lambda: Files(moment)):
        found["opening a file that is counted"] = _least(lambda: path.open("rb").close())
        found["another audit event"] = _least(lambda: sys.audit("some.event"))
    found["another audit event after the end"] = _least(lambda: sys.audit("some.event"))
    return found


def _least(call: Callable[[], Any], *, times: int = 3000, runs: int = 5) -> float:
    best = float("inf")
    for _ in range(runs):
        began = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - began)
    return best / times * 1e6


def paired(folder: Path, rounds: int) -> Comparison:
    """CPU seconds of the program without and with each part, and with all of them."""
    moment, own_code = WatchedMoment("wait"), OwnCode(script=__file__)
    parts: dict[str, Callable[[], Any]] = {
        "stacks": lambda: Stacks(moment, own_code),
        "syncs": lambda: Syncs(moment, own_code),
        "transforms": lambda: TransformTimer(moment),
        "files": lambda: Files(moment),
    }
    train = program(folder)

    def cpu_s(makers: Sequence[Callable[[], Any]]) -> float:
        with watching(*makers):
            began = time.process_time()
            train()
            return time.process_time() - began

    watched = {
        "nothing": [],
        "nothing, again": [],
        **{name: [make] for name, make in parts.items()},
        "all four": list(parts.values()),
    }
    sides = [Side(name=name, once=partial(cpu_s, makers)) for name, makers in watched.items()]
    note = "one process; each side once a round, each round begun by another side"
    return compare("12 steps that decode and augment", "CPU s", sides, repeats=rounds, note=note)


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    record = head("recorder_parts", f"--rounds {rounds}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        comparison = paired(Path(name), rounds)
        microseconds = calls(Path(name))
    added = {}
    for figure in comparison.figures[1:]:
        shares = [ratio - 1 for ratio in comparison.ratios(figure)]
        low, median, high = statistics.quantiles(shares, n=4)
        added[figure.name] = {"low_quartile": low, "median": median, "high_quartile": high}
        print(f"{figure.name}: {median:+.2%} of CPU time, quartiles {low:+.2%} and {high:+.2%}, n = {len(shares)}")
    for name, one in microseconds.items():
        print(f"{name}: {one:.2f} us")
    record |= {
        "comparison": comparison.to_plain(),
        "added_share_of_cpu_time": added,
        "microseconds_of_a_call": microseconds,
    }
    write_record(record, "recorder_parts")


if __name__ == "__main__":
    main()
