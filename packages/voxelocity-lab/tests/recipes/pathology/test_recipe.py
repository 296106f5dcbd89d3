"""Patches, heat maps, a whole training, and what it refuses."""

import csv
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from monai.data import MetaTensor
from PIL import Image
from recipes.pathology.conftest import tissue, write_pyramid
from rich.console import Console

from shared.recipe_call import call_of
from voxelocity_lab.recipes.division import Division, Part
from voxelocity_lab.recipes.pathology import benchmark, recipe
from voxelocity_lab.recipes.pathology.baselines import Baselines, find_spots
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, Piece, find_pieces, identify
from voxelocity_lab.recipes.pathology.heatmap import HeatMap, _turned, _turned_back, merged, predict_slide, write_heat
from voxelocity_lab.recipes.pathology.judging import Judged
from voxelocity_lab.recipes.pathology.model import PatchNet, find_models, load_patches
from voxelocity_lab.recipes.pathology.page import (
    Figures,
    PieceScore,
    SlidePicture,
    _pictures,
    _table,
    slides_document,
)
from voxelocity_lab.recipes.pathology.patches import PatchBatches, Positions, any_within
from voxelocity_lab.recipes.pathology.resampling import Estimate
from voxelocity_lab.recipes.pathology.score import patches_of, roc_auc
from voxelocity_lab.recipes.pathology.settings import settings
from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Slide
from voxelocity_lab.recipes.pathology.train import _fit_handmade
from voxelocity_observe.core.errors import ConfigError, DatasetError, InputError, ScanError

CPU = torch.device("cpu")
SMALL = {"fit.batch_size": 8, "fit.steps": 3, "patch.side": 96, "tissue.downsample": 4.0}


def config(**overrides):
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return settings(small_call(None, None, keys))


def batches(tiles, chosen=None, **options):
    opened = OpenPieces(find_pieces(tiles))
    return PatchBatches(opened, Blocks(2**28), chosen or config(), **{"seed": 3, **options})


def test_a_square_is_near_tumor_as_when_every_square_is_looked_at():
    mask = np.random.default_rng(0).random((23, 31)) > 0.97
    for side in (1, 2, 5, 8):
        half = side // 2
        expected = [
            [
                mask[max(0, y - half) : y - half + side, max(0, x - half) : x - half + side].any()
                if y - half + side > 0 and x - half + side > 0
                else False
                for x in range(31)
            ]
            for y in range(23)
        ]
        assert np.array_equal(any_within(mask, side), expected)


def test_positions_are_all_that_is_set_and_each_once():
    masks = [np.random.default_rng(seed).random((5, 7)) > 0.6 for seed in range(3)]
    masks[1][:] = False
    places = Positions(masks)
    expected = [(number, int(y), int(x)) for number, mask in enumerate(masks) for y, x in np.argwhere(mask)]
    assert [places[number] for number in range(len(places))] == expected


def test_a_batch_depends_on_the_seed_and_its_number_alone(tiles):
    one, other = batches(tiles), batches(tiles)
    other(2)
    first, again = one(5), other(5)
    assert torch.equal(first.image, again.image)
    assert torch.equal(first.label, again.label)
    assert first.image.shape == (8, 3, 96, 96)
    assert first.label.shape == (8, 3, 3)
    assert not torch.equal(batches(tiles, seed=4)(5).image, first.image)
    halves = [one(5, part) for part in (slice(0, 3), slice(3, 8))]
    assert torch.equal(torch.cat([half.image for half in halves]), first.image)


def test_patches_without_changes_are_those_of_the_slide_and_have_its_label(tiles):
    made = batches(tiles, config(augment__enabled=False))
    for step in range(3):
        batch = made(step)
        _, boxes, is_tumor = made.draw(step)
        for row, (draw, box) in enumerate(zip(batch.draws, boxes, strict=True)):
            piece = made._pieces.pieces[draw.case]
            pixels = Slide(piece.slide).read(box)
            assert torch.allclose(batch.image[row], torch.from_numpy(pixels).float() / 255.0)
            mask = made._pieces.annotation(piece).mask(box, 1.0).reshape(3, 32, 3, 32).any(axis=(1, 3))
            assert np.array_equal(batch.label[row].numpy(), mask)
            assert mask[1, 1] == bool(is_tumor[row])
        assert is_tumor.sum() == 4


