import base64
import io

import numpy as np
from matplotlib.image import imread

from voxelocity.report.palette import class_color
from voxelocity.report.slices import overlay, png_data_uri


def test_a_slice_without_classes_stays_grey():
    image = np.arange(400 * 400, dtype=np.uint32).reshape(400, 400).astype(np.uint8)
    drawn = overlay(image, np.zeros_like(image))
    assert drawn.shape == (400, 400, 3)
    assert (drawn == image[..., None]).all()


def test_a_class_is_outlined_in_its_color_and_filled_lightly():
    image = np.full((400, 400), 100, np.uint8)
    classes = np.zeros_like(image)
    classes[100:200, 100:200] = 2
    drawn = overlay(image, classes)
    color = np.array(class_color(2))
    assert (drawn[100, 150] == color).all()
    assert (drawn[150, 199] == color).all()
    assert (drawn[99, 150] == 100).all()
    inside = drawn[150, 150].astype(int)
    assert (abs(inside - 100) < abs(color - 100)).all()
    assert (inside != 100).any()


def test_neighboring_classes_are_both_outlined_where_they_meet():
    classes = np.ones((400, 400), np.uint8)
    classes[:, 200:] = 3
    drawn = overlay(np.zeros_like(classes), classes)
    assert (drawn[50, 199] == class_color(1)).all()
    assert (drawn[50, 200] == class_color(3)).all()
    assert not (drawn[50, 100] == class_color(1)).all()


def test_a_small_slice_is_enlarged_by_whole_voxels():
    image = np.arange(50 * 35, dtype=np.uint16).reshape(50, 35).astype(np.uint8)
    drawn = overlay(image, np.zeros_like(image))
    assert drawn.shape == (350, 245, 3)
    assert (drawn[::7, ::7, 0] == image).all()
    assert (drawn[6::7, 6::7, 0] == image).all()


def test_a_picture_survives_the_way_through_its_address():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    head, data = png_data_uri(pixels).split(",")
    assert head == "data:image/png;base64"
    read = imread(io.BytesIO(base64.b64decode(data)), format="png")
    assert (np.round(read[..., :3] * 255) == pixels).all()
    assert png_data_uri(pixels) == png_data_uri(pixels.copy())
