"""Trainings and caches on a Ray cluster: Ray starts the processes, Voxelocity does in them what it does everywhere.

All nodes need this package, and the data set and the output under the same paths. `ray` (Apache-2.0) is imported here
alone.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import Console

from voxelocity.core.requests.train import TrainOptions, TrainRequest
from voxelocity.data.pipeline import CachingFacts
from voxelocity.training import RunContext, run_training
from voxelocity.training.building import CacheJob, check_kept, summed, warn_on
from voxelocity.training.caching import CacheProgress
from voxelocity_observe.core.errors import ConfigError, VoxelocityError

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

_ANSWER_S = 5.0


def trainer(
    dataset: Path | str,
    out: Path | str,
    *,
    num_workers: int,
    use_gpu: bool = False,
    cpus_per_worker: float = 1.0,
    max_failures: int = 0,
    **options: Unpack[TrainOptions],
) -> TorchTrainer:
    """Ray Train's trainer whose workers are the ranks of one `voxelocity.train`; call its `fit()`.

    Its result has the run's "mean_dice" (None if it has none), "step" and "seconds" as `return_value`. Everything else
    is in `out`, as always. An unfinished run there is continued, so a worker that dies costs the steps since the last
    checkpoint.

    Args:
        dataset: what `voxelocity.open` takes, at the same path on all nodes.
        out: the run's folder, shared by all nodes; Ray's own files are in a folder next to it, OUT-ray.
        num_workers: ranks.
        use_gpu: whether each has a GPU of its own.
        cpus_per_worker: cores that Ray reserves for each.
        max_failures: how often Ray starts all workers again after one has failed.
        options: the fields of `TrainRequest`, but those that follow from what Ray does: resume, overwrite and device.

    Raises:
        ConfigError: Ray is missing, or an option cannot be used here.
    """
    _refuse_more_time(options, out, num_workers)
    _ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    unusable = {"overwrite", "resume", "device", *(known.name for known in fields(RunContext))} & options.keys()
    if unusable:
        raise ConfigError(
            f"ray: the option {min(unusable)} of voxelocity.train cannot be used here: workers continue an unfinished "
            "run by themselves, print nothing and take their device from use_gpu; leave it out"
        )
    folder = Path(out).absolute()
    request = TrainRequest.of_call(
        options, call="voxelocity.training.ray.trainer", out=folder, device="cuda" if use_gpu else "cpu"
    )
    return TorchTrainer(
        _train,
        train_loop_config={"dataset": str(Path(dataset).absolute()), "request": request},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker={"CPU": cpus_per_worker, "GPU": int(use_gpu)}
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.with_name(f"{folder.name}-ray")),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )


def _refuse_more_time(options: Mapping[str, Any], out: Path | str, num_workers: int) -> None:
    """Raises a ConfigError where the options give a run more time."""
    budget = str(options.get("time_budget", "")).strip()
    if budget.startswith("+"):
        raise ConfigError(
            f"ray: time_budget={budget}: workers that Ray starts again cannot know whether the run has got its time "
            f"already; give it more without Ray: voxelocity launch -n {num_workers} train --resume {out} --time-budget "
            f"{budget}"
        )


def _train(config: dict[str, Any]) -> dict[str, Any]:
    """What each worker does; its main figures."""
    from voxelocity.data.source import open_cases
    from voxelocity.training.run_folder import RunFolder

    request: TrainRequest = config["request"]
    folder = RunFolder(request.out)
    # Rank 0's answer counts. The number of ranks may be another one than before.
    request = replace(request, resume=folder.holds_run and not folder.is_finished())
    with request.errors_as_written():
        result = run_training(open_cases(config["dataset"]), request, RunContext())
    return {"mean_dice": result.mean_dice, "step": result.step, "seconds": result.seconds}


def build_cache(job: CacheJob, *, address: str, console: Console) -> CachingFacts:
    """Prepares the cases on all nodes of a cluster, each with one core, into a folder that all of them share.

    Entries are those of `voxelocity.training.building.build_cache`, bit for bit but for their times.

    Args:
        job: which.
        address: of the cluster, as `ray.init` takes it; "local" starts one on this machine.
        console: where progress is shown.

    Raises:
        ConfigError: Ray is missing, or no cluster answers.
        ScanError: a case cannot be used; those that are ready stay in the folder.
        CacheError: the folder of this machine does not hold all of them.
    """
    if (file := job.data.cache.kind.file) is not None:
        raise ConfigError(
            f"cache build: several machines cannot write one file, {file.name}; leave data.cache.tier out, or set it "
            "to disk"
        )
    ray, start_s = _ray(), time.perf_counter()
    with _cluster(ray, address), CacheProgress(console, "disk", len(job.refs)) as progress:
        prepare = ray.remote(num_cpus=1, max_retries=2)(_prepare)
        shared = ray.put(job)
        waiting = {prepare.remote(shared, index): index for index in range(len(job.refs))}
        parts: list[CachingFacts] = []
        shown: set[str] = set()
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            index = waiting.pop(done)
            try:
                part, warnings = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                # Ray's own text is a traceback of another machine.
                raise error.cause if isinstance(error.cause, VoxelocityError) else error from None
            parts.append(part)
            for text in sorted({*warnings} - shown):
                warn_on(console, text)
                shown.add(text)
            progress.advance(job.refs[index].case_id, part.num_bytes)
        facts = summed(parts, seconds=time.perf_counter() - start_s)
        progress.finish(facts)
    check_kept(job, hint="let all nodes share that folder, or free space there")
    return facts


def _prepare(job: CacheJob, index: int) -> tuple[CachingFacts, list[str]]:
    """What a node does for one case: also its warnings."""
    warnings: list[str] = []
    case = job.prepared(warnings.append).part([index])
    return case.fill(num_threads=1, on_case=lambda *_: None, should_stop=lambda: False), warnings


@contextmanager
def _cluster(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster, closed after the block unless the program had one before."""
    if ray.is_initialized():
        yield
        return
    try:
        if found := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address):
            # Ray itself tries for many minutes.
            socket.create_connection((found[1], int(found[2])), timeout=_ANSWER_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except OSError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"ray: found no cluster at {address} ({said}); start one with `ray start --head`, and give its address, "
            f"auto for that of this machine, or local"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("ray: the package ray is missing; install it with `pip install 'voxelocity[ray]'`") from None
    return ray
