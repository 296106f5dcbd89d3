"""Several models as one: what is averaged, and which models cannot be."""

import re

import numpy as np
import pytest
import torch

from shared.small_predictor import small_spec
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity.infer import Predictor, open_model, save_keep_largest, save_model, split_models
from voxelocity.infer.models.ensemble import StackedPreparations
from voxelocity.infer.models.open import open_models
from voxelocity.infer.models.spec import read_spec, write_spec
from voxelocity.step import build_network
from voxelocity_observe.core.errors import InputError, ScanError

CPU = torch.device("cpu")
WINDOW = {"mode": "window", "low": -2.0, "high": 2.0}


def save(folder, seed, *, labels=("background", "a", "b"), intensity=WINDOW, crop="none", orientation="RAS"):
    folder.mkdir()
    spec = small_spec(
        labels=dict(enumerate(labels)),
        prepare={"intensity": intensity, "crop": crop, "orientation": orientation, "dtype": "float32"},
        window={"shape_voxel": [8, 8, 8], "batch_size": 3},
    )
    save_model(folder, build_network(spec.network, num_channels=1, num_classes=len(labels), seed=seed), spec)
    return folder


def scan(seed=0, *, num_empty=0):
    image = np.random.default_rng(seed).standard_normal((1, 17, 12, 9)).astype(np.float32)
    image[:, :num_empty] = 0
    return Volume(case_id="x", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))


def predictor(model):
    return Predictor(model.network, model.spec, model.preparation, device=CPU)


class Kept(torch.nn.Module):
    """Answers with logits computed beforehand, in place of a network."""

    def __init__(self, answers):
        super().__init__()
        self.answers = iter(answers)

    def forward(self, windows):
        return next(self.answers)


def asked(model, volume):
    """The logits of each forward pass over a scan."""
    answers = []
    handle = model.network.register_forward_hook(lambda module, args, output: answers.append(output.clone()))
    predictor(model).predict(volume)
    handle.remove()
    return answers


@pytest.mark.parametrize(
    "intensities", [(WINDOW, WINDOW), (WINDOW, {**WINDOW, "high": 1.0}), ({"mode": "zscore"}, WINDOW)]
)
def test_an_ensemble_predicts_from_the_mean_of_the_logits(tmp_path, intensities):
    folders = [save(tmp_path / str(seed), seed, intensity=intensity) for seed, intensity in enumerate(intensities)]
    singles = [open_model(folder) for folder in folders]
    answers = [asked(model, scan()) for model in singles]
    means = [(answer + other) / 2 for answer, other in zip(*answers, strict=True)]
    expected = Predictor(Kept(means), singles[0].spec, singles[0].preparation, device=CPU).predict(scan())
    found = predictor(open_models(folders)).predict(scan())
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, predictor(singles[0]).predict(scan()))


def test_models_that_differ_in_how_many_windows_they_take_at_once_are_averaged_window_by_window(tmp_path):
    folders = [save(tmp_path / str(seed), seed) for seed in range(2)]
    expected = predictor(open_models(folders)).predict(scan())
    spec = read_spec(folders[1] / "model.json")
    window = spec.window.model_copy(update={"batch_size": 2})
    write_spec(folders[1], spec.model_copy(update={"window": window}))
    model = open_models(folders)
    assert not model.is_average
    assert model.spec.window.batch_size == 2
    np.testing.assert_array_equal(predictor(model).predict(scan()), expected)


def test_a_model_that_keeps_spacings_and_one_that_does_not_are_averaged_on_the_grid_of_the_scan(tmp_path):
    keeps, resamples = save(tmp_path / "keeps", 0), save(tmp_path / "resamples", 1)
    spec = read_spec(resamples / "model.json")
    prepare = spec.prepare.model_copy(update={"spacing_mm": (1.0, 1.0, 1.0)})
    write_spec(resamples, spec.model_copy(update={"prepare": prepare}))
    assert open_models([keeps, keeps]).parts == ()
    model = open_models([keeps, resamples])
    assert model.is_average
    assert [part.folder for part in model.parts] == [keeps, resamples]


def test_models_of_other_classes_are_refused_with_both_folders(tmp_path):
    one, other = save(tmp_path / "one", 0), save(tmp_path / "other", 1, labels=("background", "a", "c"))
    text = (
        f"the models in {one} and {other} cannot be averaged: their labels differ .*'b'.*'c'.* predict with each alone"
    )
    with pytest.raises(InputError, match=re.sub(r"\$", "", text)):
        open_models([one, other])


def test_models_that_crop_a_scan_differently_are_refused(tmp_path):
    folders = [save(tmp_path / crop, 0, crop=crop) for crop in ("none", "nonzero")]
    with pytest.raises(ScanError, match=r"case 'x': .* crop it to \(17, 12, 9\) and \(12, 12, 9\) voxels"):
        predictor(open_models(folders)).predict(scan(num_empty=5))


def test_models_that_turn_a_scan_differently_are_refused(tmp_path):
    folders = [save(tmp_path / orientation, 0, orientation=orientation) for orientation in ("RAS", "keep")]
    turned = scan().with_(grid=Grid.of((17, 12, 9), np.diag([-1.0, 1.0, 1.0, 1.0])))
    with pytest.raises(ScanError, match=r"case 'x': .* turn it to RAS and LAS, so .* predict with each alone"):
        predictor(open_models(folders)).predict(turned)
    predictor(open_models(folders)).predict(scan())


@pytest.mark.parametrize("highs", [(2.0,), (2.0, 1.0)])
def test_what_an_ensemble_prepares_is_described(highs):
    values = [{"intensity": {**WINDOW, "high": high}, "dtype": "smallest"} for high in highs]
    stacked = StackedPreparations([Preparation(PrepareConfig.parse(value, where="a test")) for value in values])
    assert stacked.describe(scan().spec).spec == stacked(scan()).spec


def test_leading_models_are_told_from_scans(tmp_path):
    one, other = save(tmp_path / "one", 0), save(tmp_path / "other", 1)
    scans = [tmp_path / "scan.nii.gz", tmp_path / "folder"]
    assert split_models([one, other, *scans]) == ([one, other], scans)
    assert split_models([tmp_path / "gone", *scans]) == ([tmp_path / "gone"], scans)
    with pytest.raises(InputError, match=f"{other}: these are models, and no scan is named"):
        split_models([one, other])


def test_an_ensemble_keeps_the_largest_component_where_all_its_models_do(tmp_path):
    folders = [save(tmp_path / "a", 1), save(tmp_path / "b", 2)]
    save_keep_largest(folders[0], ["a", "b"])
    save_keep_largest(folders[1], ["b"])
    assert open_models(folders).spec.keep_largest == ("b",)
