"""Statistics of a data set: from the headers of all cases, and from the voxels of a few."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.cases import Cases
from voxelocity.core.region import Index3
from voxelocity.core.staging import StagingAhead
from voxelocity.core.volume import VolumeRef, VolumeSpec
from voxelocity.data.decode import ScanHeader, read_case, read_header, spec_of
from voxelocity.data.pipeline.modality import CT_AIR, CT_FAT
from voxelocity.data.prepare import OrientToRAS, Preparation, PrepareConfig, Trace, restore_labels
from voxelocity.infer import TrainedOn
from voxelocity_observe.core.errors import ScanError

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
class DatasetFingerprint:
    """What the rules know about a data set."""

    num_cases: int
    channels: tuple[str, ...]
    class_names: tuple[str, ...]
    """Of the values in label files; overlapping classes have their names in `regions`."""
    shape_voxel: Spread
    spacing_mm: Spread
    extent_mm: Spread
    stored_dtypes: dict[str, int]
    file_bytes: int
    num_voxels: int
    """Voxels of one channel, all cases together."""
    num_sampled: int
    intensity: tuple[Intensity, ...]
    class_shares: dict[str, float]
    """Share of the voxels of the sampled cases, background included."""
    crop_share: float
    """Median share of a sampled case's voxels inside the box of its non-zero voxels."""
    prepare_s: float
    """Seconds that decoding and orienting the sampled cases took in one thread, summed."""
    sampled_voxels: int
    num_unplaced: int = 0
    """Cases whose header gives no position in space, such as qform_code and sform_code 0."""
    num_placed_twice: int = 0
    """Cases whose sform and qform differ; the sform is used."""
    num_spaced_twice: int = 0
    """Cases whose header gives another spacing (pixdim) than its affine, which is used."""
    without_air: tuple[str, ...] = ()
    """Sampled cases that hold no values as low as fat and air have in a CT, if others hold air near -1000."""
    regions: tuple[str, ...] = ()
    """Names of overlapping classes, if these are what is learned."""

    @property
    def num_outputs(self) -> int:
        """Channels of the logits: one for each overlapping class, or for each class."""
        return len(self.regions) or len(self.class_names)

    def to_plain(self) -> dict[str, Any]:
        """As plain data for `run.yaml`."""
        plain: dict[str, Any] = _without_tuples(asdict(self))
        return plain

    def trained_on(self) -> TrainedOn:
        """What a model keeps of these statistics, to notice scans that differ from the training scans."""
        return TrainedOn(
            num_cases=self.num_cases,
            spacing_mm=_ranges(self.spacing_mm),
            extent_mm=_ranges(self.extent_mm),
            intensity=tuple((part.lowest, part.highest) for part in self.intensity),
            foreground_median=tuple(part.median for part in self.intensity),
        )

    @property
    def is_ct(self) -> bool:
        """Whether intensities mean the same in every case: a channel is called CT, or air lies near -1000 in all."""
        hounsfield = any(part.lowest <= CT_AIR and part.highest >= 300 for part in self.intensity)
        hounsfield = hounsfield and not self.without_air
        return len(self.channels) == 1 and (self.names_ct or hounsfield)

    @property
    def names_ct(self) -> bool:
        """Whether a channel is called CT."""
        return any("ct" in name.lower().split() for name in self.channels)


