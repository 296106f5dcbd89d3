"""Statistics of a data set: from the headers of all cases, and from the voxels of a few."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.cases import Cases
from voxelocity.core.errors import ScanError
from voxelocity.core.volume import Volume, VolumeRef, VolumeSpec
from voxelocity.data.decode import ScanHeader, read_case, read_header
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity.infer import TrainedOn

Triple = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Smallest, median and largest along each axis (x, y, z) in RAS order."""

    low: Triple
    median: Triple
    high: Triple


@dataclass(frozen=True, kw_only=True)
class Intensity:
    """Intensities of one channel within the foreground of the sampled cases, all cases together."""

    percentile_00_5: float
    median: float
    percentile_99_5: float
    mean: float
    std: float
    lowest: float
    """Of all voxels, foreground or not."""
    highest: float


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What the rules know of a data set."""

    num_cases: int
    channels: tuple[str, ...]
    class_names: tuple[str, ...]
    shape_voxel: Spread
    spacing_mm: Spread
    extent_mm: Spread
    stored_dtypes: dict[str, int]
    file_bytes: int
    num_voxels: int
    """Of one channel, all cases together."""
    num_sampled: int
    intensity: tuple[Intensity, ...]
    class_shares: dict[str, float]
    """Share of the voxels of the sampled cases, background included."""
    crop_share: float
    """Median share of a sampled case's voxels inside the box of its non-zero voxels."""
    prepare_s: float
    """Seconds that decoding and orienting took, summed over the sampled cases, one thread."""
    sampled_voxels: int
    num_unplaced: int = 0
    """Cases whose header does not say how they are placed: qform_code and sform_code are 0."""
    num_placed_twice: int = 0
    """Cases whose sform and qform differ; the sform is used."""

    def to_plain(self) -> dict[str, Any]:
        """As plain data for `run.yaml`."""
        plain: dict[str, Any] = _without_tuples(asdict(self))
        return plain

    def trained_on(self) -> TrainedOn:
        """What a model keeps of it, to notice scans that are unlike these."""
        return TrainedOn(
            num_cases=self.num_cases,
            spacing_mm=_ranges(self.spacing_mm),
            extent_mm=_ranges(self.extent_mm),
            intensity=tuple((part.lowest, part.highest) for part in self.intensity),
            foreground_median=tuple(part.median for part in self.intensity),
        )

    @property
    def is_ct(self) -> bool:
        """Whether intensities mean the same in every case: a channel is called CT, or air lies near -1000."""
        hounsfield = any(part.lowest <= -900 and part.highest >= 300 for part in self.intensity)
        return len(self.channels) == 1 and (self.names_ct or hounsfield)

    @property
    def names_ct(self) -> bool:
        """Whether a channel is called CT."""
        return any("ct" in name.lower().split() for name in self.channels)


def take_fingerprint(cases: Cases, *, num_sampled: int, num_threads: int, skip_broken: bool = False) -> Fingerprint:
    """Reads every header and the voxels of `num_sampled` labelled cases, evenly spread over the case ids.

    With `skip_broken` sampled cases whose voxels cannot be read count for nothing, as long as one can be.

    Raises:
        ScanError: a header or a sampled case cannot be used.
    """
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        headers = list(pool.map(_headers_of, cases.refs))
    for ref, case_headers in zip(cases.refs, headers, strict=True):
        _check_channels(ref, case_headers, cases)
    specs = [_oriented(case_headers) for case_headers in headers]
    labelled = [ref for ref in cases.refs if ref.label is not None]
    firsts = [case_headers[0] for case_headers in headers]
    chosen = [labelled[i] for i in np.linspace(0, len(labelled) - 1, min(num_sampled, len(labelled))).astype(int)]
    voxels = _Sample(cases.label_values, num_channels=cases.num_channels)
    num_read = 0
    for ref in chosen:
        try:
            voxels.add(ref)
            num_read += 1
        except ScanError:
            # Those who prepare all cases find it again and say so.
            if not skip_broken or (ref is chosen[-1] and num_read == 0):
                raise
    dtypes = [header.dtype for case_headers in headers for header in case_headers]
    return Fingerprint(
        num_cases=len(cases),
        channels=cases.channels,
        class_names=cases.class_names,
        shape_voxel=_spread([spec.grid.shape for spec in specs]),
        spacing_mm=_spread([spec.grid.spacing_mm for spec in specs]),
        extent_mm=_spread([np.multiply(spec.grid.shape, spec.grid.spacing_mm) for spec in specs]),
        stored_dtypes={name: dtypes.count(name) for name in sorted(set(dtypes))},
        file_bytes=sum(header.num_bytes for case_headers in headers for header in case_headers),
        num_voxels=sum(spec.grid.num_voxels for spec in specs),
        num_sampled=num_read,
        intensity=voxels.intensity(),
        class_shares=voxels.class_shares(cases.class_names),
        crop_share=float(np.median(voxels.crop_shares)),
        prepare_s=voxels.seconds,
        sampled_voxels=int(voxels.class_counts.sum()),
        num_unplaced=sum(header.placement.form == "none" for header in firsts),
        num_placed_twice=sum(header.is_placed_twice for header in firsts),
    )


