"""Each stage alone, in the program itself after its counted steps: the loader, the data set, the collate function, the
files, the copy. Each function gives fields of the event `experiment`, and does not raise if the program's code
fails."""

from __future__ import annotations

import glob
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Callable

from .batches import Entry, tensors_in

_MIN_ITEMS = 3
# One pair of passes says little where other programs come and go, and the first pass of each is slower.
_MIN_ROUNDS = 4
_MAX_REPEATS = 50
_ROUNDS = 3
_BLOCK_BYTES = 1 << 22
_MAX_STORAGE_BYTES = 1 << 30

Fields = dict[str, Any]


def all_experiments(
    torch: Any,
    entry: Entry | None,
    *,
    resident_s: list[float],
    why_not_resident: str,
    batch: Any,
    device: Any,
    folder: str,
    seconds: float,
) -> Iterator[Fields]:
    """All of them; those on batches alternate, because the machine's other work comes and goes.

    Args:
        torch: the module.
        entry: the loader that feeds the training; None where none is known.
        resident_s: seconds of the steps on resident batches, which were made before.
        why_not_resident: why there are none.
        batch: one of the loader's.
        device: the `torch.device` that holds the network.
        folder: of the recording, which lists the files that were read.
        seconds: for each of them, approximately.
    """
    if resident_s and not why_not_resident:
        yield _fields("resident batch", "step", resident_s)
    else:
        yield _fields("resident batch", "step", note=why_not_resident or "the program ended before")
    if entry is None:
        for name, unit in (("loader", "batch"), ("items", "item"), ("collate", "batch"), ("copy", "batch")):
            yield _fields(name, unit, note=why_not_resident)
    else:
        yield from used_again(entry, seconds)
        yield from _in_rounds(torch, entry, batch, device, seconds)
    yield from storage_alone(files_read(folder), seconds)


def _fields(name: str, unit: str, seconds: Sequence[float] = (), note: str = "") -> Fields:
    """Of one that was made, or of one that could not be made, with the reason."""
    return {"name": name, "unit": unit, "seconds": [round(value, 7) for value in seconds], "note": note}


def _in_rounds(torch: Any, entry: Entry, batch: Any, device: Any, seconds: float) -> Iterator[Fields]:
    """Each of them for part of its time, then all again, so that other work of the machine affects all alike."""
    rounds = []
    for _ in range(_ROUNDS):
        part_s = seconds / _ROUNDS
        rounds.append(
            [loader_alone(entry, part_s), *items_and_collate(entry, part_s), copy_alone(torch, batch, device)]
        )
    for repeated in zip(*rounds):
        done = [fields for fields in repeated if fields["seconds"]]
        yield {**done[0], "seconds": [s for fields in done for s in fields["seconds"]]} if done else repeated[0]


def loader_alone(entry: Entry, seconds: float) -> Fields:
    """Batches without the step, from the iterator in use, after those that were made ahead.

    A repeat is one batch per worker, because they come in bursts.
    """
    if entry.iterator is None:
        return _fields("loader", "batch", note="the loader's iterator was gone when the steps had ended")
    produce = _endless(entry)
    workers = int(entry.described.get("num_workers") or 0)
    deadline_s = time.perf_counter() + seconds
    repeats: list[float] = []
    try:
        for _ in range(entry.num_ahead):
            produce()
            if time.perf_counter() > deadline_s:
                break
        _repeat(produce, seconds, repeats, calls=max(1, workers))
    except StopIteration:
        if not repeats:
            why = "the program had not made the next loader" if entry.loader is None else "the next one gave no batch"
            return _fields("loader", "batch", note=f"the epoch ended, and {why}")
    except Exception as error:
        return _fields("loader", "batch", note=f"the loader raised {type(error).__name__}: {error}")
    return _fields("loader", "batch", repeats)


def _repeat(call: Callable[[], Any], seconds: float, into: list[float], *, calls: int = 1) -> None:
    """Adds the seconds of a call, as the mean of each `calls` of them, until about `seconds` have passed."""
    deadline_s = time.perf_counter() + seconds
    while len(into) < _MAX_REPEATS and (not into or time.perf_counter() < deadline_s):
        started_s = time.perf_counter()
        for _ in range(calls):
            call()
        into.append((time.perf_counter() - started_s) / calls)


def _endless(entry: Entry) -> Callable[[], Any]:
    source = [entry.iterator]

    def produce() -> Any:
        try:
            return next(source[0])
        except StopIteration:
            if entry.loader is None:
                raise
            source[0] = iter(entry.loader)
            return next(source[0])

    return produce


