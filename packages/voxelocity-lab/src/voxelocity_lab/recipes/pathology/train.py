"""Training the classifier on all pieces but those of one fold."""

from __future__ import annotations

from pathlib import Path

import torch

from voxelocity.data.augment import AugmentConfig
from voxelocity.parallel import World
from voxelocity.step import TrainingStep
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.division import Division
from voxelocity_lab.recipes.fit import FitJob, fit
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece, identify
from voxelocity_lab.recipes.pathology.handmade import HandMade, fit_handmade
from voxelocity_lab.recipes.pathology.model import PatchNet, TrainedPatches
from voxelocity_lab.recipes.pathology.patches import PatchBatches
from voxelocity_lab.recipes.pathology.settings import PathologyConfig
from voxelocity_lab.recipes.pathology.slides import Blocks
from voxelocity_lab.recipes.run import open_run
from voxelocity_observe.core.clock import Stopwatch
from voxelocity_observe.core.errors import DatasetError
from voxelocity_observe.core.host import cpu_budget

_RESERVE_S = 5.0
# Patches that hand-made features are fitted to, and at most as many as two epochs have.
_MOST_FITTED = 2048


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
    chosen, division = _divide(call, pieces, fold)
    record = {
        "recipe": "pathology", "data": str(call.data.absolute()), "seed": call.seed, "fold": fold,
        "config": config.to_plain(), "division": division.to_plain(),
    }  # fmt: skip
    with open_run(call, out, record, spent_s=spent_s + watch.elapsed_s) as run:
        opened, blocks = OpenPieces(chosen), Blocks(config.cache_bytes)
        batches = PatchBatches(opened, blocks, config, seed=call.seed)
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
        is_leader = run.world.is_leader
        made = TrainedPatches(
            network=averaged.cpu().eval(),
            config=config,
            fold=fold,
            seed=call.seed,
            division=division,
            unlearned=fitted.unlearned,
            hand_made=_fit_handmade(opened, blocks, config, call.seed) if is_leader else None,
            micrometers=opened.micrometers(config.patch.level),
        )
        if is_leader:
            made.save(out)
        fitted.log_end(run)
    return made


def _divide(call: Call, pieces: tuple[Piece, ...], fold: int | None) -> tuple[list[Piece], Division]:
    """The annotated pieces outside of a fold, and what is kept of both sides."""
    chosen = [piece for piece in pieces if piece.fold != fold and piece.annotation is not None]
    if not chosen:
        raise DatasetError(
            f"pathology: {call.data} has no annotated pieces outside of fold {fold} (slides of one patient share a "
            "fold, unless slides.csv has a column fold); give some, or set folds=[]"
        )
    parts = identify([piece for piece in pieces if piece.annotation is not None])
    trained = tuple(parts.pop(piece.name) for piece in chosen)
    return chosen, Division(trained=trained, held_out=tuple(parts.values()))


def _fit_handmade(opened: OpenPieces, blocks: Blocks, config: PathologyConfig, seed: int) -> HandMade:
    """Hand-made features fitted to unchanged patches of the pieces that the network was trained on."""
    unchanged = config.model_copy(update={"augment": AugmentConfig(enabled=False)})
    batches = PatchBatches(opened, blocks, unchanged, seed=seed)
    num = min(_MOST_FITTED, 2 * len(batches))
    return fit_handmade(batches(step) for step in range(-(-num // config.fit.batch_size)))
