"""What recipes write about their benchmarks."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from shared.recipe_call import call_of
from voxelocity_lab.bench.comparison import Comparison, Figure
from voxelocity_lab.recipes.pages import write_benchmark
from voxelocity_lab.recipes.pathology import benchmark as pathology
from voxelocity_lab.recipes.tractography import benchmark as tractography
from voxelocity_lab.recipes.tractography.bundles import TractDivision, open_bundles, split
from voxelocity_lab.recipes.tractography.settings import settings as tractography_settings
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import InputError


def test_a_benchmark_shows_and_keeps_what_belongs_to_no_comparison(tmp_path):
    shown = io.StringIO()
    call = call_of(tmp_path, tmp_path, console=PlainConsole(file=shown))
    figures = tuple(Figure(name=name, note="", values=(value,)) for name, value in (("Voxelocity", 4.0), ("M", 2.0)))
    compared = Comparison(title="reading", unit="patches/s", better="larger", figures=figures)
    write_benchmark(call, "pathology", [compared], {"rounds": 1}, {"square_auc": {"Voxelocity": 0.989}})
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "square_auc.Voxelocity 0.989" in lines
    assert f"see {tmp_path / 'bench_pathology.html'}" in lines
    assert json.loads((tmp_path / "bench_pathology.json").read_text())["square_auc"] == {"Voxelocity": 0.989}


def test_a_model_of_all_streamlines_has_none_to_be_compared_with(bundles_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    call = call_of(bundles_file, tmp_path / "run")
    config = tractography_settings(replace(call, overrides={"split.held_out": 0.0}))
    bundles = open_bundles(bundles_file, num_points=config.network.num_points)
    sides = split(bundles, by="streamline", held_out=0.0, seed=0)
    division = TractDivision.of(bundles, sides, by="streamline", data=bundles_file)
    trained = SimpleNamespace(config=config, names=bundles.names, division=division)
    monkeypatch.setattr(tractography, "load_tracts", lambda out: trained)
    monkeypatch.setattr(tractography, "change_sampling", lambda call, trained: trained)
    with pytest.raises(InputError, match=r"was trained on all streamlines of .*; train with split\.held_out above 0"):
        tractography.benchmark(call)


@pytest.mark.parametrize("batch_size", [8, 32])
def test_the_plain_way_is_timed_on_whole_batches_however_few_streamlines_there_are(batch_size, bundles_file, tmp_path):
    overrides = {"network.num_points": 8, "network.num_waves": 4, "network.width": 8, "network.depth": 1}
    call = call_of(bundles_file, tmp_path / "run", overrides=overrides)
    bundles = open_bundles(bundles_file, num_points=8)
    (members,) = np.nonzero(np.arange(len(bundles)) % 4 == 0)
    ways = tractography._training_ways(call, tractography_settings(call), bundles.part(members))
    assert all(way(batch_size, 2) > 0.0 for way in ways.values())


def test_slides_of_one_fold_cannot_be_trained_on_and_held_out(tmp_path, monkeypatch):
    (tmp_path / "slides.csv").write_text("slide,annotation\na.svs,a.xml\nb.svs,b.xml\n")
    monkeypatch.setattr(pathology, "find_models", lambda out: [out])
    monkeypatch.setattr(pathology, "load_patches", lambda folder: None)
    monkeypatch.setattr(pathology, "change_heat", lambda call, trained: trained)
    with pytest.raises(InputError, match=r"annotated pieces of fold 0, 1 alone; give slides\.csv a column fold"):
        pathology.benchmark(call_of(tmp_path, tmp_path / "run"))
