"""What a run starts from: the models that the command names, opened, and the one of several that starts best.

Tried are a few steps of each, as its own plan makes them, on the same batches: the same cases, patches around the same
points, and the same augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from voxelocity.core.batch import PLAIN
from voxelocity.core.cases import Cases, Fold
from voxelocity.core.config import AUTO
from voxelocity.core.records import Choice
from voxelocity.core.requests.plan import PlanRequest, RunPlanOptions, RunPlanRequest
from voxelocity.core.requests.train import TrainRequest
from voxelocity.data.pipeline import Feed, PreparedCases, declare_channels
from voxelocity.planning import Plan, Planned, SharedKeys, model_spec, plan_cases
from voxelocity.planning.config import plan_with
from voxelocity.step import TrainingStep, build_loss, build_network
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.exposure import KEY, find_exposed
from voxelocity.training.resume import SavedRun
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.source_model import SCRATCH, SourceModel
from voxelocity.training.transfer import read_mapping
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import listed
from voxelocity_observe.core.request import documents

NUM_STEPS = 20
"""Steps that each of several models is tried for."""
# The loss is the mean of the last ones; a single batch says little.
_NUM_JUDGED, _NUM_CASES, _NUM_WARM = 5, 8, 5
# Of the few cases that they see; others are prepared again at each use.
_MOST_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a run starts from.

    Attributes:
        planned: its plan, which says so.
        source: the model; None for new weights.
        losses: of each model that was tried, by its name.
    """

    planned: Planned
    source: SourceModel | None
    losses: Mapping[str, float]

    def to_plain(self) -> dict[str, Any]:
        """What `run.yaml` keeps of it."""
        kept = {} if self.source is None else self.source.to_plain()
        return kept | ({"tried": dict(self.losses)} if self.losses else {})


def open_sources(
    request: TrainRequest, saved: SavedRun | None, *, overrides: Mapping[str, Any], fold: Fold, folder: RunFolder
) -> list[SourceModel | None]:
    """The models that the command names, or the one that a resumed run was started from; None for new weights.

    Args:
        request: of the command.
        saved: the run that is resumed.
        overrides: of the command.
        fold: of the run.
        folder: of the run.

    Raises:
        InputError: a resumed run was started from another one, or that one has other weights now.
        ConfigError: as `SourceModel.open`, or names are mapped otherwise than when the resumed run began.
    """
    named, out = request.start_from, folder.path
    if saved is None:
        return [
            None
            if _is_scratch(path)
            else SourceModel.open(path, overrides=overrides, out=out, fold=fold, mapping=request.start_map)
            for path in dict.fromkeys(named)
        ]
    check_source(named, saved, out=out)
    before = saved.source.get("folder")
    has_state = Checkpoints(folder.checkpoints, keep=1).latest_step() > 0
    if not isinstance(before, str) or (has_state and not named):
        return []
    kept = saved.source.get("mapping")
    mapping = [f"{new}={old}" for new, old in kept.items()] if isinstance(kept, Mapping) else []
    if request.start_map and read_mapping(request.start_map) != read_mapping(mapping):
        raise request.refusal(f"{out} was started with {listed(mapping, 20) or 'none'}; leave it out", "start_map")
    source = SourceModel.open(Path(before), overrides=overrides, out=out, fold=fold, mapping=mapping)
    if source.weights_sha256 != saved.source.get("weights_sha256"):
        raise InputError(
            f"train: {before} has other weights than when {out} was started from it; restore them, or start again with "
            "--overwrite"
        )
    return [source]


def check_source(named: Sequence[Path], saved: SavedRun, *, out: Path) -> None:
    """Refuses to continue a run that was not started from one of `named`; none stands for whatever it started from.

    Raises:
        InputError: it was started from something else.
    """
    before = saved.source.get("folder")
    if not named or (before is None and any(map(_is_scratch, named))):
        return
    if not isinstance(before, str) or not any(_means(path.resolve(), Path(before)) for path in named):
        raise InputError(
            f"train: {out} holds a run that was started from {before or 'new weights'}, not from "
            f"{', '.join(map(str, named))}; leave out --from, choose another folder with -o, or replace the run with "
            "--overwrite"
        )


def _means(named: Path, folder: Path) -> bool:
    """Whether a command that names a model may mean this folder: itself, a checkpoint in it, or all its folds."""
    return folder in (named, named.parent if named.is_file() else named) or (
        folder.parent == named and folder.name.startswith("fold_")
    )


@documents(RunPlanRequest)
def plan(cases: Cases, **options: Unpack[RunPlanOptions]) -> Planned:
    """The plan for these cases on this machine, each value with its reason, as `train` would make it.

    Reads headers and a few cases, and the weights of the model to start from; trains a few steps on random patches if
    that decides a choice (see `planning.make_plan`).

    Args:
        cases: what `voxelocity.open` returned.
        options: the fields of `RunPlanRequest`, and `time_budget` as a text such as "5m".

    Raises:
        ConfigError: an argument or an override is unknown or out of range, or the two contradict each other.
        DatasetError: the fold holds no case.
        InputError: the model cannot be a start, or has certainly learned from a case that would judge it.
        ScanError: a header, a label file or a sampled case cannot be used.
    """
    request = RunPlanRequest.of_call(options)
    with request.errors_as_written():
        return plan_run(cases, request)


def plan_run(cases: Cases, request: RunPlanRequest) -> Planned:
    """What `plan` does, for a request: with what a run would take over from the model, if it names one."""
    source, fold = None, 0 if request.fold == AUTO else request.fold
    for path in request.start_from:
        if not _is_scratch(path):
            source = SourceModel.open(path, overrides=request.overrides, fold=fold, mapping=request.start_map)
    return begin_from(source, plan_from(source, cases, request)).planned


