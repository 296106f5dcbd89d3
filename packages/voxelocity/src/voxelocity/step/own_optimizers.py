"""Optimizers that torch does not have, or not in the form that a training needs: Muon and NovoGrad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from voxelocity.parallel import Sharding

# Of Muon. The polynomial a x + b x^3 + c x^5 brings singular values between 0 and 1 close to 1 in a few iterations.
_ITERATIONS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
_EPS = 1e-8
# A step as large as AdamW's usual one (Liu et al. 2025, arXiv 2502.16982), so that AdamW's learning rates apply.
_RMS = 0.2
# About 10 ms in one thread; in a step it then took 15 ms, and 31 and 43 ms with two threads (docs/log).
_FEW_PRODUCTS = 3e8


class _Optimizer:
    """Used like torch's optimizers without being one: creating one imports torch's compiler, which takes 2 s.

    Settings may be tensors on the device, so that a recorded step reads them; what is saved has plain numbers.

    Args:
        groups: with "params" and the settings of each.
        shared: settings of all groups.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], shared: dict[str, Any]) -> None:
        self.param_groups: list[dict[str, Any]] = [{**group, **shared} for group in groups]
        self._state: dict[torch.Tensor, dict[str, torch.Tensor]] = {p: {} for p in self._parameters()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, or sets them to zero."""
        for weight in self._parameters():
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` continues from: the groups without their parameters, the state of each parameter."""
        groups = [
            {key: _plain(key, value) for key, value in group.items() if key != "params"} for group in self.param_groups
        ]
        return {"param_groups": groups, "state": [self._state[p] for p in self._parameters()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues exactly from a saved state of the same parameters."""
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            for key, value in saved.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value
        for weight, kept in zip(self._parameters(), state["state"], strict=True):
            self._state[weight] = {
                # In the memory format of the weight, unless it is a number for all of it.
                name: torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value.to(weight.device)
                for name, value in kept.items()
            }

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _kept(self, name: str, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        for weight in weights:
            if name not in self._state[weight]:
                self._state[weight][name] = torch.zeros_like(weight)
        return [self._state[weight][name] for weight in weights]


class Muon(_Optimizer):
    """Steps along the momentum with all its singular values made equal; AdamW for the rest, such as biases and norms.

    A weight (out, in, x, y, z) is a matrix (out, in * x * y * z). See Jordan et al. 2024,
    kellerjordan.github.io/posts/muon. torch's own class takes only matrices and always computes in bfloat16; a test
    compares the two.

    Args:
        groups: with "params", "weight_decay" (decoupled) and "is_matrix", which says whether they are matrices.
        learning_rate: of all parameters; as a tensor, it and the number of steps are read by a recorded step.
        momentum: Nesterov momentum of matrices.
        betas: of AdamW.
        sharding: as for `build_optimizer`. Each rank computes the steps of all matrices of which it has a shard.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        learning_rate: float | torch.Tensor,
        momentum: float,
        betas: tuple[float, float],
        sharding: Sharding | None = None,
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "betas": betas, "num_steps": 0})
        if isinstance(learning_rate, torch.Tensor):
            for group in self.param_groups:
                group["num_steps"] = torch.zeros_like(learning_rate)
        self._sharding = sharding

    @torch.no_grad()
    def step(self) -> None:
        """One step for all parameters that have a gradient."""
        with _few_threads(self.param_groups[0]["params"]):
            self._step_groups()

    def _step_groups(self) -> None:
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            group["num_steps"] += 1
            if trained:
                (self._step_matrices if group["is_matrix"] else self._step_others)(group, trained)

    def _step_matrices(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        slopes, means = _slopes(weights), self._kept("mean", weights)
        torch._foreach_lerp_(means, slopes, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(slopes, means, group["momentum"])
        torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
        whole = ahead if self._sharding is None else self._sharding.gather_weights(weights, ahead)
        steps = orthogonal([matrix.flatten(1) for matrix in whole])
        factors = [-_RMS * max(step.shape) ** 0.5 for step in steps]
        changes = [step.reshape(like.shape) for step, like in zip(steps, whole, strict=True)]
        if self._sharding is not None:
            changes = [self._sharding.part(weight, change) for weight, change in zip(weights, changes, strict=True)]
        if isinstance(group["lr"], torch.Tensor):
            torch._foreach_mul_(changes, factors)
            torch._foreach_mul_(changes, group["lr"])
            torch._foreach_add_(weights, changes)
            return
        for weight, change, factor in zip(weights, changes, factors, strict=True):
            weight.add_(change, alpha=group["lr"] * factor)

    def _step_others(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        slopes, means, squares = _slopes(weights), self._kept("mean", weights), self._kept("square", weights)
        first, second = group["betas"]
        torch._foreach_lerp_(means, slopes, 1.0 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, slopes, slopes, 1.0 - second)
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_div_(sizes, (1.0 - second ** group["num_steps"]) ** 0.5)
        torch._foreach_add_(sizes, _EPS)
        rate = -group["lr"] / (1.0 - first ** group["num_steps"])
        if isinstance(rate, torch.Tensor):
            changes = torch._foreach_div(means, sizes)
            torch._foreach_mul_(changes, rate)
            torch._foreach_add_(weights, changes)
        else:
            torch._foreach_addcdiv_(weights, means, sizes, rate)


def orthogonal(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Matrices in float32 with their singular values brought to about 0.7 to 1.2, by Newton and Schulz's iteration.

    Each iteration multiplies a matrix by a polynomial of its Gram matrix from the left. So all iterations work on that
    small square matrix, batched by size, and each matrix is multiplied once: a third of the time (docs/log).

    Never in half precision, whatever the matrices are in: iterating on the Gram matrix in bfloat16 brought singular
    values of a matrix of rank 2 to 7,300. TF32 is precise enough.
    """
    with torch.autocast(matrices[0].device.type, enabled=False):
        wide = [(matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix).float() for matrix in matrices]
        sizes = torch._foreach_norm(wide)
        torch._foreach_clamp_min_(sizes, 1e-7)
        wide = list(torch._foreach_div(wide, sizes))
        made = _brought_to_one(wide) if wide[0].is_cuda else _brought_to_one_each(wide)
    return [own.mT if matrix.shape[0] > matrix.shape[1] else own for own, matrix in zip(made, matrices, strict=True)]


def _brought_to_one_each(wide: list[torch.Tensor]) -> list[torch.Tensor]:
    """Matrix by matrix outside of the iterations, without copies: for a CPU."""
    made = list(wide)
    for numbers in _alike([len(matrix) for matrix in wide]):
        factors = _factors(torch.stack([wide[number] @ wide[number].mT for number in numbers]))
        for number, factor in zip(numbers, factors, strict=True):
            made[number] = factor @ wide[number]
    return made


def _brought_to_one(wide: list[torch.Tensor]) -> list[torch.Tensor]:
    """As `_brought_to_one_each`, with matrices of one shape in one product: fewer launches on a GPU."""
    same_shape = _alike([matrix.shape for matrix in wide])
    stacks = [(numbers, torch.stack([wide[n] for n in numbers])) for numbers in same_shape]
    made = list(wide)
    for alike in _alike([stack.shape[1] for _, stack in stacks]):
        grams = torch.cat([torch.bmm(stacks[place][1], stacks[place][1].mT) for place in alike])
        factors = torch.split(_factors(grams), [len(stacks[place][0]) for place in alike])
        for place, factor in zip(alike, factors, strict=True):
            numbers, stack = stacks[place]
            for number, own in zip(numbers, torch.bmm(factor, stack).unbind(), strict=True):
                made[number] = own
    return made


def _alike(keys: Sequence[object]) -> list[list[int]]:
    """The indices of equal keys, together."""
    found: dict[object, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return list(found.values())


@contextmanager
def _few_threads(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Uses one thread for small matrices on a CPU: with two, each product waited for the core making the next batch."""
    num_products = sum(weight.numel() * min(len(weight), weight[0].numel()) for weight in weights)
    num_threads = torch.get_num_threads()
    if weights and not weights[0].is_cuda and num_products < _FEW_PRODUCTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _factors(grams: torch.Tensor) -> torch.Tensor:
    """The factors (k, m, m) to multiply matrices with these Gram matrices by."""
    one = torch.eye(grams.shape[1], device=grams.device).expand_as(grams)
    factors = one
    for iteration in range(_ITERATIONS):
        factor = torch.baddbmm(torch.add(_A * one, grams, alpha=_B), grams, grams, alpha=_C)
        factors = torch.bmm(factor, factors) if iteration > 0 else factor
        if iteration < _ITERATIONS - 1:
            grams = torch.bmm(torch.bmm(factor, grams), factor)
    return factors


def _plain(key: str, value: Any) -> Any:
    """A setting as it is saved."""
    if not isinstance(value, torch.Tensor):
        return value
    return int(value) if key == "num_steps" else float(value)


def _slopes(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


class NovoGrad(_Optimizer):
    """Steps along the momentum of gradients, each scaled by the running size of its whole parameter's gradient.

    See Ginsburg et al. 2019, arXiv 1905.11286. MONAI's class, which a test compares, reads a number from the device for
    each parameter in each step.

    Args:
        groups: with "params" and "weight_decay" (decoupled from the scaling).
        learning_rate: of all parameters; as a tensor, it is read by a recorded step.
        betas: of the gradients' momentum, and of their squared sizes.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], *, learning_rate: float | torch.Tensor, betas: tuple[float, float]
    ) -> None:
        super().__init__(groups, {"lr": learning_rate, "betas": betas})

    @torch.no_grad()
    def step(self) -> None:
        """One step for all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if not weights:
                continue
            first, second = group["betas"]
            slopes = _slopes(weights)
            sizes = torch._foreach_norm(slopes)
            scales = torch._foreach_sqrt(self._followed(weights, torch._foreach_mul(sizes, sizes), second))
            torch._foreach_add_(scales, _EPS)
            steps = torch._foreach_div(slopes, scales)
            torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
            means = self._kept("mean", weights)
            torch._foreach_mul_(means, first)
            torch._foreach_add_(means, steps)
            if isinstance(group["lr"], torch.Tensor):
                torch._foreach_sub_(weights, torch._foreach_mul(means, group["lr"]))
            else:
                torch._foreach_add_(weights, means, alpha=-group["lr"])

    def _followed(
        self, weights: list[torch.Tensor], squares: Sequence[torch.Tensor], momentum: float
    ) -> list[torch.Tensor]:
        """The running averages of the parameters' squared sizes, which begin with the first one."""
        known = [(w, square) for w, square in zip(weights, squares, strict=True) if "square" in self._state[w]]
        if known:
            # In place, because a recorded step finds them where they were.
            kept = [self._state[w]["square"] for w, _ in known]
            torch._foreach_lerp_(kept, [square for _, square in known], 1.0 - momentum)
        for weight, square in zip(weights, squares, strict=True):
            self._state[weight].setdefault("square", square)
        return [self._state[weight]["square"] for weight in weights]
