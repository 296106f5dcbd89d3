"""The samplers against those of the package diffusers, and both predictions against each other."""

import pytest
import torch

from voxelocity_lab.recipes.tractography.diffusion import (
    NUM_TIMES,
    clean_of,
    sample_streamlines,
    signal_and_noise,
    target_of,
    times_of,
)

NOISE = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def some_network(noisy, time):
    return torch.tanh(0.3 * noisy + 0.1 * time / NUM_TIMES)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("num_steps", [1, 10, 50])
@pytest.mark.parametrize("sampler", ["ddim", "dpm++"])
def test_samplers_agree_with_those_of_diffusers(sampler, num_steps):
    schedulers = pytest.importorskip("diffusers.schedulers")
    common = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "sample", "timestep_spacing": "trailing"}
    scheduler = (
        schedulers.DDIMScheduler(**common, clip_sample=False)
        if sampler == "ddim"
        else schedulers.DPMSolverMultistepScheduler(
            **common, solver_order=2, final_sigmas_type="zero", euler_at_final=True
        )
    )
    scheduler.set_timesteps(num_steps)
    assert scheduler.timesteps.tolist() == times_of(num_steps)
    wanted = NOISE
    for time in scheduler.timesteps:
        wanted = scheduler.step(some_network(wanted, int(time)), time, wanted).prev_sample
    found = sample_streamlines(some_network, NOISE, num_steps=num_steps, sampler=sampler)
    # Their tables are in float32.
    assert found == pytest.approx(wanted, abs=5e-6)


@pytest.mark.parametrize("prediction", ["v", "x0"])
def test_a_perfect_answer_gives_the_clean_streamline(prediction):
    clean = torch.rand(6, 8, 3, dtype=torch.float64)
    noise = torch.randn(6, 8, 3, dtype=torch.float64)
    factors = signal_and_noise()[:, [0, 1, 250, 500, 900, 999]]
    assert factors.square().sum(0) == pytest.approx(1.0)
    signal, sigma = factors[..., None, None]
    noisy = signal * clean + sigma * noise
    answer = target_of(clean, noise, factors, prediction)
    assert clean_of(answer, noisy, factors, prediction) == pytest.approx(clean)


def test_a_network_that_knows_the_streamline_leads_every_sampler_to_it():
    clean = torch.rand(2, 8, 3, dtype=torch.float64)
    for sampler in ("ddim", "dpm++"):
        assert sample_streamlines(lambda *_: clean, NOISE[:2], num_steps=7, sampler=sampler) == pytest.approx(clean)