def test_training_needs_both_kinds_and_annotations(tiles, slide_file):
    with pytest.raises(DatasetError, match="slide has no annotation, so it cannot be trained on"):
        batches(slide_file)
    for path in (tiles / "masks").iterdir():
        from PIL import Image

        Image.fromarray(np.zeros((192, 192), bool)).save(path)
    with pytest.raises(DatasetError, match="hold no tumor; a classifier needs both"):
        batches(tiles)


def test_a_patch_is_the_square_in_its_middle():
    torch.manual_seed(0)
    network, image = PatchNet(0.25).eval(), torch.rand(2, 3, 96, 160)
    assert network(image).shape == (2, 3, 5)
    assert torch.equal(network.patches(image), network(image)[:, 1, 2])


def test_the_eight_turns_are_undone():
    image = torch.rand(1, 2, 5, 7)
    for turn in range(8):
        assert torch.equal(_turned_back(_turned(image, turn), turn), image)
    assert len({tuple(_turned(image, turn).flatten().tolist()) for turn in range(8)}) == 8


@pytest.mark.parametrize("is_dense", [False, True])
def test_squares_without_tissue_are_not_looked_at(slide_file, is_dense):
    torch.manual_seed(0)
    slide, chosen = Slide(slide_file), config(heat__is_dense=is_dense)
    heat = predict_slide(
        [PatchNet(0.25).eval()], slide, chosen, box=Box(y=0, x=0, height=320, width=400), device=CPU, num_threads=2
    )
    assert heat.probability.shape == (10, 12)
    assert np.isfinite(heat.probability[:, :11]).all()
    assert np.isnan(heat.probability[:, 11]).all() == (heat.num_seen == 110)
    assert heat.step == 32.0


def test_a_square_is_rated_by_all_patches_that_it_lies_in(slide_file):
    torch.manual_seed(0)
    network, slide = PatchNet(0.25).eval(), Slide(slide_file)
    box = Box(y=0, x=0, height=96, width=128)
    heat = predict_slide([network], slide, config(heat__turns=1), box=box, device=CPU, num_threads=1)
    total, num = np.zeros((2, 5, 6))
    for row, column in np.ndindex(3, 4):
        pixels = slide.read(Box(y=32 * row - 32, x=32 * column - 32, height=96, width=96))
        with torch.inference_mode():
            total[row : row + 3, column : column + 3] += network(torch.from_numpy(pixels)[None] / 255.0)[0].numpy()
        num[row : row + 3, column : column + 3] += 1
    expected = 1.0 / (1.0 + np.exp(-(total / num)[1:4, 1:5]))
    np.testing.assert_allclose(heat.probability, expected, rtol=1e-4)


