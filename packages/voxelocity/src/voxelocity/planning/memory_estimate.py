"""What a run takes in memory, part by part, before it runs: `voxelocity plan --memory`.

Tensors are counted (`memory_rule.count_tensors`), what libraries take is measured in a process of its own
(`training.library_memory`), everything else follows from the plan and from headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from voxelocity.core.batch import label_dtype
from voxelocity.core.cases import index_dtype
from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import effect_on, read_spec
from voxelocity.infer import ModelSpec
from voxelocity.infer.memory import ScanMemory, scan_memory
from voxelocity.planning.config import plan_with
from voxelocity.planning.make import Planned, model_spec, read_overrides
from voxelocity.planning.memory_rule import LIBRARIES_BYTES, WORKSPACE_BYTES, CountedStep, StepTensors, count_tensors
from voxelocity.step.fused_loss import MOST_REGIONS, has_kernels
from voxelocity.step.graph import LARGE_SHARE
from voxelocity.step.native_loss import has_loop
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import bytes_text
from voxelocity_observe.document.blocks import Document, Section, Table

PARTS = (
    "libraries", "weights", "gradients", "optimizer", "activations", "allocator", "window stitching", "cache", "feed"
)  # fmt: skip
ALLOCATOR_SHARE = {"float32": 0.35, "bfloat16": 0.8, "float16": 0.8}
"""What stays resident on a CPU beyond a step's tensors, relative to its activations, by the format it computes in: gaps
that glibc's heap keeps between tensors, and scratch memory of oneDNN's convolutions. Fitted to memory_estimate.json
(docs/decisions/48-allocator-from-a-table.md)."""
CLASSES = "classes"
"""What stands for the number of outputs among the keys of a plan that `with_keys` takes."""
Parts = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class LibraryMemory:
    """Main memory of a process before it holds any data.

    Attributes:
        preparing_bytes: with everything that a run imports, and the code that prepares cases.
        training_bytes: with the code of batches and steps too, and their threads.
    """

    preparing_bytes: int
    training_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What a run takes at the peak of preparing cases, of the training and of a validation.

    Attributes:
        host: bytes of main memory, by activity and by part (`PARTS`).
        device: of the memory of a GPU; empty for a CPU, which has main memory alone.
    """

    host: Mapping[str, Parts]
    device: Mapping[str, Parts]

    def peak_bytes(self, place: str, *activities: str) -> int:
        """The most that these activities take of "host" or "device", of all if none is named; 0 if nothing."""
        found: Mapping[str, Parts] = getattr(self, place)
        return max((sum(found[name].values()) for name in activities or found), default=0)


