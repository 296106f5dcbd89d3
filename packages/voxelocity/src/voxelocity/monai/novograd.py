"""MONAI's `Novograd`: the same updates, of all parameters at once. Not the optimizer of this package's own training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from voxelocity_observe.core.errors import InputError

_Tensors = list[torch.Tensor]


class Novograd(Optimizer):
    """Gradients normalized layer by layer, with momentum (Ginsburg et al. 2019, arXiv:1905.11286).

    Updates equal those of MONAI 1.6.1 up to rounding, and checkpoints of either load in the other. The gradients do
    not change; MONAI overwrites them. Nothing waits for the device.

    Args:
        params: parameters, or dicts of parameter groups with their own values of the other arguments.
        lr: learning rate.
        betas: decay of the running means of the gradient, and of its squared norm.
        eps: added to the norm that gradients are divided by.
        weight_decay: share of the parameter that is added to its normalized gradient.
        grad_averaging: weight the normalized gradient by 1 - betas[0].
        amsgrad: divide by the largest running mean of the squared norm so far.
        foreach: one call for the parameters of a device and dtype together; False takes them one after the other.

    Raises:
        InputError: a value is out of range.
    """

    _foreach = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0,
        grad_averaging: bool = False,
        amsgrad: bool = False,
        *,
        foreach: bool = True,
    ) -> None:
        _check(lr >= 0.0, f"Invalid learning rate: {lr}; it must be 0 or more")
        _check(eps >= 0.0, f"Invalid epsilon value: {eps}; it must be 0 or more")
        for index, beta in enumerate(betas):
            _check(0.0 <= beta < 1.0, f"Invalid beta parameter at index {index}: {beta}; choose from 0 to below 1")
        _check(weight_decay >= 0.0, f"Invalid weight_decay value: {weight_decay}; it must be 0 or more")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)
        self._foreach = foreach

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("amsgrad", False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        Args:
            closure: computes the loss and the gradients once more; runs with gradients on.

        Returns:
            What the closure returned, or None.

        Raises:
            InputError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            with_grad = [parameter for parameter in group["params"] if parameter.grad is not None]
            together: dict[Any, _Tensors] = defaultdict(list)
            for index, parameter in enumerate(with_grad):
                square = self._begin_step(parameter, group["amsgrad"])["exp_avg_sq"]
                alone = None if self._foreach else index
                together[parameter.device, parameter.dtype, square.dtype, alone].append(parameter)
            for parameters in together.values():
                self._update(parameters, group)
        return loss

    def _begin_step(self, parameter: torch.Tensor, amsgrad: bool) -> dict[str, Any]:
        """The parameter's state, in MONAI's layout, one step further."""
        assert parameter.grad is not None, "asked for only where there is one"
        if parameter.grad.is_sparse:
            raise InputError("Novograd: Sparse gradients are not supported; make the layer that has them dense")
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros([], device=parameter.device)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros([], device=parameter.device)
        state["step"] += 1
        return state

    def _update(self, parameters: _Tensors, group: dict[str, Any]) -> None:
        """Updates parameters on one device and of one dtype. The scalars of all are handled as one vector."""
        beta1, beta2 = group["betas"]
        states = [self.state[parameter] for parameter in parameters]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        averages = [state["exp_avg"] for state in states]
        squares = _stacked(states, "exp_avg_sq")
        norms = torch.stack(torch._foreach_norm(grads)).to(squares.dtype).square_()
        # A mean that is still 0 starts at the norm itself: MONAI asks the host, which waits for the device.
        squares = torch.where(squares == 0, norms, torch.lerp(norms, squares, beta2))
        _put_back(states, "exp_avg_sq", squares)
        if group["amsgrad"]:
            squares = torch.maximum(_stacked(states, "max_exp_avg_sq"), squares)
            _put_back(states, "max_exp_avg_sq", squares)
        share = 1.0 - beta1 if group["grad_averaging"] else 1.0
        divisors = squares.sqrt().add_(group["eps"]).div_(share).unbind()
        torch._foreach_mul_(averages, beta1)
        torch._foreach_addcdiv_(averages, grads, divisors)
        if group["weight_decay"] != 0:
            torch._foreach_add_(averages, parameters, alpha=group["weight_decay"] * share)
        torch._foreach_add_(parameters, averages, alpha=-group["lr"])


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise InputError(f"Novograd: {text}")


def _stacked(states: list[dict[str, Any]], name: str) -> torch.Tensor:
    return torch.stack([state[name] for state in states])


def _put_back(states: list[dict[str, Any]], name: str, values: torch.Tensor) -> None:
    torch._foreach_copy_([state[name] for state in states], values.unbind())