def test_blocks_do_not_change_a_heat_map(slide_file, monkeypatch):
    torch.manual_seed(0)
    network, slide, box = PatchNet(0.25).eval(), Slide(slide_file), Box(y=0, x=0, height=320, width=400)
    whole = predict_slide([network], slide, config(), box=box, device=CPU, num_threads=1)
    monkeypatch.setattr("voxelocity_lab.recipes.pathology.heatmap._BLOCK", 3)
    parts = predict_slide([network], slide, config(), box=box, device=CPU, num_threads=2)
    np.testing.assert_allclose(parts.probability, whole.probability, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_read_is_reported_and_left_out(slide_file):
    slide = Slide(slide_file)
    plain = slide.read

    def read(box, level=0):
        if level == 0 and box.y <= 100 < box.y + box.height and box.x == 0:
            raise ScanError("pathology: slide.tiff: it is broken here")
        return plain(box, level)

    slide.read = read
    torch.manual_seed(0)
    heat = predict_slide(
        [PatchNet(0.25).eval()], slide, config(), box=Box(y=0, x=0, height=320, width=400), device=CPU, num_threads=2,
        blocks=Blocks(2**28, side=64),
    )  # fmt: skip
    assert heat.unread == ("pathology: slide.tiff: it is broken here",)
    assert np.isnan(heat.probability).all()


def test_a_patch_without_a_middle_is_refused():
    with pytest.raises(ConfigError, match=r"patch.side = 64 .*64 pixels are an even number of squares of 32"):
        config(patch__side=64)


def heat_map(probability, step=32.0, y=0, x=0):
    values = np.asarray(probability, np.float32)
    box = Box(y=y, x=x, height=int(values.shape[0] * step), width=int(values.shape[1] * step))
    return HeatMap(probability=values, step=step, box=box, num_seen=values.size)


def test_lesions_are_groups_with_their_most_probable_square():
    values = np.full((6, 8), np.nan)
    values[1, 1], values[1, 2], values[4, 6], values[0, 7] = 0.6, 0.9, 0.7, 0.3
    found = heat_map(values).lesions(least_probability=0.5, apart_pixels=0.0)
    assert found == [(pytest.approx(0.9), 80.0, 48.0), (pytest.approx(0.7), 208.0, 144.0)]
    assert len(heat_map(values).lesions(least_probability=0.5, apart_pixels=400.0)) == 1
    assert heat_map(values).lesions(least_probability=0.95, apart_pixels=0.0) == []


def test_a_heat_map_is_a_pyramid_that_viewers_open(tmp_path):
    slide = Slide(write_pyramid(tmp_path / "s.tiff", np.full((3200, 12800, 3), 200, np.uint8), num_levels=1))
    parts = [heat_map(np.full((4, 5), 1.0), y=320, x=640), heat_map(np.full((2, 2), 0.5), y=0, x=0)]
    whole = merged(parts, slide)
    assert whole.probability.shape == (100, 400)
    write_heat(whole, slide, tmp_path / "heat.tiff")
    opened = Slide(tmp_path / "heat.tiff")
    assert opened.shapes == ((100, 400), (50, 200))
    assert opened.micrometers == pytest.approx(16.0)
    pixels = opened.read(Box(y=0, x=0, height=100, width=400))[0]
    assert (pixels[10:14, 20:25] == 255).all()
    assert pixels[0, 0] == 128
    assert (pixels > 0).sum() == 24


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order():
    numbers = np.random.default_rng(0)
    scores, tumor = numbers.integers(0, 20, 200), numbers.random(200) > 0.6
    pairs = scores[tumor][:, None] - scores[~tumor]
    assert roc_auc(scores, tumor) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    assert np.isnan(roc_auc([0.1, 0.2], [True, True]))


def test_a_tile_of_512_has_the_64_patches_of_patch_camelyon():
    places = list(patches_of(Box(y=0, x=0, height=512, width=512), 96))
    assert len(places) == 64
    assert places[1].x == 59


def small_call(data, out, overrides=(), **options):
    return call_of(data, out, overrides={**SMALL, **dict(overrides)}, **options)


def test_folds_are_trained_predicted_and_scored(tiles, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out, {"folds": "all", "fit.steps": 10}))
    assert {path.name for path in out.iterdir()} == {"fold_0", "fold_1"}
    recipe.predict(call_of(tiles, out))
    scores = json.loads((out / "scores.json").read_text())
    assert scores["format"] == "voxelocity pathology report"
    assert set(scores["pieces"]) == {"t0", "t1", "t2", "t3"}
    assert 0.0 <= scores["patch_auc"] <= 1.0
    assert scores["drawn_again"] == "4 slides"
    for name in ("trained", "hand-made features", "untrained network", "mean intensity"):
        low, high = scores["intervals"][name]["patch_auc"]
        assert 0.0 <= low <= high <= 1.0
    assert "bootstrap 95 % intervals over the 4 slides" in scores["verdict"]
    assert set(scores["gains"]) == {"hand-made features", "untrained network", "mean intensity"}
    assert {path.name for path in (out / "heat").iterdir()} == {f"t{number}.tiff" for number in range(4)}
    with (out / "lesions.csv").open() as file:
        assert csv.DictReader(file).fieldnames == ["slide", "probability", "x", "y"]
    page = (out / "report.html").read_text()
    assert "annotated tumor" in page
    assert 'class="show-truth"' in page