def items_and_collate(entry: Entry, seconds: float) -> list[Fields]:
    """The data set in this thread alone, at indices spread over it, then the collate function on these items."""
    dataset, collate = entry.dataset, entry.collate
    try:
        num_items = len(dataset) if hasattr(type(dataset), "__getitem__") else 0
    except Exception:
        num_items = 0
    if not num_items:
        kind = type(dataset).__name__
        note = "the loader has no data set" if dataset is None else f"items of a {kind} cannot be indexed"
        return [_fields("items", "item", note=note), _fields("collate", "batch", note=note)]
    # Items may be large: as many as one batch takes are kept.
    batch_size = int(entry.described.get("batch_size") or 1)
    items: list[Any] = []
    item_s: list[float] = []
    deadline_s = time.perf_counter() + seconds
    wanted = max(_MIN_ITEMS, min(num_items, _MAX_REPEATS))
    try:
        while len(item_s) < wanted and (len(item_s) < _MIN_ITEMS or time.perf_counter() < deadline_s):
            index = (len(item_s) * num_items // wanted) % num_items
            started_s = time.perf_counter()
            item = dataset[index]
            item_s.append(time.perf_counter() - started_s)
            items += [item] if len(items) < batch_size else []
    except Exception as error:
        note = f"the data set raised {type(error).__name__}: {error}"
        return [_fields("items", "item", note=note), _fields("collate", "batch", note=note)]
    return [_fields("items", "item", item_s), _collate_alone(collate, items, batch_size, seconds)]


def used_again(entry: Entry, seconds: float) -> list[Fields]:
    """A few items of the data set, each made twice: the second time is quicker where the data set keeps what it makes.

    Nothing where no worker makes the items, as they may all have been made here before.
    """
    if not entry.described.get("num_workers"):
        return []
    first: list[float] = []
    again: list[float] = []
    deadline_s = time.perf_counter() + seconds
    try:
        dataset, num_items = entry.dataset, len(entry.dataset)
        while len(first) < min(_MIN_ITEMS, num_items) and (not first or time.perf_counter() < deadline_s):
            index = len(first) * num_items // _MIN_ITEMS % num_items
            for into in (first, again):
                started_s = time.perf_counter()
                dataset[index]
                into.append(time.perf_counter() - started_s)
    except Exception:
        # `items_and_collate` says why items cannot be made here.
        return []
    return [_fields("item, first use", "item", first), _fields("item, used again", "item", again)]


def _collate_alone(collate: Any, items: list[Any], batch_size: int, seconds: float) -> Fields:
    if collate is None:
        return _fields("collate", "batch", note="the loader has no collate function")
    batch = [items[index % len(items)] for index in range(batch_size)]
    repeats: list[float] = []
    try:
        _repeat(lambda: collate(batch), seconds / 3, repeats)
    except Exception as error:
        return _fields("collate", "batch", note=f"the collate function raised {type(error).__name__}: {error}")
    return _fields("collate", "batch", repeats)


def copy_alone(torch: Any, batch: Any, device: Any) -> Fields:
    """A kept batch copied to the device, including the wait for it."""
    if device is None or device.type != "cuda":
        return _fields("copy", "batch", note="the network is not on a CUDA device")
    tensors = list(tensors_in(torch, batch))
    if not tensors:
        return _fields("copy", "batch", note="no tensor was found in a batch")
    repeats = []
    for _ in range(5):
        torch.cuda.synchronize(device)
        started_s = time.perf_counter()
        for tensor in tensors:
            tensor.to(device, non_blocking=True)
        torch.cuda.synchronize(device)
        repeats.append(time.perf_counter() - started_s)
    return _fields("copy", "batch", repeats)


def network_alone(
    torch: Any, network: Any, shape: tuple[int, ...], batch_size: int, dtype: Any, device: Any, seconds: float
) -> list[Fields]:
    """Forward and backward of the network, alternating between a sample alone and a sample in a batch.

    In evaluation mode and with gradients that are discarded, so the network does not change. Does not draw from the
    program's random numbers.

    Args:
        torch: the module.
        network: the one that learns, without a wrapper that sums its gradients.
        shape: of one sample, (1, c, x, y, z).
        batch_size: samples of the batch.
        dtype: of the images.
        device: the `torch.device` that holds the network.
        seconds: for all of it, approximately.
    """
    images = _random_images(torch, (batch_size, *shape[1:]), device, dtype)
    forms = {
        "network, one sample": ([images[i : i + 1] for i in range(batch_size)], nullcontext()),
        "network, a batch": ([images], nullcontext()),
    }
    return _alternate(torch, network, forms, ("sample", batch_size), device, seconds)


def network_in_half(torch: Any, network: Any, shape: tuple[int, ...], device: Any, seconds: float) -> list[Fields]:
    """Forward and backward of the network on a batch of this shape, alternating with and without autocast to 16 bits;
    otherwise as `network_alone`."""
    is_old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    half = torch.autocast(device.type, dtype=torch.float16 if is_old else torch.bfloat16)
    images = [_random_images(torch, shape, device, torch.float32)]
    forms = {"network, float32": (images, nullcontext()), "network, 16 bits": (images, half)}
    return _alternate(torch, network, forms, ("batch", 1), device, seconds, least=_MIN_ROUNDS)


def _random_images(torch: Any, shape: tuple[int, ...], device: Any, dtype: Any) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device=device, dtype=dtype)


