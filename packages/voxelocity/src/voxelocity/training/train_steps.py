"""The steps of a run: their feed and their loop, and what is said if one of them breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxelocity.core.batch import PLAIN, Batch
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.step import TrainingStep
from voxelocity.training.ahead import image_format_of
from voxelocity.training.balancing import Balance
from voxelocity.training.broken_step import explained
from voxelocity.training.budget import Budget
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.loop import Loop, LoopState
from voxelocity.training.session import Session
from voxelocity.training.sharding import FeedOfLeader
from voxelocity.training.validation import Validation
from voxelocity_observe.core.errors import NonFiniteLossError


def train_steps(
    session: Session,
    cases: PreparedCases,
    training: TrainingStep,
    state: LoopState,
    budget: Budget,
    validation: Validation,
    checkpoints: Checkpoints,
) -> bool:
    """Trains; see `Loop.run`. The feed and its buffers are gone when it returns, before the final validation."""
    plan, place = session.plan, session.world.place
    training.set_training_mode()
    balance = Balance(session, training)

    def open_feed(rank: int, world_size: int, shares: Sequence[int], start_step: int = state.step) -> Feed:
        return Feed(
            cases,
            plan.data,
            seed=plan.seed,
            device=session.device,
            start_step=start_step,
            rank=rank,
            world_size=world_size,
            shares=shares,
            progress=budget.progress_ahead,
            image_format=image_format_of(session) if training.is_plain else PLAIN,
        )

    feed: Feed | FeedOfLeader
    if training.takes_shares:
        feed = open_feed(place.rank, place.size, balance.shares)
    else:
        own = open_feed(0, 1, ()) if session.world.is_leader else None
        feed = FeedOfLeader(own, cases, session, start_step=state.step)

    def make_batch(step: int) -> Batch:
        with open_feed(place.rank, place.size, balance.shares, step) as again:
            return next(again)

    try:
        with session.stage("train"), feed:
            return Loop(session, training, feed, balance, budget, validation, checkpoints, state).run()
    except NonFiniteLossError as error:
        like = _state_like(training)
        kept = session.world.run_on_leader(lambda: checkpoints.load_good(like=like))
        raise explained(error, training, make_batch, kept, world=session.world) from None


def load_latest(
    session: Session, training: TrainingStep, checkpoints: Checkpoints
) -> tuple[dict[str, Any], Path, list[Path]] | None:
    """See `Checkpoints.load_latest`; on every rank."""
    like = _state_like(training)
    return session.world.run_on_leader(lambda: checkpoints.load_latest(like=like))


def _state_like(training: TrainingStep) -> dict[str, Any]:
    """What a checkpoint of this training holds, by names and shapes. Called by all ranks."""
    return {"loop": vars(LoopState()), "training": training.state()}