def test_a_prediction_follows_its_settings_and_refuses_those_of_the_training(tiles, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out))
    squares = []
    for least_share in (0.1, 0.9):
        recipe.predict(small_call(tiles, out, {"tissue.least_share": least_share}))
        squares.append(json.loads((out / "scores.json").read_text())["num_squares"])
    assert squares[0] > squares[1] > 0
    with pytest.raises(ConfigError, match=r"pathology: network cannot differ from .*; leave them out, or train with"):
        recipe.predict(call_of(tiles, out, overrides={"network.width": 0.5}))
    with pytest.raises(ConfigError, match=r"heat\.turn'"):
        recipe.predict(call_of(tiles, out, overrides={"heat.turn": 8}))


def test_monais_slide_is_predicted_in_the_number_format_of_ours(monkeypatch):
    formats, side = [], (64, 64)

    def patches(images):
        formats.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return torch.zeros(len(images))

    monkeypatch.setattr(benchmark, "Tissue", lambda slide, config: SimpleNamespace(has=lambda box: True))
    monkeypatch.setattr(
        benchmark, "_monai_loader", lambda items, *_, **__: [{"image": MetaTensor(torch.zeros(len(items), 3, 96, 96))}]
    )
    for compute in ("float32", "bfloat16"):
        heat = benchmark._monai_heat(
            SimpleNamespace(slide=lambda piece: SimpleNamespace(shapes=[side])), SimpleNamespace(slide="a"),
            SimpleNamespace(patches=patches), config(precision__compute=compute), call_of(None, None), "openslide",
        )  # fmt: skip
        assert (heat == 0.5).all()
    assert formats == [torch.float32, torch.bfloat16]


def scores_of(out):
    return json.loads((out / "scores.json").read_text())["pieces"]


def notices_of(recipe_call, capsys):
    recipe.predict(replace(recipe_call, console=Console(width=10_000)))
    return capsys.readouterr().out


def test_what_was_trained_on_stays_trained_on_whatever_the_table_says_later(tiles, tmp_path, capsys):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out, {"folds": "all"}))
    model = json.loads((out / "fold_0" / "model.json").read_text())["division"]
    assert [part["name"] for part in model["trained"]] == ["t1", "t3"]
    assert [part["name"] for part in model["held_out"]] == ["t0", "t2"]
    assert yaml.safe_load((out / "fold_0" / "run.yaml").read_text())["division"] == model
    # Other names, folds and lines; and a new one.
    (tiles / "index.csv").write_text("id,fold\nnew,0\nother,0\nt1,0\nt2,1\nt3,0\n")
    for folder, ending in (("images", "jpg"), ("masks", "png")):
        (tiles / folder / f"t0.{ending}").rename(tiles / folder / f"other.{ending}")
    pixels, tumor = tissue(192, 192, seed=9)
    Image.fromarray(pixels).save(tiles / "images" / "new.jpg")
    Image.fromarray(tumor).save(tiles / "masks" / "new.png")
    parts = identify(find_pieces(tiles))
    folds = {loaded.fold: loaded.division for loaded in map(load_patches, find_models(out))}
    for fold, trained in ((0, {"t1", "t3"}), (1, {"other", "t2"})):
        assert {name for name, part in parts.items() if folds[fold].has(part, by_patient=True)} == trained
    (out / "fold_1").rename(tmp_path / "elsewhere")
    assert "trained on 2 of the 5 pieces, or on others" in notices_of(call_of(tiles, out), capsys)
    assert set(scores_of(out)) == {"new", "other", "t2"}


def test_a_training_is_not_continued_with_another_division(tiles, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out))
    (out / "fold_0" / "model.json").unlink()
    (tiles / "index.csv").write_text("id,fold\nt0,1\nt1,0\nt2,1\nt3,1\n")
    with pytest.raises(ConfigError, match="started with another value of division"):
        recipe.train(small_call(tiles, out, resume=True))


