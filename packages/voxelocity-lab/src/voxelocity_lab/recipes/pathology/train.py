"""Training the classifier on all pieces but those of one fold."""

from __future__ import annotations

from pathlib import Path

import torch

from voxelocity.parallel import World
from voxelocity.step import TrainingStep
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.division import Division
from voxelocity_lab.recipes.fit import FitJob, fit
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece, identify
from voxelocity_lab.recipes.pathology.model import PatchNet, TrainedPatches
from voxelocity_lab.recipes.pathology.patches import PatchBatches
from voxelocity_lab.recipes.pathology.settings import PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks
from voxelocity_lab.recipes.run import open_run
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.host import cpu_budget

_RESERVE_S = 10.0


class PatchLoss:
    """Binary cross-entropy of all squares, as a mean over the batch of all ranks."""

    def __init__(self, batch_size: int, world: World) -> None:
        self._batch_size, self._world = batch_size, world

    def __call__(self, logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), label, reduction="sum")
        return self._world.total(each.reshape(1))[0] / (self._batch_size * label[0].numel())


def train_fold(
    call: Call, out: Path, pieces: tuple[Piece, ...], config: PathologyConfig, fold: int | None, *, spent_s: float
) -> TrainedPatches:
    """Trains without the pieces of a fold and writes the model into `out`; `spent_s` counts in the time budget.

    Raises:
        InputError: the data cannot be used, or the folder.
        InterruptedRunError: a stop was asked for; the state is saved.
    """
    watch = Stopwatch()
    chosen = [piece for piece in pieces if piece.fold != fold and piece.annotation is not None]
    if not chosen:
        raise DatasetError(
            f"pathology: {call.data} has no annotated pieces outside of fold {fold} (slides of one patient share a "
            "fold, unless slides.csv has a column fold); give some, or set folds=[]"
        )
    parts = identify([piece for piece in pieces if piece.annotation is not None])
    trained = tuple(parts.pop(piece.name) for piece in chosen)
    division = Division(trained=trained, held_out=tuple(parts.values()))
    record = {
        "recipe": "pathology", "data": str(call.data.absolute()), "seed": call.seed, "fold": fold,
        "config": config.to_plain(), "division": division.to_plain(),
    }  # fmt: skip
    with open_run(call, out, record, spent_s=spent_s + watch.elapsed_s) as run:
        batches = PatchBatches(OpenPieces(chosen), Blocks(config.cache_bytes), config, seed=call.seed)
        torch.manual_seed(call.seed)
        step = TrainingStep(
            PatchNet(config.network.width).to(call.device),
            PatchLoss(config.fit.batch_size, run.world),
            optimizer=config.fit.optimizer,
            precision=config.precision,
            device=call.device,
            seed=call.seed,
            warn=run.warn,
            world=run.world,
        )
        job = FitJob(
            step=step,
            make_batch=batches,
            config=config.fit,
            num_items=len(batches),
            num_threads=max(1, min(4, cpu_budget() - 1)),
            unit="patches",
            reserve_s=min(_RESERVE_S, 0.1 * config.fit.time_budget_s),
            spares_cores=True,
        )
        fitted = fit(run, job)
        averaged = step.averaged()
        assert isinstance(averaged, PatchNet)
        made = TrainedPatches(
            network=averaged.cpu().eval(),
            config=config,
            fold=fold,
            seed=call.seed,
            division=division,
            unlearned=fitted.unlearned,
        )
        if run.world.is_leader:
            made.save(out)
        fitted.log_end(run)
    return made