class _Sample:
    """Voxel statistics, added up case by case."""

    _PER_CASE = 20_000

    def __init__(self, label_values: Sequence[int], *, num_channels: int) -> None:
        self._label_values = label_values
        self._foreground: list[list[npt.NDArray[np.float32]]] = [[] for _ in range(num_channels)]
        self._extremes = np.tile([[np.inf], [-np.inf]], (1, num_channels))
        self.class_counts = np.zeros(len(label_values), dtype=np.int64)
        self.crop_shares: list[float] = []
        self.seconds = 0.0
        config = PrepareConfig.parse(
            {"orientation": "RAS", "spacing_mm": "keep", "crop": "nonzero", "intensity": {"mode": "none"}}
        )
        self._preparation = Preparation(config)

    def add(self, ref: VolumeRef) -> None:
        start = time.perf_counter()
        scan = read_case(ref, label_values=self._label_values)
        volume = self._preparation(scan)
        self.seconds += time.perf_counter() - start
        self.crop_shares.append(volume.grid.num_voxels / scan.grid.num_voxels)
        assert scan.label is not None
        self.class_counts += np.bincount(scan.label.ravel(order="K"), minlength=len(self._label_values))
        self._add_intensities(volume)

    def _add_intensities(self, volume: Volume) -> None:
        assert volume.label is not None
        inside = np.flatnonzero(volume.label)
        if inside.size == 0:
            inside = np.arange(volume.label.size)
        # Every n-th voxel: enough for percentiles, and the same ones on every day.
        inside = inside[:: max(1, inside.size // self._PER_CASE)]
        for channel, plane in enumerate(volume.intensities()):
            self._foreground[channel].append(plane.reshape(-1)[inside].astype(np.float32))
            self._extremes[0, channel] = min(self._extremes[0, channel], plane.min())
            self._extremes[1, channel] = max(self._extremes[1, channel], plane.max())

    def intensity(self) -> tuple[Intensity, ...]:
        parts = []
        for channel, pieces in enumerate(self._foreground):
            values = np.concatenate(pieces)
            low, median, high = np.percentile(values, [0.5, 50.0, 99.5])
            parts.append(
                Intensity(
                    percentile_00_5=float(low),
                    median=float(median),
                    percentile_99_5=float(high),
                    mean=float(values.mean()),
                    std=float(values.std()),
                    lowest=float(self._extremes[0, channel]),
                    highest=float(self._extremes[1, channel]),
                )
            )
        return tuple(parts)

    def class_shares(self, names: Sequence[str]) -> dict[str, float]:
        shares = self.class_counts / max(1, int(self.class_counts.sum()))
        return {name: float(share) for name, share in zip(names, shares, strict=True)}


_ORIENT = {"orientation": "RAS", "spacing_mm": "keep", "crop": "none", "intensity": {"mode": "none"}}


def _headers_of(ref: VolumeRef) -> list[ScanHeader]:
    return [read_header(path) for path in ref.images]


def _check_channels(ref: VolumeRef, headers: Sequence[ScanHeader], cases: Cases) -> None:
    found = sum(header.num_channels for header in headers)
    if found != cases.num_channels:
        raise ScanError(
            f"decode: case '{ref.case_id}' holds {found} channels ({headers[0].path}), the data set "
            f"{cases.num_channels} ({', '.join(cases.channels)}); add the missing files or leave the case out"
        )


def _oriented(headers: Sequence[ScanHeader]) -> VolumeSpec:
    first = headers[0]
    spec = VolumeSpec(num_channels=first.num_channels, grid=first.grid, dtype=first.dtype)
    return Preparation(PrepareConfig.parse(_ORIENT)).describe(spec).spec


def _spread(rows: Sequence[Any]) -> Spread:
    values = np.array(rows, dtype=np.float64)
    low, median, high = values.min(0), np.median(values, axis=0), values.max(0)
    return Spread(low=_triple(low), median=_triple(median), high=_triple(high))


def _ranges(spread: Spread) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    x, y, z = zip(spread.low, spread.high, strict=True)
    return x, y, z


def _triple(values: npt.NDArray[np.float64]) -> Triple:
    x, y, z = (float(v) for v in values)
    return (x, y, z)


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tuples(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tuples(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value