def test_all_pieces_of_another_data_set_are_unseen(tiles, tmp_path, capsys):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out, {"fit.steps": 10}))
    other = tmp_path / "other"
    shutil.copytree(tiles, other)
    for number in range(4):
        pixels = np.asarray(Image.open(other / "images" / f"t{number}.jpg"))
        Image.fromarray(pixels[::-1]).save(other / "images" / f"t{number}.jpg", quality=95)
    printed = notices_of(call_of(other, out), capsys)
    assert "none of these slides was used to train the networks, although 2 names are the same" in printed
    assert "they are not scored" not in printed
    assert set(scores_of(out / "predicted_other")) == {"t0", "t1", "t2", "t3"}
    scores = json.loads((out / "predicted_other" / "scores.json").read_text())
    assert scores["verdict"].startswith("On 4 unseen pieces of other")


def test_a_piece_of_a_slide_that_was_trained_on_is_held_out_only_if_the_training_held_it_out():
    def part(name, x, content="a", patient="p"):
        return Part(name=name, content=content, patient=patient, box=(0, x, 100, 100))

    division = Division(trained=(part("one", 0),), held_out=(part("two", 100), part("three", 50)))
    for found, is_seen in (
        (part("one", 0), True), (part("renamed", 0), True), (part("two", 100), False), (part("three", 50), True),
        (part("new", 200), True), (part("visit", 0, content="b"), True),
        (part("stranger", 0, content="b", patient="q"), False),
    ):  # fmt: skip
        assert division.has(found, by_patient=True) is is_seen, found
    assert not division.has(part("visit", 0, content="b"), by_patient=False)
    assert division.has(replace(part("whole", 0), box=()), by_patient=True)
    assert Division.from_plain(json.loads(json.dumps(division.to_plain()))) == division


def test_scores_beside_trained_pieces_of_one_slide_say_so(tmp_path, capsys):
    pixels, tumor = tissue(192, 400)
    write_pyramid(tmp_path / "slide.tiff", pixels)
    write_pyramid(tmp_path / "mask.tiff", 255 * tumor.astype(np.uint8))
    rows = [f"slide.tiff,mask.tiff,{fold},{200 * fold},0,200,192" for fold in (0, 1)]
    (tmp_path / "slides.csv").write_text("\n".join(["slide,annotation,fold,x,y,width,height", *rows]) + "\n")
    recipe.train(small_call(tmp_path, tmp_path / "run"))
    printed = notices_of(call_of(tmp_path, tmp_path / "run"), capsys)
    assert "1 piece of 2 were held out, but other pieces of their slides or patients were trained on" in printed


def test_slides_without_annotations_are_predicted_by_all_networks(tiles, slide_file, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out, {"folds": []}))
    recipe.predict(call_of(slide_file, out))
    other = out / "predicted_slide.tiff"
    assert (other / "heat" / "slide.tiff").exists()
    assert json.loads((other / "scores.json").read_text())["patch_auc"] is None
    with pytest.raises(InputError, match=r"all pieces of .* were trained on.* name other slides, or train with"):
        recipe.predict(call_of(tiles, out))


def test_a_finished_fold_is_not_trained_again_and_an_unknown_one_is_named(tiles, tmp_path):
    out = tmp_path / "run"
    recipe.train(small_call(tiles, out, {"folds": [1]}))
    before = (out / "fold_1" / "model.safetensors").stat().st_mtime_ns
    recipe.train(small_call(tiles, out, {"folds": [0, 1]}, resume=True))
    assert (out / "fold_1" / "model.safetensors").stat().st_mtime_ns == before
    assert (out / "fold_0" / "model.safetensors").exists()
    with pytest.raises(ConfigError, match=r"folds names fold 7, which no annotated piece of .* has; it has 0, 1"):
        recipe.train(small_call(tiles, tmp_path / "other", {"folds": [7]}))
    with pytest.raises(InputError, match="holds no finished training; train first"):
        recipe.predict(call_of(tiles, tmp_path / "none"))