def take_fingerprint(
    cases: Cases, *, num_sampled: int, num_threads: int, skip_broken: bool = False
) -> DatasetFingerprint:
    """The statistics, from every header and from the voxels of `num_sampled` labeled cases spread over the case ids.

    With `skip_broken`, sampled cases whose voxels cannot be read are left out, as long as at least one can be read.

    Raises:
        ScanError: a header or a sampled case cannot be used.
    """
    images = [ref.images for ref in cases.refs]
    with StagingAhead(images, is_whole=False) as staging, ThreadPoolExecutor(max_workers=num_threads) as pool:
        headers = list(pool.map(lambda paths: _headers_of(paths, staging), images))
    for ref, case_headers in zip(cases.refs, headers, strict=True):
        _check_channels(ref, case_headers, cases)
    labeled = [ref for ref in cases.refs if ref.label is not None]
    chosen = [labeled[i] for i in np.linspace(0, len(labeled) - 1, min(num_sampled, len(labeled))).astype(int)]
    with ThreadPoolExecutor(max_workers=min(_SCANS_AT_ONCE, num_threads)) as pool:
        voxels = _read_samples(pool, chosen, cases, skip_broken=skip_broken)
    specs = [_oriented(case_headers) for case_headers in headers]
    firsts = [case_headers[0] for case_headers in headers]
    class_counts = np.sum([sample.class_counts for sample in voxels], axis=0)
    dtypes = [header.dtype for case_headers in headers for header in case_headers]
    found = DatasetFingerprint(
        num_cases=len(cases),
        channels=cases.channels,
        class_names=cases.class_names,
        shape_voxel=_spread([spec.grid.shape for spec in specs]),
        spacing_mm=_spread([spec.grid.spacing_mm for spec in specs]),
        extent_mm=_spread([np.multiply(spec.grid.shape, spec.grid.spacing_mm) for spec in specs]),
        stored_dtypes={name: dtypes.count(name) for name in sorted(set(dtypes))},
        file_bytes=sum(header.num_bytes for case_headers in headers for header in case_headers),
        num_voxels=sum(spec.grid.num_voxels for spec in specs),
        num_sampled=len(voxels),
        intensity=tuple(_intensity([sample.channels[i] for sample in voxels]) for i in range(cases.num_channels)),
        class_shares={
            name: float(n / class_counts.sum()) for name, n in zip(cases.class_names, class_counts, strict=True)
        },
        crop_share=float(np.median([sample.crop_share for sample in voxels])),
        prepare_s=sum(sample.seconds for sample in voxels),
        sampled_voxels=int(class_counts.sum()),
        num_unplaced=sum(header.placement.form == "none" for header in firsts),
        num_placed_twice=sum(header.is_placed_twice for header in firsts),
        num_spaced_twice=sum(header.is_spaced_twice for header in firsts),
        without_air=_without_air(voxels),
        regions=tuple(cases.regions),
    )
    if found.is_ct:
        _warn_of_far_values(found.intensity[0], voxels)
    return found


