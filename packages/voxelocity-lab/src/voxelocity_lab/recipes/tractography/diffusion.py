"""Diffusion: how noise is added by time, what the network learns from it, and how it is removed in few steps.

Sources: Ho et al., "Denoising diffusion probabilistic models" (2020); cosine schedule: Nichol and Dhariwal (2021); v
prediction: Salimans and Ho (2022); DDIM: Song et al. (2021); DPM-Solver++ (2M): Lu et al. (2022). Tested against the
schedulers of the package diffusers, which takes 2 s to import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

NUM_TIMES = 1000
Prediction = Literal["v", "x0"]
Sampler = Literal["ddim", "dpm++"]
# Of the share of variance that one time adds; without it the last one would leave nothing.
_MOST_BETA = 0.999


def signal_and_noise() -> torch.Tensor:
    """(2, NUM_TIMES) float64: the factors of streamline and noise at each time, whose squares add up to 1."""

    def share(time: float) -> float:
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    kept = [
        1.0 - min(1.0 - share((time + 1) / NUM_TIMES) / share(time / NUM_TIMES), _MOST_BETA)
        for time in range(NUM_TIMES)
    ]
    left = torch.tensor(kept, dtype=torch.float64).cumprod(0)
    return torch.stack([left.sqrt(), (1.0 - left).sqrt()])


def target_of(clean: torch.Tensor, noise: torch.Tensor, factors: torch.Tensor, prediction: Prediction) -> torch.Tensor:
    """What the network should output.

    Args:
        clean: (b, p, 3).
        noise: (b, p, 3).
        factors: (2, b), of `clean` and `noise`.
        prediction: "x0" for the clean streamline, or "v".
    """
    if prediction == "x0":
        return clean
    signal, sigma = factors[..., None, None]
    velocity: torch.Tensor = signal * noise - sigma * clean
    return velocity


def clean_of(output: torch.Tensor, noisy: torch.Tensor, factors: torch.Tensor, prediction: Prediction) -> torch.Tensor:
    """The clean streamline that an output means; arguments as for `target_of`."""
    if prediction == "x0":
        return output
    signal, sigma = factors[..., None, None]
    clean: torch.Tensor = signal * noisy - sigma * output
    return clean


def times_of(num_steps: int) -> list[int]:
    """The times at which a sampler asks the network, from the noisiest on, evenly spaced ("trailing")."""
    assert 1 <= num_steps <= NUM_TIMES, f"num_steps {num_steps}"
    return [round(NUM_TIMES - number * NUM_TIMES / num_steps) - 1 for number in range(num_steps)]


def sample_streamlines(
    clean_at: Callable[[torch.Tensor, int], torch.Tensor], noise: torch.Tensor, *, num_steps: int, sampler: Sampler
) -> torch.Tensor:
    """Streamlines from noise, (b, p, 3).

    Args:
        clean_at: the network's clean streamline for a noisy one and its time.
        noise: (b, p, 3), standard normal.
        num_steps: calls of the network.
        sampler: both are deterministic.
    """
    current, before = noise, torch.zeros_like(noise)
    for time, of_current, of_clean, of_before in weights_of(num_steps, sampler):
        clean = clean_at(current, time)
        current, before = of_current * current + of_clean * clean + of_before * before, clean
    return current


def weights_of(num_steps: int, sampler: Sampler) -> list[tuple[int, float, float, float]]:
    """The steps in which noise is removed, as weighted sums.

    Returns:
        Of each step, the time at which the network is asked, and the weights of the noisy streamline, of the clean one
        that the network answers, and of its output before.
    """
    signal, sigma = signal_and_noise().tolist()
    times = times_of(num_steps)
    logs = [math.log(signal[time] / sigma[time]) for time in times]
    weights = []
    for number, time in enumerate(times):
        is_last = number + 1 == num_steps
        next_signal, next_sigma = (1.0, 0.0) if is_last else (signal[times[number + 1]], sigma[times[number + 1]])
        # DDIM, which is also DPM-Solver++ of the first order.
        of_current = next_sigma / sigma[time]
        of_clean, change = next_signal - signal[time] * of_current, 0.0
        if sampler == "dpm++" and number > 0 and not is_last:
            # A straight line through the last two answers, half a step ahead.
            change = 0.5 * (logs[number + 1] - logs[number]) / (logs[number] - logs[number - 1])
        weights.append((time, of_current, of_clean * (1.0 + change), -of_clean * change))
    return weights
