"""Generated streamlines stand next to what needs no training, on the same held-out ones."""

import io
import json

import numpy as np
import pytest
import torch
from recipes.tractography.test_train import CPU, cache, small_call, train
from rich.console import Console

from voxelocity_lab.recipes.tractography import recipe
from voxelocity_lab.recipes.tractography.baselines import MEAN, MOVED, SAME, UNTRAINED
from voxelocity_lab.recipes.tractography.bundles import open_bundles
from voxelocity_lab.recipes.tractography.exemplars import Frame
from voxelocity_lab.recipes.tractography.generate import generate_batches, untrained_streamlines
from voxelocity_lab.recipes.tractography.model import Denoiser
from voxelocity_observe.core.errors import InputError

__all__ = ["cache"]


def test_an_untrained_network_makes_what_it_is_said_to_make(bundles_file, tmp_path):
    trained = train(bundles_file, tmp_path / "run")
    bundle = np.repeat([0, 1], 20)
    network = trained.network
    frame = Frame(**{name: getattr(network, name).numpy() for name in ("mean_mm", "spread_mm", "scale_mm")})
    torch.manual_seed(8)
    fresh = type(trained)(**{**vars(trained), "network": Denoiser(trained.config.network, frame).eval()})
    made = np.concatenate([lines for _, lines in generate_batches(fresh, bundle, seed=1, device=CPU, warn=print)])
    np.testing.assert_allclose(untrained_streamlines(trained, bundle, seed=1), made, atol=1e-3)


def test_the_score_stands_next_to_the_baselines_and_to_the_shape_of_real_streamlines(bundles_file, tmp_path):
    said = io.StringIO()
    call = small_call(bundles_file, tmp_path / "run", console=Console(file=said, width=100))
    recipe.train(call)
    recipe.predict(call)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    baselines = scores["baselines"]
    assert list(baselines) == [UNTRAINED, MOVED, MEAN, SAME]
    assert all(0.0 <= baseline["f1"] <= 1.0 for baseline in baselines.values())
    assert baselines[MEAN]["f1"] < baselines[SAME]["f1"]
    # Half circles of a radius of 30 mm.
    assert scores["mean"]["real_length_mm"] == pytest.approx(97.0, abs=5.0)
    assert baselines[MOVED]["length_mm"] == pytest.approx(baselines[SAME]["length_mm"], abs=0.01)
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (said.getvalue(), page):
        assert UNTRAINED in text
        assert f"{baselines[UNTRAINED]['f1']:.3f}" in text
        assert f"{scores['mean']['curvature_per_mm']:.3f}" in text
    assert f"(real: {scores['mean']['real_length_mm']:.0f})" in scores["verdict"]
    assert f"an untrained network reaches {baselines[UNTRAINED]['f1']:.2f}" in scores["verdict"]
    is_better = scores["mean"]["f1"] > max(baselines[name]["f1"] for name in (UNTRAINED, MOVED))
    assert ("has gained nothing" in scores["verdict"]) != is_better


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
