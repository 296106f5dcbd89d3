"""A training of streamlines: its batches, its losses, its resumption, its ranks, and the command."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from shared.limits import HANGS_S
from shared.ranks import finish, start_ranks
from shared.recipe_call import call_of
from voxelocity.parallel import ALONE
from voxelocity_lab.recipes.tractography import recipe
from voxelocity_lab.recipes.tractography.baselines import MOVED, NOISY, SAME, UNTRAINED
from voxelocity_lab.recipes.tractography.bundles import open_bundles
from voxelocity_lab.recipes.tractography.exemplars import ExemplarPairs, Frame
from voxelocity_lab.recipes.tractography.files import read_tracts
from voxelocity_lab.recipes.tractography.generate import generate, generate_batches
from voxelocity_lab.recipes.tractography.settings import settings
from voxelocity_lab.recipes.tractography.shapes import nearest_mm
from voxelocity_lab.recipes.tractography.train import StreamlineBatches, TractLoss, load_tracts, train_tracts
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.events import read_events

CPU = torch.device("cpu")
SMALL = {
    "network.num_points": 16,
    "network.num_waves": 4,
    "network.width": 16,
    "network.depth": 1,
    "fit.batch_size": 10,
    "fit.steps": 12,
    "split.held_out": 0.5,
    "sample.num_steps": 4,
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small_call(data, out, overrides=(), **options):
    return call_of(data, out, overrides={**SMALL, **dict(overrides)}, seed=3, **options)


def config(**overrides):
    return settings(small_call(None, None, overrides))


def train(data, out, overrides=(), **options):
    call = small_call(data, out, overrides, **options)
    return train_tracts(call, settings(call))


def opened(bundles_file):
    bundles = open_bundles(bundles_file, num_points=16)
    pairs = ExemplarPairs.of(bundles, **dict(config().exemplar), seed=3)
    return bundles, pairs, Frame.of(bundles, pairs, num_waves=4)


def make_batches(bundles_file, **options):
    bundles, pairs, frame = opened(bundles_file)
    return StreamlineBatches(bundles, pairs, frame, 10, **{"seed": 3, **options})


def test_a_batch_depends_on_the_seed_and_its_number_alone(bundles_file):
    one, other = make_batches(bundles_file), make_batches(bundles_file)
    later = other(7)
    for step in range(8):
        batch = one(step)
    assert torch.equal(batch.image, later.image)
    assert torch.equal(batch.label, later.label)
    assert not torch.equal(make_batches(bundles_file, seed=4)(7).image, later.image)
    parts = [one(7, share) for share in (slice(0, 4), slice(4, 10))]
    assert torch.equal(torch.cat([part.image for part in parts]), later.image)


def test_an_epoch_has_each_streamline_once(bundles_file):
    batches = make_batches(bundles_file)
    clean = torch.cat([batches(step).label[:, :3] for step in range(5)])[:48]
    assert len({tuple(line.flatten().tolist()) for line in clean}) == 48


def test_losses_of_shape_are_zero_for_the_true_streamline_and_not_for_another(bundles_file):
    frame, batch = opened(bundles_file)[2], make_batches(bundles_file)(0)
    for weight in ("flip", "bend"):
        loss = TractLoss(config(**{f"loss.{weight}": 1.0, "prediction": "x0"}), frame, CPU, ALONE)
        assert loss(batch.label[:, :3], batch.label).item() == pytest.approx(0.0, abs=1e-6)
        plain = TractLoss(config(prediction="x0"), frame, CPU, ALONE)
        bent = batch.label[:, :3] + 0.1 * torch.randn(10, 3, 4, generator=torch.Generator().manual_seed(0))
        assert loss(bent, batch.label) > plain(bent, batch.label)


def test_a_loss_of_the_mask_needs_a_mask():
    with pytest.raises(ConfigError, match=r"loss\.mask needs a mask"):
        config(**{"loss.mask": 1.0})


def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(bundles_file, tmp_path):
    whole = train(bundles_file, tmp_path / "whole")
    often = {"fit.checkpoint_every_s": 1e-9, "fit.keep": 50}
    half = train(bundles_file, tmp_path / "half", often)
    assert all(torch.equal(a, b) for a, b in zip(whole.network.parameters(), half.network.parameters(), strict=True))
    # As after a kill: only the state of an early step is left, and no model.
    (tmp_path / "half" / "model.json").unlink()
    checkpoints = sorted((tmp_path / "half" / "checkpoints").iterdir())
    for path in checkpoints[len(checkpoints) // 2 :]:
        path.unlink()
    again = train(bundles_file, tmp_path / "half", often, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.network.parameters(), again.network.parameters(), strict=True))


def test_a_run_is_neither_lost_nor_mixed_with_another(bundles_file, tmp_path):
    train(bundles_file, tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run; continue it with --resume, replace it"):
        train(bundles_file, tmp_path / "run")
    with pytest.raises(ConfigError, match="another value of config"):
        train(bundles_file, tmp_path / "run", {"fit.steps": 13}, resume=True)
    with pytest.raises(InputError, match="holds no finished run"):
        load_tracts(tmp_path)
    with pytest.raises(ConfigError, match=r"neither a number of steps nor a time budget .* --time-budget 10m"):
        train(bundles_file, tmp_path / "other", {"fit.steps": 0})


def test_streamlines_do_not_depend_on_the_size_of_batches(bundles_file, tmp_path):
    trained = train(bundles_file, tmp_path / "run")
    bundle = np.repeat([0, 1], 60)

    def made(size):
        few = {"sample": trained.config.sample.model_copy(update={"batch_size": size})}
        changed = type(trained)(**{**vars(trained), "config": trained.config.model_copy(update=few)})
        return np.concatenate([lines for _, lines in generate_batches(changed, bundle, seed=1, device=CPU, warn=print)])

    assert made(7) == pytest.approx(made(120), abs=1e-3)


def test_too_little_memory_makes_smaller_batches(bundles_file, tmp_path, monkeypatch):
    trained = train(bundles_file, tmp_path / "run")
    forward, warned = trained.network.forward, []

    def limited(packed):
        if len(packed) > 5:
            raise torch.OutOfMemoryError("full")
        return forward(packed)

    monkeypatch.setattr(trained.network, "forward", limited)
    found = generate(trained, tmp_path / "made.tck", seed=1, device=CPU, counts=[10, 10], warn=warned.append)
    assert found.streamlines.shape == (20, 16, 3)
    assert "5 are made at once" in warned[-1]
    assert len(read_tracts([tmp_path / "made.tck"])) == 20


def test_streamlines_that_begin_as_less_noise_lie_nearer_to_their_exemplars(bundles_file, tmp_path):
    distances = []
    for spread in (1.0, 0.3):
        trained = train(bundles_file, tmp_path / str(spread), {"sample.spread": spread})
        made = generate(trained, tmp_path / "made.tck", seed=1, device=CPU, counts=[20, 20], warn=print)
        distances.append(nearest_mm(made.streamlines, trained.exemplars.streamlines).mean())
    assert distances[1] < 0.6 * distances[0]


def test_both_leads_from_data_to_figures_and_a_page(bundles_file, tmp_path):
    call = small_call(bundles_file, tmp_path / "run")
    recipe.train(call)
    recipe.predict(call)
    made = read_tracts([tmp_path / "run" / "generated.trx"])
    assert dict(zip(made.names, np.bincount(made.bundle), strict=True)) == {"left": 12, "right": 12}
    # JSON does not allow NaN, the figure of a mask that is not given.
    scores = json.loads((tmp_path / "run" / "scores.json").read_text(), parse_constant=pytest.fail)
    assert set(scores["bundles"]) == {"left", "right"}
    assert scores["bundles"]["left"]["outside"] is None
    assert 0.0 <= scores["mean"]["f1"] <= 1.0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "F1 at 2 mm" in page
    assert "left" in page
    assert page.count("turning views of streamlines, scroll sideways") == 2
    assert "Over the scan" not in page


def test_a_prediction_follows_its_settings_and_refuses_those_of_the_training(bundles_file, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(bundles_file, out))
    recipe.predict(call_of(bundles_file, out, overrides={"sample.num_per_bundle": 5, "sample.format": "tck"}))
    assert len(read_tracts([out / "generated.tck"])) == 10
    assert load_tracts(out).config.sample.num_per_bundle == 0, "the model stays"
    for key, value, named in (("split.held_out", 0.4, "split"), ("image", "fa.nii.gz", "image")):
        with pytest.raises(ConfigError, match=rf"tractography: {named} cannot differ from .*may change mask, sample"):
            recipe.predict(call_of(bundles_file, out, overrides={key: value}))


def arrays_of(path):
    with np.load(path) as arrays:
        return dict(arrays)


def test_what_was_trained_on_is_kept_with_the_model_and_never_counts_as_held_out(bundles_file, tmp_path, capsys):
    call = replace(small_call(bundles_file, tmp_path / "run"), console=Console(width=10_000))
    recipe.train(call)
    known = json.loads((tmp_path / "run" / "model.json").read_text())["division"]
    assert known == yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["division"]
    assert (known["trained"]["streamlines"], list(known["files"])) == (24, ["arcs.npz"])
    before = arrays_of(bundles_file)
    trained = load_tracts(tmp_path / "run")
    added = before["points"][:6] + np.float32(300.0)
    more = {
        "points": np.concatenate([added, before["points"], before["points"][24:30] + np.float32(1.0)]),
        "bundle": np.concatenate([np.zeros(6, int), before["bundle"] + 1, np.full(6, 2)]),
        "names": np.array(["added", "left", "right"]),
    }
    np.savez(bundles_file, **more)
    training, real, notices = recipe.divide(trained, bundles_file)
    assert set(training.identity) == set(trained.division.trained)
    assert np.bincount(real.bundle).tolist() == [12, 18]
    assert any("6 of the 30 streamlines that count as held out were not in the data of the training" in notice
               for notice in notices)  # fmt: skip
    recipe.predict(call)
    assert "The model does not know these bundles" in capsys.readouterr().out
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["bundles"]
    assert {name: score["num_real"] for name, score in scores.items()} == {"left": 12, "right": 18}


def test_other_data_count_as_unseen_in_words_or_are_refused(bundles_file, tmp_path, capsys):
    call = replace(small_call(bundles_file, tmp_path / "run"), console=Console(width=10_000))
    recipe.train(call)
    before = arrays_of(bundles_file)
    np.savez(bundles_file, **{**before, "points": before["points"] + np.float32(2.0)})
    recipe.predict(call)
    assert "None of the 48 streamlines" in capsys.readouterr().out
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["bundles"]["left"]
    assert (scores["num_real"], scores["copied"], scores["ceiling_f1"]) == (24, None, None)
    # Without streamlines of the training their exemplars take part, and nothing is called held out.
    found = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert list(found["baselines"]) == [UNTRAINED, NOISY, MOVED, SAME]
    assert "held" not in found["verdict"]
    with pytest.raises(InputError, match=r"was not trained on .*arcs.npz, .* name that data"):
        recipe.benchmark(call)
    np.savez(bundles_file, **{**before, "names": np.array(["top", "bottom"])})
    with pytest.raises(InputError, match=r"has the bundles top, bottom, and the model knows left, right"):
        recipe.predict(call)


_RANKS = """
import sys, torch
from pathlib import Path
from rich.console import Console
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.tractography.recipe import train
import json
train(Call(data=Path(sys.argv[1]), out=Path(sys.argv[2]), device=torch.device("cpu"), fast_bfloat16=False,
           console=Console(), seed=3, overrides=json.loads(sys.argv[3])))