@dataclass(frozen=True, kw_only=True)
class _ChannelSample:
    """One channel of a case: some voxels of the foreground, and the extremes of all voxels."""

    foreground: npt.NDArray[np.float32]
    lowest: float
    highest: float


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Voxel statistics of one case."""

    case_id: str
    channels: tuple[_ChannelSample, ...]
    indices: npt.NDArray[np.int64]
    """Flat, of these voxels on the prepared grid."""
    shape: Index3
    """Of that grid."""
    trace: Trace
    class_counts: npt.NDArray[np.int64]
    crop_share: float
    seconds: float


_SAMPLED_VOXELS = 20_000
# Limits memory: each takes a whole scan and its intensities, however many cores there are.
_SCANS_AT_ONCE = 2
_SAMPLING = {"orientation": "RAS", "spacing_mm": "keep", "crop": "nonzero", "intensity": {"mode": "none"}}


def _read_samples(
    pool: ThreadPoolExecutor, refs: Sequence[VolumeRef], cases: Cases, *, skip_broken: bool
) -> list[_Sample]:
    preparation = Preparation(PrepareConfig.parse(_SAMPLING))
    samples = []
    with StagingAhead(ref.files for ref in refs) as staging:
        futures = [pool.submit(_read_sample, ref, preparation, cases, staging) for ref in refs]
        for future in futures:
            try:
                samples.append(future.result())
            except ScanError:
                # Preparing all cases meets the broken scan again and reports it.
                if not skip_broken or (future is futures[-1] and not samples):
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    return samples


def _read_sample(ref: VolumeRef, preparation: Preparation, cases: Cases, staging: StagingAhead) -> _Sample:
    staging.advance()
    start_s = time.perf_counter()
    scan = read_case(ref, label_values=cases.stored_values)
    volume = preparation(scan)
    seconds = time.perf_counter() - start_s
    assert scan.label is not None, "only labeled cases are sampled"
    assert volume.label is not None, "preparing keeps the label"
    foreground = scan.label[scan.label != 0]
    # Voxels without a known class count for none.
    class_counts = np.bincount(foreground, minlength=len(cases.stored_values))[: len(cases.labels)]
    class_counts[0] = scan.label.size - foreground.size
    inside = np.flatnonzero((volume.label > 0) & (volume.label < len(cases.labels)))
    if inside.size == 0:
        inside = np.arange(volume.label.size)
    # Every n-th voxel: enough for percentiles, and always the same ones.
    inside = inside[:: max(1, inside.size // _SAMPLED_VOXELS)]
    return _Sample(
        case_id=ref.case_id,
        channels=tuple(
            _ChannelSample(
                foreground=plane.reshape(-1)[inside].astype(np.float32),
                lowest=float(plane.min()),
                highest=float(plane.max()),
            )
            for plane in volume.intensities()
        ),
        indices=inside,
        shape=volume.grid.shape,
        trace=volume.trace,
        class_counts=class_counts,
        crop_share=volume.grid.num_voxels / scan.grid.num_voxels,
        seconds=seconds,
    )


def _intensity(samples: Sequence[_ChannelSample]) -> Intensity:
    """Intensities of one channel, all cases together."""
    values = np.concatenate([sample.foreground for sample in samples])
    low, median, high = np.percentile(values, [0.5, 50.0, 99.5])
    return Intensity(
        percentile_00_5=float(low),
        median=float(median),
        percentile_99_5=float(high),
        mean=float(values.mean(dtype=np.float64)),
        std=float(values.std(dtype=np.float64)),
        lowest=min(sample.lowest for sample in samples),
        highest=max(sample.highest for sample in samples),
    )


def _warn_of_far_values(found: Intensity, samples: Sequence[_Sample]) -> None:
    """Warns if a few values decide the deviation by which all cases are normalized."""
    low, high = found.percentile_00_5, found.percentile_99_5
    if not 0.0 < high - low < found.std:
        return
    sample = max(samples, key=lambda sample: np.abs(sample.channels[0].foreground - found.median).max())
    foreground = sample.channels[0].foreground
    number = int(np.abs(foreground - found.median).argmax())
    is_there = np.zeros(sample.shape, dtype=bool)
    is_there.reshape(-1)[sample.indices[number]] = True
    x, y, z = np.argwhere(restore_labels(is_there, sample.trace))[0].tolist()
    warnings.warn(
        f"plan: case '{sample.case_id}': the value {foreground[number]:g} at (x, y, z) = ({x}, {y}, {z}), far from all "
        "others, decides how all cases are normalized: the standard deviation of the foreground is "
        f"{found.std:.4g}, though 99 % of its values lie from {low:.4g} to {high:.4g}; correct it in the file, for "
        "example with numpy.clip, leave the case out, or set data.prepare.intensity.mean and .std",
        stacklevel=3,
    )


def _without_air(samples: Sequence[_Sample]) -> tuple[str, ...]:
    if len(samples[0].channels) > 1 or not any(sample.channels[0].lowest <= CT_AIR for sample in samples):
        return ()
    return tuple(sample.case_id for sample in samples if sample.channels[0].lowest >= CT_FAT)


def _headers_of(images: Sequence[Path], staging: StagingAhead) -> list[ScanHeader]:
    staging.advance()
    return [read_header(path) for path in images]


def _check_channels(ref: VolumeRef, headers: Sequence[ScanHeader], cases: Cases) -> None:
    found = spec_of(ref, headers).num_channels
    if found != cases.num_channels:
        words = "".join(f", with {header.channel_words}" for header in headers if header.channel_words)
        raise ScanError(
            f"decode: case '{ref.case_id}' holds {found} channels ({headers[0].path}{words}), the data set "
            f"{cases.num_channels} ({', '.join(cases.channels)}); add the missing files or leave the case out"
        )


def _oriented(headers: Sequence[ScanHeader]) -> VolumeSpec:
    first = headers[0]
    spec = VolumeSpec(num_channels=first.num_channels, grid=first.grid, dtype=first.dtype)
    return OrientToRAS().describe(spec).spec


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