def test_slides_without_annotations_are_not_trained_on_until_a_table_names_some(tiles, slide_file, tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    pixels, tumor = tissue(320, 400, seed=0)
    write_pyramid(folder / "s.tiff", pixels)
    for data in (folder, folder / "s.tiff"):
        with pytest.raises(DatasetError, match=r"none of the 1 pieces of .* has an annotation") as caught:
            recipe.train(small_call(data, tmp_path / "run"))
    rows = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    assert rows == ["slide,annotation", "s.tiff,ANNOTATION OF THIS SLIDE"]
    write_pyramid(folder / "m.tiff", 255 * tumor.astype(np.uint8))
    (folder / "slides.csv").write_text("\n".join(rows).replace("ANNOTATION OF THIS SLIDE", "m.tiff"))
    recipe.train(small_call(folder, tmp_path / "run", {"folds": []}))
    (tmp_path / "broken.svs").write_bytes(b"II*\0" + bytes(90))
    with pytest.raises(InputError, match=r"broken\.svs cannot be opened as a slide"):
        recipe.train(small_call(tmp_path / "broken.svs", tmp_path / "other"))


def test_a_slide_that_lacks_the_level_is_named(tiles, tmp_path):
    with pytest.raises(InputError, match=r"t\d.jpg has no level 1; it has 1 \(0 to 0\)"):
        recipe.train(small_call(tiles, tmp_path / "run", {"patch.level": 1}))


def test_tumor_is_learned(tmp_path):
    """The phantoms' tumor is purple: a few steps tell it from pink tissue."""
    for number in range(3):
        pixels, tumor = tissue(320, 400, seed=number)
        write_pyramid(tmp_path / f"s{number}.tiff", pixels)
        write_pyramid(tmp_path / f"m{number}.tiff", 255 * tumor.astype(np.uint8))
    rows = [f"s{number}.tiff,m{number}.tiff,{number}" for number in range(3)]
    (tmp_path / "slides.csv").write_text("\n".join(["slide,annotation,fold", *rows]) + "\n")
    recipe.train(small_call(tmp_path, tmp_path / "run", {"fit.steps": 25, "fit.batch_size": 16}))
    recipe.predict(call_of(tmp_path, tmp_path / "run"))
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["square_auc"] > 0.9


def test_the_score_stands_next_to_an_untrained_network_and_to_darkness(tiles, tmp_path):
    said = io.StringIO()
    call = small_call(tiles, tmp_path / "run", {"fit.steps": 10}, console=Console(file=said, width=200))
    recipe.train(call)
    recipe.predict(call)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    baselines = scores["baselines"]
    assert list(baselines) == ["hand-made features", "untrained network", "mean intensity", "chance"]
    assert baselines["chance"] == {"patch_auc": 0.5, "square_auc": 0.5}
    # The phantoms' tumor is darker than other tissue.
    assert baselines["mean intensity"]["square_auc"] > 0.8
    assert baselines["hand-made features"]["square_auc"] > 0.6
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (said.getvalue(), page):
        assert "Compared with baselines that need no training" in text
        assert f"{baselines['untrained network']['patch_auc']:.3f}" in text
    assert f"{baselines['mean intensity']['patch_auc']:.3f} by the mean intensity" in scores["verdict"]


def test_hand_made_features_know_only_what_the_network_was_trained_on(tiles, tmp_path):
    recipe.train(small_call(tiles, tmp_path / "run", {"folds": "all", "fit.steps": 1}))
    pieces, chosen = find_pieces(tiles), config()
    for fold in (0, 1):
        kept = load_patches(tmp_path / "run" / f"fold_{fold}").hand_made
        opened = OpenPieces([piece for piece in pieces if piece.fold != fold])
        fitted = _fit_handmade(opened, Blocks(2**28), chosen, seed=0)
        np.testing.assert_allclose(kept.weights, fitted.weights)


def test_models_of_earlier_versions_lack_hand_made_features(tiles, tmp_path):
    recipe.train(small_call(tiles, tmp_path / "run", {"fit.steps": 1}))
    path = tmp_path / "run" / "fold_0" / "model.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in plain.items() if key not in {"hand_made", "micrometers"}}))
    recipe.predict(call_of(tiles, tmp_path / "run"))
    assert set(json.loads((tmp_path / "run" / "scores.json").read_text())["baselines"]) == {
        "untrained network", "mean intensity", "chance",
    }  # fmt: skip


def test_the_untrained_network_is_the_one_that_the_training_began_with(tiles, tmp_path):
    recipe.train(small_call(tiles, tmp_path / "run", {"fit.steps": 1, "fit.optimizer.learning_rate": 1e-12}))
    trained = load_patches(tmp_path / "run" / "fold_0")
    state = torch.random.get_rng_state()
    before = trained.before_training()
    assert torch.equal(torch.random.get_rng_state(), state)
    for weight, trained_weight in zip(before.parameters(), trained.network.parameters(), strict=True):
        torch.testing.assert_close(weight, trained_weight, atol=1e-6, rtol=0.0)


def test_networks_of_too_few_steps_have_no_auc(tiles, tmp_path):
    said = io.StringIO()
    call = small_call(tiles, tmp_path / "run", {"fit.steps": 1}, console=Console(file=said, width=300))
    recipe.train(call)
    recipe.predict(call)
    assert "has no score: it made only 1 training step" in said.getvalue()
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["unlearned"].startswith("fold_0: it made only 1 training step")
    assert scores["verdict"].startswith("No score")
    assert scores["patch_auc"] is scores["square_auc"] is scores["froc"] is None
    assert scores["pieces"]["t0"]["patch_auc"] is not None
    assert "AUC of patches</" not in (tmp_path / "run" / "report.html").read_text().split("Pieces")[0]


def test_spots_are_the_darkest_or_lightest_tenth_of_the_squares(tmp_path):
    pixels = np.full((320, 640, 3), 200, np.uint8)
    pixels[64:128, 64:128] = 40
    slide = Slide(write_pyramid(tmp_path / "s.tiff", pixels))
    found = find_spots(heat_map(np.zeros((10, 20))), slide, config(), apart_pixels=0.0, is_darker=True)
    assert len(found) == 1
    probability, x, y = found[0]
    assert (64 < x < 128, 64 < y < 128, probability > 0.9) == (True, True, True)
    assert find_spots(heat_map(np.full((10, 20), np.nan)), slide, config(), apart_pixels=0.0, is_darker=True) == []


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_intensity_separates_in_the_direction_in_which_tumor_differs(tiles, tmp_path, sign):
    recipe.train(small_call(tiles, tmp_path / "run", {"fit.steps": 1}))
    baselines = Baselines([load_patches(tmp_path / "run" / "fold_0")], device=CPU, blocks=Blocks(2**20))
    scores, is_tumor = sign * np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True])
    for kinds in baselines._rated.values():
        for rated in kinds:
            rated.append((scores, is_tumor))
    aucs = {name: [roc_auc(*kind[0]) for kind in kinds] for name, kinds in baselines.rated().items()}
    assert aucs["mean intensity"] == [1.0, 1.0]
    assert aucs["untrained network"] == ([1.0, 1.0] if sign > 0.0 else [0.0, 0.0])
    assert baselines.is_darker == (sign > 0.0)


