"""Generated streamlines stand next to what needs no training, on the same held-out ones."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from recipes.tractography.test_train import CPU, cache, small_call, train
from rich.console import Console

from voxelocity_lab.recipes.tractography import recipe
from voxelocity_lab.recipes.tractography.baselines import MOVED, NOISY, SAME, UNTRAINED
from voxelocity_lab.recipes.tractography.bundles import open_bundles
from voxelocity_lab.recipes.tractography.generate import generate_batches, untrained_streamlines
from voxelocity_lab.recipes.tractography.judge import MEASURES
from voxelocity_lab.recipes.tractography.model import Denoiser
from voxelocity_observe.core.errors import InputError

__all__ = ["cache"]


def test_an_untrained_network_makes_what_it_is_said_to_make(bundles_file, tmp_path):
    trained = train(bundles_file, tmp_path / "run")
    bundle = np.repeat([0, 1], 20)
    torch.manual_seed(8)
    network = Denoiser(trained.config.network, trained.frame, trained.config.exemplar.num_around).eval()
    fresh = replace(trained, network=network)
    made = np.concatenate([lines for _, lines in generate_batches(fresh, bundle, seed=1, device=CPU, warn=print)])
    np.testing.assert_allclose(untrained_streamlines(trained, bundle, seed=1), made, atol=1e-3)


def test_the_score_stands_next_to_the_baselines_with_intervals_and_costs(bundles_file, tmp_path):
    said = io.StringIO()
    call = small_call(bundles_file, tmp_path / "run", console=Console(file=said, width=120))
    recipe.train(call)
    recipe.predict(call)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    baselines, keys = scores["baselines"], {measure.key for measure in MEASURES}
    assert list(baselines) == [UNTRAINED, NOISY, MOVED, SAME]
    # Half circles of a radius of 30 mm.
    assert scores["mean"]["real_length_mm"] == pytest.approx(97.0, abs=5.0)
    assert baselines[MOVED]["length_distance_mm"] == pytest.approx(baselines[SAME]["length_distance_mm"], abs=0.01)
    assert baselines[SAME]["copied"] == 1.0
    assert baselines[NOISY]["turn_distance_degrees"] > 5.0 * baselines[SAME]["turn_distance_degrees"]
    for column, mean in {"trained": scores["mean"], **baselines}.items():
        low, high = scores["intervals"][column]["overlap"]
        assert low <= mean["overlap"] <= high
        assert keys < set(scores["intervals"][column])
    assert set(scores["better_than"]) == {UNTRAINED, NOISY, MOVED}
    costs = scores["costs"]
    assert costs["training"]["steps"] == 12
    for part in costs.values():
        assert part["peak_host_bytes"] > 1 << 20
        assert part["seconds"] > 0.0
        assert part["peak_device_bytes"] is None
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (said.getvalue(), page):
        for words in ("untrained", "training with noise", "ceiling", f"{baselines[UNTRAINED]['overreach']:.3f}"):
            assert words in text
    nums = {name: len(keys) for name, keys in scores["better_than"].items()}
    assert f"training with noise by {nums[NOISY]} of 6 measures" in scores["verdict"]
    is_learned = min(nums[NOISY], nums[UNTRAINED]) >= 4
    assert scores["verdict"].startswith("Something was learned" if is_learned else "Little was learned")


def test_a_training_of_too_few_steps_has_no_f1(bundles_file, tmp_path):
    said = io.StringIO()
    call = small_call(bundles_file, tmp_path / "run", {"fit.steps": 2}, console=Console(file=said, width=300))
    recipe.train(call)
    recipe.predict(call)
    assert "has no score: it made only 2 training steps" in said.getvalue()
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["verdict"].startswith("No score, because the training is too short: it made only 2 training steps")
    assert scores["unlearned"].startswith("it made only 2 training steps")
    assert scores["mean"]["f1"] is None
    assert not scores["intervals"]
    assert "F1 at 2 mm" not in (tmp_path / "run" / "report.html").read_text()


def test_bundles_are_matched_by_their_names(bundles_file, tmp_path):
    """And not by their numbers, which are others in other data."""
    arrays = dict(np.load(bundles_file))
    other = tmp_path / "other" / "arcs.npz"
    other.parent.mkdir()
    np.savez(other, **{**arrays, "names": np.array(["third", "left"])})
    bundles = open_bundles(other, num_points=16)
    named = bundles.named(("left", "right"))
    assert named.names == ("left", "right")
    assert set(named.bundle) == {0}
    np.testing.assert_array_equal(named.of(0), bundles.of(1))
    assert bundles.named(bundles.names) is bundles
    with pytest.raises(InputError, match="the data has the bundles third, left, and the model knows a;"):
        bundles.named(("a",))
