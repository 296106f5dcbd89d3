"""How a run distributes its network over the ranks, and which rank makes the batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch

from voxelocity.core.batch import Batch, label_dtype
from voxelocity.data.pipeline import Feed, PreparedCases, RankDraws
from voxelocity.parallel import Mode, Sharding, shard, shares_in_proportion
from voxelocity.planning import Plan
from voxelocity.planning.memory_rule import device_bytes
from voxelocity.planning.step_forecast import PatchPass
from voxelocity.step import OPTIMIZERS, autocast
from voxelocity.training.session import Session
from voxelocity_observe.core.errors import ConfigError, InputError, RankLostError

# Of a parameter in an optimizer's state or a running average.
_FLOAT32_BYTES = 4.0


def shard_network(session: Session, network: torch.nn.Module) -> Sharding:
    """The network on the devices of the ranks, as `parallel.mode` says. Called by all ranks.

    Raises:
        InputError: a step does not fit the devices, or the network cannot be cut.
        ConfigError: other settings do not go with the mode.
    """
    plan, world = session.plan, session.world
    mode, cuts, pieces = _choose_mode(session, network)
    world.run_on_leader(lambda: _check_mode(mode, plan))
    if mode in ("fsdp", "pipeline", "checkpointing"):
        if plan.precision.compile != "none":
            session.warn(f"train: precision.compile={plan.precision.compile} is not used, because the network is split")
        _warn_of_balance(session, mode)
    return world.run_on_all(
        lambda: shard(
            network,
            world,
            mode,
            device=session.device,
            cuts=cuts,
            num_microbatches=pieces,
            bucket_mb=plan.parallel.bucket_mb,
            memory_format=plan.precision.memory_format,
        )
    )


def _warn_of_balance(session: Session, mode: Mode) -> None:
    """Says that shares which were asked for do not apply in this mode; proportions do, but in a pipeline."""
    balance = session.plan.parallel.balance
    if session.world.is_alone or balance in ("auto", "equal") or (mode != "pipeline" and balance != "measured"):
        return
    shown = balance if isinstance(balance, str) else list(balance)
    instead = "pass through all ranks" if mode == "pipeline" else "are shared equally"
    session.warn(f"train: parallel.balance={shown} is not used with parallel.mode={mode}, where batches {instead}")


def _choose_mode(session: Session, network: torch.nn.Module) -> tuple[Mode, tuple[int, ...], int]:
    """How, the cuts of a pipeline, and into how many pieces it divides a batch."""
    plan, world = session.plan, session.world
    config = plan.parallel
    copies: Mode = "one device" if world.is_alone else "ddp"
    # One process has nothing to share.
    wanted = config.mode if not world.is_alone or config.mode == "checkpointing" else "auto"
    pieces = min(config.num_microbatches, plan.data.batch_size)
    if wanted == "ddp" or (wanted == "auto" and not config.max_bytes and _expect_to_fit(session)):
        return copies, (), pieces
    # It takes seconds.
    from voxelocity.parallel import decide_by_measurement

    # One patch is trained, so the batch takes no memory.
    sample = torch.zeros((1, len(session.spec.channels), *plan.data.patch.shape_voxel), device=session.device)
    num_kept = OPTIMIZERS[plan.optimizer.name].num_kept + (1 if plan.optimizer.average_decay else 0)
    try:
        with session.stage("parallel"), autocast(plan.precision, session.device):
            decision = decide_by_measurement(
                network,
                sample.expand(plan.data.batch_size, -1, -1, -1, -1),
                world=world,
                limit_bytes=int(config.max_bytes[world.place.rank]) if config.max_bytes else None,
                mode=wanted,
                optimizer_bytes=_FLOAT32_BYTES * num_kept,
                num_microbatches=pieces,
            )
    except (InputError, RankLostError) as error:
        if wanted != "auto" or config.max_bytes:
            raise
        # The estimate may be too high, and a single process can compute the patches of a batch one by one.
        session.warn(f"{error}")
        return copies, (), pieces
    session.log.write(
        "parallel",
        mode=decision.mode,
        reason=decision.reason,
        predicted_bytes=decision.predicted_bytes,
        limit_bytes=decision.limit_bytes,
        cuts=decision.cuts,
    )
    session.console.print(f"parallel.mode = {decision.reason}", highlight=False, soft_wrap=True)
    return decision.mode, decision.cuts, pieces


def _check_mode(mode: Mode, plan: Plan) -> None:
    if mode in ("fsdp", "pipeline") and plan.precision.compute == "float16":
        raise ConfigError(
            f"train: parallel.mode={mode} cannot be combined with precision.compute=float16, whose loss scale would "
            "have to be synchronized between ranks; set precision.compute=bfloat16 or float32"
        )
    if mode == "fsdp" and OPTIMIZERS[plan.optimizer.name].needs_whole:
        raise ConfigError(
            f"train: parallel.mode=fsdp cannot be combined with optimizer.name={plan.optimizer.name}, which needs "
            "whole parameters; set optimizer.name=adamw, or parallel.mode=pipeline"
        )


def _expect_to_fit(session: Session) -> bool:
    """Whether a copy on each GPU fits, as the plan counts it. CPUs share the machine's memory and are not checked."""
    plan, machine, place = session.plan, session.planned.machine, session.world.place
    if machine.device == "cpu":
        return True
    num_patches, balance = plan.data.batch_size, plan.parallel.balance
    share = math.ceil(num_patches / place.size)
    if not place.is_alone and not isinstance(balance, str):
        share = shares_in_proportion(num_patches, balance)[place.rank]
    patch = PatchPass(
        network=plan.network,
        shape_voxel=plan.data.patch.shape_voxel,
        num_channels=len(session.spec.channels),
        num_outputs=session.spec.num_outputs,
        is_half=plan.precision.compute != "float32",
    )
    needed = device_bytes(patch, batch_size=share)
    # All ranks need the same answer.
    return not session.world.agree([], flag=needed > machine.device_free_bytes)[1]


class FeedOfLeader:
    """A `Feed` of whole batches for a pipeline: rank 0 makes them, the others receive labels and the image's shape.

    Args:
        feed: of rank 0; None on the others.
        cases: that batches are made of.
        session: of the run.
        start_step: the first batch.
    """

    def __init__(self, feed: Feed | None, cases: PreparedCases, session: Session, *, start_step: int) -> None:
        self._feed, self._world, self._device = feed, session.world, session.device
        self._draws = RankDraws(cases, session.plan.data, seed=session.plan.seed)
        self._label_dtype = label_dtype(cases.num_indices)
        self._step = start_step

    def __next__(self) -> Batch:
        made = None if self._feed is None else next(self._feed)
        shape = torch.zeros(5, dtype=torch.int64) if made is None else torch.tensor(made.image.shape)
        shape = self._world.tensor_from_leader(shape)
        b, c, *xyz = shape.tolist()
        label = torch.empty((b, *xyz), dtype=self._label_dtype, device=self._device) if made is None else made.label
        self._world.tensor_from_leader(label)
        draws, step = self._draws.draws(self._step), self._step
        self._step += 1
        if made is not None:
            return made
        # Only the first stage reads images.
        image = torch.empty((b, c, *xyz), device="meta")
        return Batch(image=image, label=label, draws=draws, regions=(), step=step)

    def epoch_of(self, step: int) -> int:
        return self._draws.epoch_of(step)

    def share_soon(self, step: int, shares: Sequence[int]) -> int:
        raise AssertionError("the ranks of a pipeline have no shares")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._feed is not None:
            self._feed.close()