def test_only_lesions_of_the_pieces_that_were_predicted_are_to_be_found(tmp_path):
    """And heat maps of slides with one name do not replace each other."""
    mask = np.zeros((640, 1280), bool)
    mask[100:500, 100:400] = mask[100:500, 900:1200] = True
    pixels = np.full((640, 1280, 3), 200, np.uint8)
    rows = ["name,slide,annotation,fold,x,y,width,height"]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_pyramid(tmp_path / folder / "slide.tiff", pixels, micrometers=10.0)
        write_pyramid(tmp_path / folder / "mask.tiff", mask.astype(np.uint8) * 255, micrometers=10.0)
        rows += [f"{folder}{x},{folder}/slide.tiff,{folder}/mask.tiff,{x},{640 * x},0,640,640" for x in (0, 1)]
    (tmp_path / "slides.csv").write_text("\n".join(rows) + "\n")
    pieces = [piece for piece in find_pieces(tmp_path) if piece.fold == 0]
    opened, maps = OpenPieces(pieces), {}
    for piece in pieces:
        hot = np.full((20, 20), 0.1, np.float32)
        hot[8, 8] = 0.9
        maps[piece.slide] = [(piece, HeatMap(probability=hot, step=32.0, box=opened.box(piece), num_seen=400))]
    (tmp_path / "run").mkdir()
    judged = Judged(maps=maps, scores=[], notices=[])
    found, _, drawn = recipe._write(small_call(tmp_path, tmp_path / "run"), config(), opened, judged)
    assert [(slide.hits, slide.false) for slide in found] == [(pytest.approx((0.9,)), ())] * 2
    listed = csv.DictReader(io.StringIO((tmp_path / "run" / "lesions.csv").read_text()))
    assert [line["slide"] for line in listed] == ["one/slide.tiff", "two/slide.tiff"]
    assert [picture.title for picture in drawn] == ["one/slide.tiff", "two/slide.tiff"]
    assert sorted(path.name for path in (tmp_path / "run" / "heat").iterdir()) == [
        "one_slide.tiff.tiff", "two_slide.tiff.tiff",
    ]  # fmt: skip


