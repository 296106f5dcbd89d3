"""The step itself: forward, loss, backward, optimizer, running average. Reads no tensor, so the device never waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from voxelocity.core.batch import Batch
from voxelocity.parallel import ALONE, Sharding, World, shard
from voxelocity.step.cpu_convolutions import guard_gradients
from voxelocity.step.dropout import Dropout
from voxelocity.step.frozen import Frozen
from voxelocity.step.full_memory import in_pieces, not_divisible, too_large, too_small
from voxelocity.step.graph import StepNumbers, StepWork, open_graphs
from voxelocity.step.loss import Loss
from voxelocity.step.optimizer import (
    RunningAverage,
    begin_momentum,
    build_optimizer,
    load_settings,
    own_state,
    saved_settings,
    whole_state,
)
from voxelocity.step.optimizer_table import OptimizerConfig
from voxelocity.step.overflow import keep_float32
from voxelocity.step.precision import autocast, compiled, loss_scaler
from voxelocity.step.precision_config import PrecisionConfig
from voxelocity_observe.core.clock import Clock
from voxelocity_observe.core.device import is_out_of_memory
from voxelocity_observe.spans import span

if TYPE_CHECKING:
    from voxelocity.parallel import Pipelined


class TrainingStep:
    """A network in training, with everything that must be saved to continue exactly.

    What the network draws depends only on (seed, step), so a resumed run has the masks of an uninterrupted one.

    Attributes:
        network: in training mode, on `device`; of a `Sharding`, what this rank trains of it.
        precision: of the step.
        frozen: weights that steps may leave unchanged for a while; `release_graphs` after a change.

    Args:
        network: to train; as a `Sharding` if not every rank has a copy.
        seed: of the dropout masks.
        warn: called once when a batch does not fit into memory and is computed in pieces from then on; without it,
            torch's error is raised unchanged.
        world: the ranks that make each batch together; the loss must be the one of the whole batch
            (`build_loss(total=world.total)`). Weights are those of one process with that batch, up to roundings,
            except for batch norms and dropout, which each rank has for its own patches.
    """

    def __init__(
        self,
        network: torch.nn.Module | Sharding,
        loss: Loss,
        *,
        optimizer: OptimizerConfig,
        precision: PrecisionConfig,
        device: torch.device,
        seed: int = 0,
        warn: Callable[[str], None] | None = None,
        world: World = ALONE,
    ) -> None:
        self.device = device
        self._world = world
        if not isinstance(network, Sharding):
            guard_gradients(keep_float32(network, precision.float32_layers), precision, device)
            network = shard(network, world, "ddp", device=device, memory_format=precision.memory_format)
        self._sharding = network
        # What the tensors of this rank are in; `_forward` is in addition to it, so that no state depends on that.
        self.network = network.own
        mode = precision.compile if network.is_plain else "none"
        self._forward = compiled(network.module, mode, device)
        self._loss = loss
        self.precision = self._precision = precision
        self._fixed_scale = precision.loss_scale.initial if precision.loss_scale.fixed else None
        self._config, self._learning_rate = optimizer, optimizer.learning_rate
        self._warn = warn
        self._blank = network.blank
        self._dropout = Dropout(seed=seed, rank=world.place.rank, device=device)
        work = StepWork(
            eager=self._eager, recorded=self._recorded, masks=self._dropout.numbers, count=self._count,
            free=network.drop_gradients, recover=self._renew_scaler,
        )  # fmt: skip
        self._graphs = open_graphs(work, precision, network, world, optimizer=optimizer.name, device=device, warn=warn)
        self._numbers = StepNumbers(device) if self._graphs is not None else None
        if self._blank is None:
            rate = None if self._numbers is None else self._numbers.learning_rate
            self._optimizer = build_optimizer(optimizer, self.network.parameters(), learning_rate=rate)
        else:
            # Never makes a step: it says how the whole state is arranged.
            self._whole_optimizer = build_optimizer(optimizer, self._blank.parameters())
            self._optimizer = build_optimizer(optimizer, self._blank.parameters(), sharding=network)
        self._scaler = loss_scaler(self._precision, self.device)
        self._average = RunningAverage(self.network, optimizer.average_decay) if optimizer.average_decay else None
        self._num_pieces = 1
        self.frozen = Frozen(network, skips_gradients=network.is_plain and world.is_alone)

    @property
    def takes_shares(self) -> bool:
        """Whether each rank makes its share of a batch; if not, rank 0 makes all of it."""
        return self._sharding.takes_shares

    @property
    def is_plain(self) -> bool:
        """Whether each rank has a copy of the network that computes as usual, as `trial` needs it."""
        return self._sharding.is_plain

    @property
    def why_no_graph(self) -> str:
        """Why steps are not replayed as a CUDA graph; "" if they are, once a few were eager."""
        return "it is turned off or not available here" if self._graphs is None else self._graphs.why_not

    def release_graphs(self) -> None:
        """Frees the memory of recorded steps. Later steps are recorded again."""
        if self._graphs is not None:
            self._graphs.drop()

    def make_room(self) -> None:
        """Frees it before other work if it is so much that the work might lack it."""
        if self._graphs is not None and self._graphs.is_large:
            self._graphs.drop()

    def set_training_mode(self) -> None:
        """Ends the evaluation mode that a validation may have left."""
        self._sharding.module.train()

    def averaged(self) -> torch.nn.Module:
        """The whole network to validate and predict with: a running average, or the trained one. Called by all ranks.

        If no rank has it, it is put together from its parts and stays on the device until the next step.
        """
        own = self.network if self._average is None else self._average.network
        if self._blank is None:
            return own
        self._blank.load_state_dict(self._whole(own))
        return self._blank.to(self.device)

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite. Waits for the device; called by all ranks."""
        return self._sharding.is_finite()

    def finite_flag(self) -> torch.Tensor:
        """Whether none of this rank's weights is NaN or infinite, a scalar on the device, without waiting for it."""
        return self._sharding.finite_flag()

    def __call__(self, batch: Batch, learning_rate: float) -> torch.Tensor:
        """One step on `batch`, which is on the device. Its parts are spans: layout (into the network's memory
        format), forward, loss, backward, optimizer, averaging.

        Returns:
            The loss as a scalar tensor on the device, without waiting for it.

        Raises:
            DeviceMemoryError: even one patch at a time does not fit into memory, or a batch cannot be split.
        """
        if self._blank is not None:
            self._blank.to("cpu")
        self._set_numbers(learning_rate)
        if self._graphs is not None:
            return self._graphs(batch.image, batch.label, batch.step)
        with span("layout", color="orange"):
            image = batch.image.to(memory_format=self._precision.memory_format)
        return self._eager(image, batch.label, batch.step)

    def _set_numbers(self, learning_rate: float) -> None:
        """Gives the step what changes from one to the next besides the batch."""
        self._learning_rate = learning_rate
        if self._numbers is None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            return
        self._numbers.set(learning_rate, 0.0 if self._average is None else self._average.next_weight())

    def _eager(self, image: torch.Tensor, label: torch.Tensor, step: int) -> torch.Tensor:
        loss = self._make_gradients(image, label, step)
        with span("optimizer", color="purple"):
            self._update(image)
        if self._average is not None:
            with span("averaging", color="violet"):
                self._follow(self._average)
            self._average.num_averaged += 1
        if self._num_pieces > 1 and self._graphs is not None and not self._graphs.why_not:
            # A step in pieces needs all memory that is left.
            self._graphs.stop("a batch is computed in pieces", is_said=True)
        return loss.detach()

    def _recorded(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """As `_eager`, without what only the host does: replaying it would not."""
        loss = self._at_once(image, label, nullcontext())
        self._update(image)
        if self._average is not None:
            self._follow(self._average)
        return loss.detach()

    def _follow(self, average: RunningAverage) -> None:
        average.follow(self.network, average.next_weight() if self._numbers is None else self._numbers.average_weight)

    def _renew_scaler(self) -> None:
        """The scaler knows on the host which of its calls a step has made, and a failed recording may have made any."""
        before, self._scaler = self._scaler.state_dict(), loss_scaler(self._precision, self.device)
        self._scaler.load_state_dict(before)

    def _count(self) -> None:
        if self._average is not None:
            self._average.num_averaged += 1

    def trial(self, shape_bcxyz: tuple[int, ...], *, clock: Clock) -> tuple[float, int]:
        """Seconds and bytes of device memory of a forward and a backward pass on noise, without exchanging gradients.

        Leaves weights and running statistics as they are. The bytes are 0 on a CPU.
        """
        image = torch.rand(shape_bcxyz, generator=torch.Generator().manual_seed(0)).to(self.device)
        image = image.to(memory_format=self._precision.memory_format)
        was_training, is_cuda = self.network.training, self.device.type == "cuda"
        self.network.eval()
        if is_cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        start_s = clock()
        with autocast(self._precision, self.device):
            logits = self.network(image)
        torch.log_softmax(logits.float(), dim=1).mean().backward()  # type: ignore[no-untyped-call]
        if is_cuda:
            torch.cuda.synchronize(self.device)
        seconds = clock() - start_s
        self._optimizer.zero_grad(set_to_none=True)
        self.network.train(was_training)
        return seconds, torch.cuda.max_memory_allocated(self.device) if is_cuda else 0

    def _make_gradients(self, image: torch.Tensor, label: torch.Tensor, step: int) -> torch.Tensor:
        """Leaves the gradients of the scaled loss in the weights, computed in as many pieces as memory requires."""
        pieces_before = self._num_pieces
        while True:
            # Frees memory of the last step for this one.
            self._sharding.drop_gradients()
            try:
                if not self.takes_shares:
                    loss = self._through_stages(image, label, step)
                elif self._num_pieces > 1:
                    loss = self._in_pieces(image, label, step)
                else:
                    loss = self._at_once(image, label, self._dropout.numbers(step))
                break
            except (RuntimeError, MemoryError) as error:
                if self._warn is None or not is_out_of_memory(error):
                    raise
                said = str(error).partition("\n")[0]
            if not self._world.is_alone:
                # Trying again would repeat exchanges in which the other ranks no longer take part.
                raise too_large(image, said, self._world.place)
            if self._graphs is not None and self._graphs.holds_recordings:
                self._graphs.stop("its memory is needed for batches of another shape")
                continue
            # Outside the handler, whose traceback holds the tensors of the failed pass.
            self._halve_pieces(image, said)
        if self._num_pieces > pieces_before and self._warn is not None:
            self._warn(in_pieces(image, step, self._num_pieces))
        return loss

    def _through_stages(self, image: torch.Tensor, label: torch.Tensor, step: int) -> torch.Tensor:
        # The spans in it are the work of this rank; the rest is waiting.
        with span("exchange", color="tomato"), autocast(self._precision, self.device), self._dropout.numbers(step):
            return cast("Pipelined", self._sharding).make_gradients(image, label, self._loss)

    def _at_once(self, image: torch.Tensor, label: torch.Tensor, masks: AbstractContextManager[None]) -> torch.Tensor:
        with span("forward", color="green"), autocast(self._precision, self.device), masks:
            logits = self._forward(image)
        with span("loss", color="lightgreen"):
            loss = self._loss(logits, label)
        # So that the backward pass frees them.
        del logits
        with span("backward", color="blue"):
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def _in_pieces(self, image: torch.Tensor, label: torch.Tensor, step: int) -> torch.Tensor:
        """The same gradients with the activations of one piece at a time.

        The Dice of a batch is not the mean of the Dice of its pieces, so the loss gets the logits of the whole batch,
        first computed without activations; each piece is then computed again and back-propagates its part of their
        gradient.
        """
        size = math.ceil(len(image) / self._num_pieces)
        ranges = [slice(start, start + size) for start in range(0, len(image), size)]
        logits: torch.Tensor | None = None
        with span("forward", color="green"), autocast(self._precision, self.device), torch.no_grad():
            for number, part in enumerate(ranges):
                with self._dropout.numbers(step, number):
                    made = self._forward(image[part])
                if logits is None:
                    logits = made.new_empty((len(image), *made.shape[1:]))
                logits[part] = made
                del made
        assert logits is not None
        with span("loss", color="lightgreen"):
            loss = self._loss(logits.requires_grad_(), label)
        with span("backward", color="blue"):
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            slope = logits.grad
            assert slope is not None
            for number, part in enumerate(ranges):
                with autocast(self._precision, self.device), self._dropout.numbers(step, number):
                    made = self._forward(image[part])
                made.backward(slope[part])  # type: ignore[no-untyped-call]
                del made
        return loss

    def _halve_pieces(self, image: torch.Tensor, said: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        mixing = next((m for m in self.network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)), None)
        if mixing is not None and len(image) > 1:
            raise not_divisible(image, said)
        if self._num_pieces >= len(image):
            raise too_small(image, said)
        self._num_pieces = min(2 * self._num_pieces, len(image))

    def _update(self, image: torch.Tensor) -> None:
        """Updates the weights by their gradients. It cannot be retried: some weights may have changed already."""
        try:
            self._sharding.take_gradients()
            if self.frozen.is_on:
                self.frozen.drop_gradients()
            self._scaler.unscale_(self._optimizer)
            begin_momentum(self._optimizer)
            self._sharding.clip(self._config.clip_norm)
            self._scaler.step(self._optimizer)
            self._scaler.update(self._fixed_scale)
        except (RuntimeError, MemoryError) as error:
            if self._warn is None or not is_out_of_memory(error):
                raise
            raise too_small(image, str(error).partition("\n")[0]) from None

    def state(self) -> dict[str, Any]:
        """Tensors and plain values only, loadable with `weights_only=True`; the same for any `Sharding`.

        Called by all ranks.
        """
        average = self._average
        return {
            "network": self._whole(self.network),
            "optimizer": self._optimizer_state(),
            "scaler": self._scaler.state_dict(),
            # Under the names of torch's AveragedModel, which earlier checkpoints use.
            "average": None
            if average is None
            else {
                "n_averaged": torch.tensor(average.num_averaged),
                **{f"module.{name}": tensor for name, tensor in self._whole(average.network).items()},
            },
        }

    def _optimizer_state(self) -> dict[str, Any]:
        if self._blank is not None:
            return whole_state(self._optimizer, self._sharding, self._whole_optimizer, self._blank)
        state: dict[str, Any] = self._optimizer.state_dict()
        return state if self._numbers is None else saved_settings(state, self._learning_rate)

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues exactly from a saved `state`."""
        # The optimizer's state gets new tensors.
        self.release_graphs()
        self._load(self.network, state["network"])
        optimizer: dict[str, Any] = state["optimizer"]
        if self._blank is not None:
            optimizer = own_state(optimizer, self._optimizer, self._sharding, self._whole_optimizer, self._blank)
        if self._numbers is None:
            self._optimizer.load_state_dict(optimizer)
        else:
            self._learning_rate = optimizer["param_groups"][0]["lr"]
            load_settings(self._optimizer, optimizer, self._numbers.learning_rate)
            self._numbers.forget()
        self._scaler.load_state_dict(state["scaler"])
        if self._average is not None:
            kept = dict(state["average"])
            self._average.num_averaged = int(kept.pop("n_averaged"))
            self._load(self._average.network, {name.removeprefix("module."): tensor for name, tensor in kept.items()})

    def _whole(self, own: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The state of the whole network, of a module with this rank's tensors."""
        state = own.state_dict()
        if self._blank is None:
            return state
        collected = self._sharding.collect({name: {"": tensor} for name, tensor in state.items()})
        return {name: kept[""] for name, kept in collected.items()}

    def _load(self, own: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        if self._blank is not None:
            selected = self._sharding.select({name: {"": tensor} for name, tensor in state.items()})
            state = {name: kept[""] for name, kept in selected.items()}
        own.load_state_dict(state)
