"""Pictures of slides: cropped to tissue, parts side by side, with heat map and truth where they belong."""

import numpy as np
import pytest
from recipes.pathology.conftest import PINK, PURPLE, write_pyramid

from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.heatmap import HeatMap
from voxelocity_lab.recipes.pathology.picture import PICTURE_SIDE, pack, picture_of, tissue_parts
from voxelocity_lab.recipes.pathology.slides import Box, Slide
from voxelocity_observe.core.errors import ScanError


def seen(shape, *boxes):
    found = np.zeros(shape, bool)
    for y, x, height, width in boxes:
        found[y : y + height, x : x + width] = True
    return found


def test_a_slide_is_cropped_to_its_tissue():
    assert tissue_parts(seen((50, 60), (20, 30, 10, 15))) == [Box(y=19, x=29, height=12, width=17)]
    assert tissue_parts(seen((8, 9), (0, 0, 8, 9))) == [Box(y=0, x=0, height=8, width=9)]
    assert tissue_parts(seen((8, 9))) == [Box(y=0, x=0, height=8, width=9)]
    # Little lies between these two.
    assert len(tissue_parts(seen((30, 30), (2, 2, 20, 12), (2, 17, 20, 12)))) == 1


def test_parts_that_are_far_apart_stand_alone_and_none_is_shown_twice():
    is_seen = seen((100, 100), (5, 5, 10, 10), (80, 5, 8, 30), (40, 70, 3, 20), (44, 60, 20, 15))
    parts = tissue_parts(is_seen)
    shown = np.zeros(is_seen.shape, int)
    for part in parts:
        shown[part.slices] += 1
    assert len(parts) == 3
    assert shown.max() == 1
    assert (shown[is_seen] == 1).all()
    assert shown.mean() < 0.15


def test_a_strip_is_cut_and_none_of_it_is_lost():
    parts = tissue_parts(np.ones((2, 900), bool))
    assert len(parts) > 5
    assert sum(part.width for part in parts) == 900
    _, (rows, columns) = pack([(part.height, part.width) for part in parts])
    assert columns < 6 * rows


@pytest.mark.parametrize("seed", range(5))
def test_packed_rectangles_do_not_overlap(seed):
    sizes = [tuple(size) for size in np.random.default_rng(seed).integers(1, 40, (12, 2)).tolist()]
    places, (rows, columns) = pack(sizes)
    taken = np.zeros((rows, columns), int)
    for (row, column), (height, width) in zip(places, sizes, strict=True):
        taken[row : row + height, column : column + width] += 1
    assert taken.max() == 1
    assert taken.sum() == sum(height * width for height, width in sizes)


def two_pieces_of_tissue(tmp_path, num_levels):
    """Pink squares with purple corners, at opposite ends of a slide of glass; heat on the purple."""
    pixels, tumor = np.full((640, 1280, 3), 244, np.uint8), np.zeros((640, 1280), bool)
    for y, x in ((64, 64), (448, 1088)):
        pixels[y : y + 128, x : x + 128] = PINK
        pixels[y : y + 64, x : x + 64] = PURPLE
        tumor[y : y + 64, x : x + 64] = True
    slide = Slide(write_pyramid(tmp_path / "s.tiff", pixels, num_levels=num_levels))
    annotation = Annotation(write_pyramid(tmp_path / "m.tiff", 255 * tumor.astype(np.uint8)), slide)
    is_tissue = pixels[16::32, 16::32, 1] < 200
    heat = np.where(is_tissue, tumor[16::32, 16::32], np.nan).astype(np.float32)
    box = Box(y=0, x=0, height=640, width=1280)
    return slide, annotation, HeatMap(probability=heat, step=32.0, box=box, num_seen=32)


@pytest.mark.parametrize("num_levels", [1, 3])
def test_heat_and_truth_lie_on_their_tissue_and_glass_is_left_out(tmp_path, num_levels):
    slide, annotation, heat = two_pieces_of_tissue(tmp_path, num_levels)
    picture = picture_of("s", slide, heat, annotation)
    is_purple = (np.abs(picture.pixels.astype(int) - np.reshape(PURPLE, (3, 1, 1))) < 5).all(axis=0)
    assert picture.title == "s, 2 parts with tissue"
    assert picture.pixels.shape[1:] == picture.probability.shape == picture.truth.shape
    assert max(picture.pixels.shape) <= PICTURE_SIDE
    assert np.array_equal(picture.truth, is_purple)
    assert np.array_equal(picture.probability > 0.5, is_purple)
    assert is_purple.sum() == pytest.approx(2 * 64 * 64)
    assert (picture.pixels[1] < 200).mean() > 0.3


def test_what_cannot_be_read_is_white(tmp_path):
    slide, _, heat = two_pieces_of_tissue(tmp_path, 1)

    def read(box, level=0):
        raise ScanError("broken")

    slide.read = read
    picture = picture_of("s", slide, heat, None)
    assert (picture.pixels == 255).all()
    assert picture.truth is None
