"""Predictions on their way to the disk, one behind the network, each with its row in the table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from voxelocity.core.class_merging import MERGED, groups_of
from voxelocity.core.learning import UNLEARNED
from voxelocity.core.records import PREVIEWS_FOLDER, PROBABILITIES_FOLDER, STATISTICS_FOLDER
from voxelocity.core.requests.predict import PredictRequest
from voxelocity.infer.components import keep_largest, voxel_counts
from voxelocity.infer.job import PredictionJob
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.pending import STAGES, OnFailure, Prediction
from voxelocity.infer.pictured import Pictured
from voxelocity.infer.statistics import STATISTICS_FILE, class_statistics
from voxelocity.infer.table import PredictionTable
from voxelocity.report import cut_slices, preview_png
from voxelocity_observe.core.errors import OutputError, ScanError
from voxelocity_observe.core.host import peak_device_bytes, peak_host_bytes
from voxelocity_observe.core.whole_file import write_whole

_MOST_FIGURES = 4


@dataclass(frozen=True, kw_only=True)
class PredictedScan:
    """A prediction that was written.

    Attributes:
        case_id: of the scan.
        path: the file.
        seconds: since the prediction before it was written, or since the start.
        stage_seconds: of each stage, as in `Prediction`, and "write". Stages of different scans overlap.
        peak_bytes: the most memory that this process has taken so far, of the GPUs if it uses any.
        device: where the network ran.
        runtime: which ran it, as in `infer.runtimes.table`.
        division: what the scan was in the training of the model, as `CaseDivision.side`.
        num_voxels: voxels of each class except the first, by name.
        voxel_ml: volume of one voxel.
    """

    case_id: str
    path: Path
    seconds: float
    stage_seconds: Mapping[str, float]
    peak_bytes: int
    device: str
    runtime: str
    division: str = ""
    num_voxels: Mapping[str, int]
    voxel_ml: float


class PredictionWriter:
    """Writes predictions in a separate thread, at most one behind the current prediction.

    Args:
        job: what is predicted.
        kept_largest: classes, or several as one, of which only the largest component is kept.
        request: what to write besides predictions.
        on_case: called with each prediction that was written, in the calling thread.
        on_failure: likewise, with the case and the error of each that the format of the predictions cannot hold.

    Attributes:
        scans: what was written.
        pictured: slices of a few scans.
    """

    def __init__(
        self,
        job: PredictionJob,
        kept_largest: Sequence[int | Sequence[int]],
        request: PredictRequest,
        on_case: Callable[[PredictedScan], None],
        on_failure: OnFailure,
    ) -> None:
        self.scans: list[PredictedScan] = []
        self.pictured = Pictured(_MOST_FIGURES)
        self._job, self._kept_largest = job, kept_largest
        self._on_case, self._on_failure = on_case, on_failure
        self._request = request
        self._marks = _marks(job.model)
        columns = _columns(job.model.spec, self._marks)
        self._table = PredictionTable(job.out, columns=columns)
        self._since = time.perf_counter()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: tuple[str, Future[PredictedScan]] | None = None

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._table.finish()

    def write(self, prediction: Prediction) -> None:
        """Begins to write this prediction, once the one before it is written."""
        self.finish()
        self._writing = prediction.scan.case_id, self._thread.submit(self._write, prediction)

    def finish(self) -> None:
        """Waits for the prediction that is being written.

        Raises:
            OutputError: a file cannot be written; says what is there and how to continue.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        case_id, written = writing
        try:
            scan = written.result()
        # Of its series, which may lack what a DICOM SEG must repeat; what a disk refuses ends the command.
        except ScanError as error:
            self._on_failure(case_id, error)
            return
        except OutputError as error:
            raise OutputError(f"{error}; {self._request.left_to_do(len(self.scans))}") from None
        self.scans.append(scan)
        self._on_case(scan)

    def _write(self, prediction: Prediction) -> PredictedScan:
        scan, spec, output = prediction.scan, self._job.model.spec, self._job.output
        out, names, header = self._job.out, spec.class_names, self._job.headers[scan.case_id][0]
        path = out / output.file_name(scan.case_id)
        start_s = time.perf_counter()
        classes = keep_largest(prediction.classes, self._kept_largest)
        if prediction.probabilities is not None:
            prediction.probabilities.write(out / PROBABILITIES_FOLDER / f"{scan.case_id}.nii.gz", header)
        counts = voxel_counts(classes, len(names)).tolist()
        num_voxels = dict(zip(names[1:], counts[1:], strict=True))
        voxel_ml = scan.grid.voxel_ml
        volumes_ml = {name: num * voxel_ml for name, num in num_voxels.items()}
        slices = cache(lambda: cut_slices(scan, classes))
        self.pictured.add(scan.case_id, volumes_ml, slices)
        if self._request.previews:
            write_whole(out / PREVIEWS_FOLDER / f"{scan.case_id}.png", preview_png(slices()))
        also = {STATISTICS_FILE: class_statistics(scan, classes, spec)} if self._request.statistics else {}
        if not output.masks:
            for content in also.values():
                write_whole(out / STATISTICS_FOLDER / f"{scan.case_id}.json", content)
        # Last, because `--resume` takes it for a sign that all was written.
        output.write(path, classes, header, spec, also=also)
        now_s = time.perf_counter()
        seconds, self._since = now_s - self._since, now_s
        written = PredictedScan(
            case_id=scan.case_id,
            path=path,
            seconds=seconds,
            stage_seconds={**prediction.seconds, "write": now_s - start_s},
            peak_bytes=peak_device_bytes() or peak_host_bytes(),
            device=str(prediction.device),
            runtime=prediction.runtime,
            division=self._job.sides.get(scan.case_id, ""),
            num_voxels=num_voxels,
            voxel_ml=voxel_ml,
        )
        # At once: if the program ends before the next scan, `--resume` leaves this one out, and nothing adds its row.
        self._table.add(scan.case_id, {**_row(written), **self._marks})
        return written


def _marks(model: Model) -> dict[str, str]:
    """What the rows have in addition for `evaluate`: why a headline is missing, and which classes the model merged."""
    spec = model.spec
    marks = {UNLEARNED: model.unlearned} if model.unlearned else {}
    return marks | ({MERGED: json.dumps(groups_of(spec.labels, spec.merged))} if spec.merged else {})


def _columns(spec: PredictionSpec, marks: Mapping[str, str]) -> list[str]:
    stages = [f"{stage}_s" for stage in (*STAGES, "write")]
    volumes = [f"{name}_ml" for name in spec.class_names[1:]]
    return ["file", "seconds", *stages, "peak_bytes", "device", "runtime", "division", *marks, *volumes]


def _row(scan: PredictedScan) -> dict[str, object]:
    return {
        "file": scan.path.name,
        "seconds": round(scan.seconds, 4),
        **{f"{stage}_s": round(seconds, 4) for stage, seconds in scan.stage_seconds.items()},
        "peak_bytes": scan.peak_bytes,
        "device": scan.device,
        "runtime": scan.runtime,
        "division": scan.division,
        **{f"{name}_ml": round(num * scan.voxel_ml, 4) for name, num in scan.num_voxels.items()},
    }