def plan_from(
    source: SourceModel | None,
    cases: Cases,
    request: PlanRequest,
    *,
    saved: SavedRun | None = None,
    shared: SharedKeys | None = None,
) -> Planned:
    """The plan of a run that starts from a model, with the cases that this one may have seen.

    Args:
        source: the model; None for new weights, and for a resumed run that has weights of its own.
        cases: of the run.
        request: of the plan.
        saved: the run that is resumed.
        shared: keys of another run.

    Raises:
        InputError: the model has certainly learned from a case that would judge it.
    """
    exposed: Mapping[str, str] = {}
    before, start = None, None
    if source is not None:
        before = source.spec.division
        start = source.start(request.overrides, num_channels=declare_channels(cases).num_channels)
    if saved is not None:
        exposed, before = saved.exposed, saved.start_cases or before
    elif source is not None:
        exposed = find_exposed(source, cases, 0 if request.fold == AUTO else request.fold)
    saved_plan = None if saved is None else saved.plan
    planned = plan_cases(cases, request, saved_plan=saved_plan, shared=shared, start=start)
    return replace(planned, exposed=exposed, before=before)


def begin_from(source: SourceModel | None, planned: Planned, losses: Mapping[str, float] | None = None) -> Beginning:
    """The beginning of a run with this plan, which then says what is taken over, and why from this model."""
    losses = losses or {}
    if source is None and not losses:
        return Beginning(planned=planned, source=None, losses={})
    parts = []
    if losses:
        tried = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items())
        parts.append(f"lowest loss after {NUM_STEPS} steps on the same batches: {tried}")
    if source is not None:
        spec = model_spec(planned)
        parts.append(source.take_over(_new_network(planned.plan, planned), planned.plan.network, spec).text())
        parts.extend(source.notes)
    choice = Choice(key=KEY, value=_name(source), reason="; ".join(parts))
    return Beginning(planned=replace(planned, choices=(choice, *planned.choices)), source=source, losses=losses)


def choose_start(candidates: Sequence[tuple[SourceModel | None, Planned]]) -> Beginning:
    """The model of which a few steps lead to the lowest loss; the first of equal ones.

    Raises:
        ScanError: a case cannot be used.
        InputError: the loss of none of them is finite.
    """
    plans = [planned.plan for _, planned in candidates]
    batch_size = min(plan.data.batch_size for plan in plans)
    batch_size = max(1, batch_size // candidates[0][1].machine.num_ranks)
    losses = {_name(source): first_loss(source, planned, batch_size=batch_size) for source, planned in candidates}
    if not any(map(math.isfinite, losses.values())):
        raise InputError(
            f"train: the loss of none of {', '.join(losses)} is finite after {NUM_STEPS} steps; start from another "
            "model, or lower optimizer.learning_rate"
        )
    source, planned = min(candidates, key=lambda candidate: losses[_name(candidate[0])])
    return begin_from(source, planned, losses)


def first_loss(source: SourceModel | None, planned: Planned, *, batch_size: int) -> float:
    """The mean loss of the last of `NUM_STEPS` steps with this plan; infinite where it is not finite.

    Args:
        source: whose weights they begin with; None for new ones.
        planned: of the run.
        batch_size: of each step.
    """
    keys = {
        "data.batch_size": batch_size, "data.cache.tier": "memory", "data.cache.max_bytes": _MOST_BYTES,
        "data.cache.device_max_bytes": 0, "data.cache.num_parts": 1, "precision.compile": "none",
        "precision.step_graph": False,
    }  # fmt: skip
    plan, spec, cases = plan_with(planned.plan, keys, where="train"), model_spec(planned), planned.cases
    network, device = _new_network(plan, planned), planned.machine.torch_device
    if source is not None:
        source.take_over(network, plan.network, spec)
    training = TrainingStep(
        network,
        build_loss(plan.loss, regions=[*spec.regions.values()], ignored=spec.ignored),
        optimizer=plan.optimizer,
        precision=plan.precision,
        device=device,
        seed=plan.seed,
    )
    prepared = PreparedCases(
        _few(cases.split(planned.fold).training),
        label_values=cases.stored_values,
        class_names=cases.class_names,
        ignored=cases.ignored,
        prepare=plan.data.prepare,
        cache=plan.data.cache,
        warn=lambda text: None,
    )
    losses: list[torch.Tensor] = []
    with Feed(prepared, plan.data, seed=plan.seed, device=device, image_format=PLAIN) as feed:
        for step in range(NUM_STEPS):
            rate = plan.optimizer.learning_rate * min(1.0, (step + 1) / _NUM_WARM)
            losses.append(training(next(feed), rate))
    found = float(torch.stack(losses[-_NUM_JUDGED:]).float().mean())
    return found if math.isfinite(found) else math.inf


def _new_network(plan: Plan, planned: Planned) -> torch.nn.Module:
    spec = model_spec(planned)
    return build_network(plan.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=plan.seed)


def _few(refs: Sequence[Any]) -> list[Any]:
    """Some of the cases, evenly chosen, always the same."""
    number = min(len(refs), _NUM_CASES)
    return [refs[i * len(refs) // number] for i in range(number)]


def _is_scratch(path: Path) -> bool:
    return path == SCRATCH and not path.exists()


def _name(source: SourceModel | None) -> str:
    return "new weights" if source is None else str(source.folder)
