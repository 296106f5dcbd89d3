"""A whole data set preprocessed: fingerprint, plans and the cases of each configuration, resumed where it stopped.

A folder of cases has its name when all of them are in it; until then it ends in ".unfinished", and the next run
continues there. nnU-Net finds a complete folder or none.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from voxelocity.core.requests.preprocess import PreprocessRequest
from voxelocity.data.decode import read_header
from voxelocity.data.pipeline import MemoryBudget
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.nnunet_plans import DATASET
from voxelocity.nnunet.preprocess.case import make_case, most_bytes
from voxelocity.nnunet.preprocess.fingerprint import FINGERPRINT, as_json, case_facts, fingerprint_of, new_samples
from voxelocity.nnunet.preprocess.plans import CasePlan, make_plans, read_plans
from voxelocity.nnunet.preprocess.raw import PREPROCESSED, RawDataset, find_raw, open_raw, place_of
from voxelocity.nnunet.preprocess.read import choose_reader, read_case, read_notes
from voxelocity.nnunet.preprocess.store import NOTES, need_blosc2, store_case
from voxelocity.nnunet.preprocess.verify import CaseDifference, verify_cases
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.host import available_memory_bytes, cpu_budget
from voxelocity_observe.core.progress_bar import WorkProgress
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text
from voxelocity_observe.core.whole_file import put_in_place

TRUTH = "gt_segmentations"
_MADE_FROM = "voxelocity_made_from.json"
_UNFINISHED, _REPLACED = ".unfinished", ".replaced"
_WORK_SHARE = 0.5
"""Of the memory that is free at the start, what the cases being made may take."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """A data set being preprocessed.

    Attributes:
        raw: the data set.
        folder: its own in nnU-Net's folder of preprocessed data sets.
        num_threads: cases made at once.
        budget: of memory, which they share.
        console: where progress is shown.
    """

    raw: RawDataset
    folder: Path
    num_threads: int
    budget: MemoryBudget
    console: Console

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def run(self, make: Callable[[int], _T], needs: Sequence[int], doing: str) -> list[_T]:
        """What `make` returns for each case, in their order; each waits until the bytes it needs are free.

        An error, or Ctrl-C, lets the cases being made end and drops the others.
        """
        is_over = threading.Event()

        def work(index: int) -> _T | None:
            with self.budget.taking(needs[index]):
                return None if is_over.is_set() else make(index)

        with ThreadPoolExecutor(self.num_threads, "voxelocity-nnunet") as pool, WorkProgress(self.console) as progress:
            futures: list[Future[_T | None]] = [pool.submit(work, index) for index in range(len(needs))]
            try:
                for number, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    share = number / len(futures)
                    progress.update(share, f"{doing}: {number} of {len(futures)}{progress.left_text(share)}")
            except BaseException:
                is_over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in futures]  # type: ignore[misc]


def open_work(request: PreprocessRequest, *, console: Console) -> Preprocessing:
    """The data set of a request; nothing is made yet.

    Raises:
        InputError: it cannot be used, or nnU-Net's variables are not set.
    """
    need_blosc2()
    raw = open_raw(find_raw(request.dataset))
    place = place_of(PREPROCESSED, os.environ, "it is where preprocessed cases go")
    return Preprocessing(
        raw=raw,
        folder=place / raw.name,
        num_threads=request.threads or cpu_budget(),
        budget=MemoryBudget(int(_WORK_SHARE * available_memory_bytes())),
        console=console,
    )


def preprocess(request: PreprocessRequest, *, console: Console) -> list[CaseDifference]:
    """Makes the preprocessed folder of a data set; says on the console what it does and how long it took.

    Returns:
        How verified cases differ from nnU-Net's; none if none were asked for.

    Raises:
        InputError: the data set, its plans or a case cannot be used, or the folder cannot be written.
    """
    work = open_work(request, console=console)
    raw = work.raw
    try:
        work.folder.mkdir(parents=True, exist_ok=True)
        work.say(
            f"{raw.name}: {count_text(len(raw.refs), 'case')}, {count_text(work.num_threads, 'thread')}; "
            f"preprocessing takes up to {bytes_text(work.budget.num_bytes)}"
        )
        take_fingerprint(work, again=request.clean)
        plans = settle_plans(work, request)
        make_cases(work, plans, overwrite=request.overwrite)
        _copy_truth(work)
    except OSError as error:
        raise OutputError(
            f"nnunet: {error.filename or work.folder} cannot be written: {error.strerror or error}; make space there, "
            "or correct its permissions, and run the command again, which continues where it stopped"
        ) from error
    if request.verify == 0:
        return []
    return verify_cases(raw, work.folder, f"{request.plans}.json", plans, num=request.verify)


def take_fingerprint(work: Preprocessing, *, again: bool) -> None:
    """Writes the fingerprint, unless it is there and not to be taken again."""
    path, raw = work.folder / FINGERPRINT, work.raw
    if path.is_file() and not again:
        work.say(f"fingerprint: {path} is there; --clean computes it again")
        return
    watch, reader = Stopwatch(), choose_reader(raw)
    needs = [_size_of(raw, index, []) for index in range(len(raw.refs))]
    samples = new_samples(raw)
    facts = work.run(lambda index: case_facts(raw, index, reader, samples), needs, "fingerprint")
    put_in_place(path, as_json(fingerprint_of(raw, facts, samples)))
    work.say(f"fingerprint in {duration_text(watch.elapsed_s)}: {path}")


def settle_plans(work: Preprocessing, request: PreprocessRequest) -> list[CasePlan]:
    """The configurations that cases are made for; nnU-Net's planner makes plans that are missing.

    Raises:
        InputError: they cannot be made or used.
    """
    path, raw = work.folder / f"{request.plans}.json", work.raw
    if not path.is_file() or request.clean:
        watch = Stopwatch()
        make_plans(
            raw, work.folder.parent, planner=request.planner, name=request.plans if request.is_given("plans") else ""
        )
        work.say(f"plans by nnU-Net's {request.planner} in {duration_text(watch.elapsed_s)}: {path}")
    if not path.is_file():
        made = ", ".join(sorted(other.stem for other in work.folder.glob("*Plans*.json")))
        raise InputError(f"nnunet: {path} was not made by {request.planner}, but {made}; name these plans with -p")
    copy = work.folder / DATASET
    if not copy.is_file():
        put_in_place(copy, (raw.folder / DATASET).read_bytes())
    kept = read_json(copy)
    for key in ("labels", "channel_names", "regions_class_order"):
        if kept.get(key) != raw.description.get(key):
            raise InputError(
                f"nnunet: {copy} has another {key!r} than {raw.folder / DATASET}, and nnU-Net trains by the first; "
                "plan again with --clean"
            )
    return read_plans(path, raw, request.configurations)


def make_cases(work: Preprocessing, plans: Sequence[CasePlan], *, overwrite: bool) -> None:
    """Writes the cases of some configurations that are not there yet, or all.

    Raises:
        InputError: a case cannot be used, or a folder is there that was made from something else.
    """
    raw, watch = work.raw, Stopwatch()
    # The second network of a cascade has the cases of 3d_fullres.
    by_folder = {plan.folder: plan for plan in reversed(plans)}
    keys = {folder: _key_of(raw, plan) for folder, plan in by_folder.items()}
    todo = [plan for plan in by_folder.values() if not _is_made(work, plan, keys[plan.folder], overwrite=overwrite)]
    if not todo:
        return
    unfinished = {plan.folder: _open_unfinished(work, plan.folder, keys[plan.folder]) for plan in todo}
    found = sum((folder / f"{ref.case_id}{NOTES}").is_file() for folder in unfinished.values() for ref in raw.refs)
    classes = raw.sampled_classes()

    def make(index: int) -> None:
        ref = raw.refs[index]
        missing = [plan for plan in todo if not (unfinished[plan.folder] / f"{ref.case_id}{NOTES}").is_file()]
        if missing:
            case = read_case(ref, missing[0].reader)
            for made in make_case(case, missing, classes, who=f"case '{ref.case_id}'"):
                store_case(made, unfinished[made.plan.folder], ref.case_id)

    names = ", ".join(plan.name for plan in todo)
    work.run(make, [_size_of(raw, index, todo) for index in range(len(raw.refs))], names)
    for name, folder in unfinished.items():
        _finish(folder, work.folder / name, keys[name])
    again = f", {count_text(found, 'case')} of them from a run before" if found else ""
    work.say(f"{names}: {count_text(len(raw.refs), 'case')} in {duration_text(watch.elapsed_s)}{again}")


def _size_of(raw: RawDataset, index: int, plans: Sequence[CasePlan]) -> int:
    """Most bytes that a case takes while it is made."""
    ref = raw.refs[index]
    headers = [read_header(path) for path in ref.images]
    x, y, z = headers[0].grid.shape
    spacing = read_notes(ref.images[0], plans[0].reader)["spacing"] if plans else [1.0, 1.0, 1.0]
    stored = sum(header.data_bytes for header in headers)
    return stored + most_bytes((z, y, x), sum(header.num_channels for header in headers), spacing, plans)


def _key_of(raw: RawDataset, plan: CasePlan) -> str:
    """The same for the same files, labels and configuration."""
    digest = hashlib.sha256(repr((replace(plan, name=""), raw.sampled_classes())).encode())
    for ref in raw.refs:
        for path in ref.files:
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _kept_keys(folder: Path) -> dict[str, str]:
    path = folder / _MADE_FROM
    return read_json(path) if path.is_file() else {}


def _is_made(work: Preprocessing, plan: CasePlan, key: str, *, overwrite: bool) -> bool:
    folder = work.folder / plan.folder
    if overwrite or not folder.exists():
        return False
    if _kept_keys(work.folder).get(plan.folder) != key:
        raise OutputError(
            f"nnunet: {folder} is there, made from other files or plans, or by nnU-Net; --overwrite replaces it when "
            "the new cases are complete"
        )
    work.say(f"{plan.name}: {folder} is there, made from the same files and plans; --overwrite repeats it")
    return True


def _open_unfinished(work: Preprocessing, name: str, key: str) -> Path:
    """The folder in which cases are collected, without those that were made from something else."""
    folder = work.folder / f"{name}{_UNFINISHED}"
    if _kept_keys(work.folder).get(folder.name) != key:
        shutil.rmtree(folder, ignore_errors=True)
        _keep_key(work.folder, folder.name, key)
    folder.mkdir(exist_ok=True)
    return folder


def _finish(unfinished: Path, folder: Path, key: str) -> None:
    """Gives a complete folder its name; the one that had it is removed."""
    replaced = folder.with_name(f"{folder.name}{_REPLACED}")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    _keep_key(folder.parent, folder.name, key)
    unfinished.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def _keep_key(folder: Path, name: str, key: str) -> None:
    put_in_place(folder / _MADE_FROM, json.dumps(_kept_keys(folder) | {name: key}, indent=1).encode())


def _copy_truth(work: Preprocessing) -> None:
    """The labels as they are, for nnU-Net's validation; those that are the same stay."""
    folder = work.folder / TRUTH
    folder.mkdir(exist_ok=True)
    for ref in work.raw.refs:
        assert ref.label is not None, "raw data sets have labels"
        target = folder / f"{ref.case_id}{work.raw.ending}"
        # An original that was restored is older than the copy of the one before it.
        if not target.is_file() or not filecmp.cmp(ref.label, target):
            partial = folder / f".{target.name}.part"
            shutil.copy2(ref.label, partial)
            partial.replace(target)