def estimate_memory(
    planned: Planned, libraries: LibraryMemory, *, keys: Mapping[str, Any] | None = None
) -> MemoryEstimate:
    """What a run of the plan takes in memory. Reads headers of the cases and computes nothing of its size.

    Args:
        planned: with the cases and the machine.
        libraries: what `measure_libraries` found for it.
        keys: dotted keys of the plan with other values; `CLASSES` among them is another number of outputs. The window
            follows the patch if it had its shape. Nothing else is planned again.

    Raises:
        ConfigError: a key or value is out of range, they do not fit together, or the network cannot be counted.
        ScanError: a header cannot be read.
    """
    planned, num_outputs = _changed(planned, dict(keys or {}))
    plan, spec = planned.plan, model_spec(planned)
    if num_outputs:
        names = {number: f"class {number}" for number in range(num_outputs)}
        spec = spec.model_copy(update={"labels": names, "regions": {}, "region_order": ()})
    split = planned.cases.split(planned.fold)
    held = list(split.validation) if split.held_out else []
    scans = _Scans.of([*split.training, *held], held or split.training, spec)
    channels = len(spec.channels)
    num_windows = min(plan.window.batch_size, scans.largest.num_windows)
    step = CountedStep(
        network=plan.network, loss=plan.loss, optimizer=plan.optimizer, precision=plan.precision,
        num_outputs=spec.num_outputs, regions=[*spec.regions.values()], ignored=spec.ignored,
        has_fused_loss=_has_fused_loss(planned, num_regions=len(spec.regions)),
    )  # fmt: skip
    tensors = count_tensors(
        step,
        batch_bcxyz=(-(-plan.data.batch_size // planned.machine.num_ranks), channels, *plan.data.patch.shape_voxel),
        windows_bcxyz=(num_windows, channels, *plan.window.shape_voxel),
        device=planned.machine.torch_device,
    )
    return (
        _of_gpu(planned, tensors, scans, libraries)
        if planned.machine.device == "cuda"
        else _of_cpu(planned, tensors, scans, libraries)
    )


def _has_fused_loss(planned: Planned, *, num_regions: int) -> bool:
    """Whether code of ours will compute the loss."""
    plan, machine = planned.plan, planned.machine
    if machine.device == "cpu":
        return plan.backend.fused_loss and has_loop(plan.loss, num_regions)
    return (
        machine.device == "cuda"
        and machine.has_triton
        and plan.backend.fused_loss
        and has_kernels(plan.loss)
        and num_regions <= MOST_REGIONS
    )


def _changed(planned: Planned, keys: dict[str, Any]) -> tuple[Planned, int]:
    """The plan with these keys, and the number of outputs among them or 0."""
    num_outputs = keys.pop(CLASSES, 0)
    if not isinstance(num_outputs, int) or isinstance(num_outputs, bool) or num_outputs < 0 or num_outputs == 1:
        raise ConfigError(f"plan: {CLASSES}={num_outputs!r} cannot be a number of outputs; give a whole number from 2")
    plan, keys = planned.plan, read_overrides(keys)
    shape = "data.patch.shape_voxel"
    if shape in keys and plan.window.shape_voxel == plan.data.patch.shape_voxel:
        keys = {"window.shape_voxel": keys[shape], "data.patch.growth": [], **keys}
    return replace(planned, plan=plan_with(plan, keys, where="plan: what if")), num_outputs


@dataclass(frozen=True, kw_only=True)
class _Scans:
    """The cases of a run, by their headers.

    Attributes:
        largest: what the largest case of the validation takes while it is predicted.
        most_preparing_bytes: while a case is prepared, at most.
        case_bytes: most bytes of each prepared case, of the training and of the validation.
        batch_label_bytes: of a voxel's label in a batch.
    """

    largest: ScanMemory
    most_preparing_bytes: int
    case_bytes: tuple[int, ...]
    batch_label_bytes: int

    @classmethod
    def of(cls, refs: Sequence[VolumeRef], validated: Iterable[VolumeRef], spec: ModelSpec) -> _Scans:
        preparation = spec.preparation()
        scans = {ref.case_id: read_spec(ref) for ref in refs}
        effects = {ref.case_id: effect_on(ref, scans[ref.case_id], preparation) for ref in refs}
        num_indices = len(spec.stored_values)
        label_bytes = np.dtype(index_dtype(num_indices)).itemsize
        sizes = {
            name: effect.spec.image_bytes + label_bytes * effect.spec.grid.num_voxels
            for name, effect in effects.items()
        }
        largest = max((ref.case_id for ref in validated), key=lambda name: sizes[name])
        return cls(
            largest=scan_memory(scans[largest], spec, preparation),
            most_preparing_bytes=max(
                scan.image_bytes + label_bytes * scan.grid.num_voxels + effects[name].scratch_bytes
                for name, scan in scans.items()
            ),
            case_bytes=tuple(sizes.values()),
            batch_label_bytes=label_dtype(num_indices).itemsize,
        )


def _of_cpu(planned: Planned, tensors: StepTensors, scans: _Scans, libraries: LibraryMemory) -> MemoryEstimate:
    shared = _state(tensors) | {
        "libraries": libraries.training_bytes,
        "cache": _cache_bytes(planned, scans),
        "feed": _feed_bytes(planned, scans),
    }
    largest = scans.largest
    share = ALLOCATOR_SHARE[planned.plan.precision.compute]
    stitching = largest.image_bytes + largest.scores_bytes + largest.windows_bytes + largest.labels_bytes
    host = {
        "preparing": _preparing(planned, scans, libraries),
        "training": {**shared, "activations": tensors.activations, "allocator": int(share * tensors.activations)},
        "validation": {
            **shared,
            "activations": tensors.windows,
            # Windows are computed in what steps have left.
            "allocator": int((1.0 + share) * max(tensors.activations, tensors.windows)) - tensors.windows,
            "window stitching": stitching,
        },
    }
    return MemoryEstimate(host=_in_order(host), device={})


def _of_gpu(planned: Planned, tensors: StepTensors, scans: _Scans, libraries: LibraryMemory) -> MemoryEstimate:
    largest, data = scans.largest, planned.plan.data
    host = {
        "libraries": libraries.training_bytes,
        "cache": _cache_bytes(planned, scans),
        "feed": _feed_bytes(planned, scans),
    }
    # Each case that is there takes what it takes prepared; the rest of the limit stays free.
    resident = min(data.cache.device_max_bytes, sum(scans.case_bytes))
    device = _state(tensors) | {
        "libraries": LIBRARIES_BYTES + WORKSPACE_BYTES,
        "cache": resident,
        # With the fixed inputs of a step that runs as a CUDA graph.
        "feed": (_num_batches(planned) + 1) * _batch_bytes(planned, scans),
    }
    # The network takes the image as float32; the prepared one stays in main memory.
    image_bytes = largest.image_bytes // 2
    # A recorded step keeps its tensors, unless they are so much that a validation might not find enough.
    is_recorded = planned.plan.precision.step_graph and planned.machine.num_ranks == 1
    is_kept = is_recorded and tensors.activations <= LARGE_SHARE * planned.machine.device_memory_bytes
    recorded = tensors.activations if is_kept else 0
    windows = largest.scores_bytes + largest.windows_bytes + image_bytes
    return MemoryEstimate(
        host=_in_order({
            "preparing": _preparing(planned, scans, libraries),
            "training": host,
            "validation": {**host, "window stitching": image_bytes + largest.labels_bytes},
        }),
        device=_in_order({
            "training": {**device, "activations": tensors.activations},
            "validation": {**device, "activations": tensors.windows + recorded, "window stitching": windows},
        }),
    )  # fmt: skip


def _state(tensors: StepTensors) -> dict[str, int]:
    """Gradients stay until the next step begins, in a validation too."""
    return {"weights": tensors.weights, "gradients": tensors.gradients, "optimizer": tensors.optimizer}


def _preparing(planned: Planned, scans: _Scans, libraries: LibraryMemory) -> dict[str, int]:
    """Cases are prepared before the training, as many at once as there are cores; without a cache, during it."""
    at_once = min(planned.machine.num_cpus, len(scans.case_bytes)) if planned.plan.data.cache.holds_every_case else 0
    return {"libraries": libraries.preparing_bytes, "cache": at_once * scans.most_preparing_bytes}


def _cache_bytes(planned: Planned, scans: _Scans) -> int:
    """Prepared cases in memory, or in files that are mapped, which the system may drop; none if they are decoded."""
    cache = planned.plan.data.cache
    if cache.tier == "rotating":
        return sum(sorted(scans.case_bytes)[-cache.num_cases :])
    return sum(scans.case_bytes) if cache.kind.is_in_memory or cache.format in cache.kind.mapped else 0


def _num_batches(planned: Planned) -> int:
    """Batches that exist at once: ahead or being made, and the one in use."""
    return planned.plan.data.feed.num_batches_ahead + 1


def _batch_bytes(planned: Planned, scans: _Scans) -> int:
    """Of one rank: images as float32, and labels."""
    data = planned.plan.data
    share = -(-data.batch_size // planned.machine.num_ranks)
    return share * prod(data.patch.shape_voxel) * (4 * planned.cases.num_channels + scans.batch_label_bytes)


def _feed_bytes(planned: Planned, scans: _Scans) -> int:
    """Batches, and cases that are prepared in the feed because nothing keeps them."""
    data = planned.plan.data
    preparing = data.feed.num_threads * scans.most_preparing_bytes if data.cache.tier == "none" else 0
    return _num_batches(planned) * _batch_bytes(planned, scans) + preparing


def _in_order(found: Mapping[str, Parts]) -> dict[str, dict[str, int]]:
    return {name: {part: parts[part] for part in PARTS if parts.get(part)} for name, parts in found.items()}


def memory_document(estimates: Mapping[str, MemoryEstimate], *, free: Mapping[str, int]) -> Document:
    """The estimates by name, the first one of the plan itself, for a terminal and as JSON.

    Args:
        estimates: by what was changed.
        free: bytes of "host" and "device" that are free.
    """
    first = next(iter(estimates.values()))
    sections, verdicts = list[Section](), list[str]()
    for place, words, title in (
        ("host", "main memory", "Main memory"), ("device", "the GPU's memory", "Memory of the GPU")
    ):  # fmt: skip
        if not first.peak_bytes(place):
            continue
        tables = [_table(name, getattr(estimate, place)) for name, estimate in estimates.items()]
        sections.append(Section(title=title, blocks=tables))
        peak = first.peak_bytes(place)
        verdicts.append(f"{bytes_text(peak)} of {words}, of which {bytes_text(free[place])} are free")
    return Document(
        kind="memory estimate",
        title="Memory",
        verdict=f"The run is expected to take at most {' and '.join(verdicts)}.",
        sections=sections,
        values={
            "free_bytes": dict(free),
            "estimates": {
                name: {"host": estimate.host, "device": estimate.device} | {
                    f"{place}_peak_bytes": estimate.peak_bytes(place) for place in ("host", "device")
                }
                for name, estimate in estimates.items()
            },
        },
    )  # fmt: skip


def _table(name: str, found: Mapping[str, Parts]) -> Table:
    parts = [part for part in PARTS if any(part in sizes for sizes in found.values())]
    rows = [(part, *(bytes_text(sizes[part]) if part in sizes else "" for sizes in found.values())) for part in parts]
    total = ("sum", *(bytes_text(sum(sizes.values())) for sizes in found.values()))
    return Table(caption=name, heads=("Part", *found), rows=[*rows, total], has_total=True)