def test_the_worst_slides_are_pictured_first_and_unscored_ones_last():
    def piece(name, slide):
        return Piece(name=name, slide=Path(slide), annotation=None, box=None, fold=0)

    maps = {
        Path(slide): [(piece(name, slide), None) for name in names]
        for slide, names in (("new", ["n"]), ("good", ["g"]), ("mixed", ["m", "w"]), ("flat", ["f"]))
    }
    aucs = {"g": 0.9, "m": 0.95, "w": 0.4, "f": math.nan}
    scores = [
        PieceScore(name=name, num_patches=1, patch_auc=0.5, square_auc=auc, tumor_share=0.5)
        for name, auc in aucs.items()
    ]
    assert [path.name for path in recipe._worst(maps, scores)] == ["mixed", "good", "new", "flat"]
    assert [row[0] for row in _table(scores).rows] == ["w", "g", "m", "f"]


def test_the_truth_of_a_slide_can_be_shown_wherever_it_stands():
    pixels, heat = np.zeros((3, 8, 8), np.uint8), np.zeros((8, 8), np.float32)
    drawn = [
        SlidePicture(title=name, pixels=pixels, probability=heat, truth=truth)
        for name, truth in (("a", None), ("b", heat > 0), ("c", None))
    ]
    (slides,) = _pictures(drawn)
    assert [(title, "truth" in films[0].layers) for title, films in slides.figures] == [
        ("b", True), ("a", False), ("c", False),
    ]  # fmt: skip


def test_the_verdict_counts_all_slides_and_says_what_is_within_chance():
    figures = Figures(froc={}, num_slides=20, num_squares=9, seconds=1.0)
    assert slides_document([], figures, [], [], settings={}).verdict.startswith("Predicted 20 slides, without")
    trained, others = Estimate(value=0.9, low=0.8, high=0.95), Estimate(value=0.85, low=0.8, high=0.9)
    for gain, words in (
        (Estimate(value=0.05, low=-0.01, high=0.1), "over the hand-made features is within chance: 0.050 (-0.010 to"),
        (Estimate(value=0.05, low=0.01, high=0.1), "The gain over the hand-made features is 0.050 (0.010 to 0.100)."),
        (Estimate(value=-0.1, low=-0.2, high=0.0), "So the training is no better than they are."),
    ):
        judged = replace(
            figures,
            aucs={"trained": (trained, trained), "hand-made features": (others, others)},
            gains={"hand-made features": (gain, gain)},
            units="7 patients",
        )
        score = PieceScore(name="a", num_patches=1, patch_auc=0.9, square_auc=0.9, tumor_share=0.5)
        document = slides_document([score], judged, [], [], settings={})
        assert words in document.verdict
        assert "0.900 (0.800 to 0.950) for patches" in document.verdict
        assert "bootstrap 95 % intervals over the 7 patients." in document.verdict