def _alternate(
    torch: Any,
    network: Any,
    forms: dict[str, tuple[list[Any], Any]],
    unit: tuple[str, int],
    device: Any,
    seconds: float,
    *,
    least: int = 1,
) -> list[Fields]:
    """Learning in each of these forms, (inputs, context) by name. The unit is its name and how many a form has."""
    name_of_unit, count = unit
    last = list(forms)[-1]
    modes = [(module, module.training) for module in network.modules()]
    found: dict[str, list[float]] = {name: [] for name in forms}
    deadline_s = time.perf_counter() + seconds
    try:
        network.eval()
        while len(found[last]) < least or (len(found[last]) < _MAX_REPEATS and time.perf_counter() < deadline_s):
            for name, (inputs, context) in forms.items():
                with context:
                    found[name].append(_learning_s(torch, network, inputs, device) / count)
    except Exception as error:
        note = f"the network raised {type(error).__name__}: {error}"[:300]
        return [_fields(name, name_of_unit, note=note) for name in forms]
    finally:
        for module, mode in modes:
            module.training = mode
    # The first of each is slower than those that follow, if there was time for any.
    return [_fields(name, name_of_unit, found[name][1:] or found[name]) for name in forms]


def _learning_s(torch: Any, network: Any, inputs: list[Any], device: Any) -> float:
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    started_s = time.perf_counter()
    with torch.enable_grad():
        for image in inputs:
            outputs = [output for output in tensors_in(torch, network(image)) if output.requires_grad]
            torch.autograd.grad(sum(output.sum() for output in outputs), parameters, allow_unused=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_s


def storage_alone(paths: list[str], seconds: float) -> list[Fields]:
    """The files that the program read, only read again: from their storage, then from memory."""
    names = ("storage", "storage, page cache")
    found = [path for path in paths if os.path.isfile(path)]
    if not found:
        return [_fields(name, "byte", note="no file reads of the program were recorded") for name in names]
    if not hasattr(os, "posix_fadvise"):
        return [_fields(name, "byte", note="this system cannot drop files from memory on request") for name in names]
    cold: list[float] = []
    warm: list[float] = []
    num_bytes, deadline_s = 0, time.perf_counter() + seconds
    for path in found:
        try:
            cold_s, size = _read(path, drops=True, max_bytes=_MAX_STORAGE_BYTES - num_bytes, deadline_s=deadline_s)
            warm_s, _ = _read(path, drops=False, max_bytes=size)
        except OSError:
            continue
        cold.append(cold_s / max(1, size))
        warm.append(warm_s / max(1, size))
        num_bytes += size
        if time.perf_counter() > deadline_s or num_bytes >= _MAX_STORAGE_BYTES:
            break
    note = f"{len(cold)} {'file' if len(cold) == 1 else 'files'}, {num_bytes / 2**20:.1f} MiB"
    return [
        {"name": name, "unit": "byte", "seconds": per_byte, "note": note if per_byte else "no file could be read"}
        for name, per_byte in zip(names, (cold, warm))
    ]


def _read(path: str, *, drops: bool, max_bytes: int, deadline_s: float = math.inf) -> tuple[float, int]:
    """How long the file was read from its start, and how many bytes: it may hold all of a data set."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if drops:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        num_bytes, started_s = 0, time.perf_counter()
        while block := os.read(descriptor, _BLOCK_BYTES):
            num_bytes += len(block)
            if num_bytes >= max_bytes or time.perf_counter() > deadline_s:
                break
        return time.perf_counter() - started_s, num_bytes
    finally:
        os.close(descriptor)


def files_read(folder: str) -> list[str]:
    """Paths that the processes of the recording list as read, largest first, each once."""
    last: dict[str, list[str]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.jsonl"))):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    if '"event":"files"' in line:
                        last[path] = [str(name) for name in json.loads(line).get("largest", ())]
        except (OSError, ValueError):
            continue
    paths = {name for names in last.values() for name in names}
    return sorted(paths, key=lambda name: -_size(name))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