"""


# Rank 1 has fewer cores, and takes three times as long for an item.
_UNEQUAL = """
import os
from voxelocity_lab.recipes import fit
from voxelocity.step import TrainingStep
rank = int(os.environ["RANK"])
fit.cpu_budget = lambda: 2 - rank
TrainingStep.trial = lambda self, shape, clock: (shape[0] * (1.0 + 2.0 * rank), 0)
"""


@pytest.mark.parametrize(("before", "shares"), [("", []), (_UNEQUAL, [[8, 2]])], ids=["equal", "unequal"])
def test_two_ranks_train_the_weights_of_one_also_where_one_takes_more(before, shares, bundles_file, tmp_path):
    overrides = {**SMALL, "fit.optimizer.name": "sgd", "fit.optimizer.learning_rate": 0.1}
    alone = train(bundles_file, tmp_path / "alone", overrides)
    arguments = [str(bundles_file), str(tmp_path / "two"), json.dumps(overrides)]
    ended = finish(start_ranks(2, arguments, memory=tmp_path, script=before + _RANKS), timeout_s=HANGS_S)
    assert [status for status, _, _ in ended] == [0, 0], ended
    events = read_events(tmp_path / "two" / "events.jsonl")
    assert [event["shares"] for event in events if event["event"] == "balance"] == shares
    pairs = itertools.zip_longest(alone.network.parameters(), load_tracts(tmp_path / "two").network.parameters())
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
