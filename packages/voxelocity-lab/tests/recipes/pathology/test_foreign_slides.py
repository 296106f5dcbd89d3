"""Slides as others make them: of any size and kind of pixels, without resolution or pyramid; each works or is named."""

import contextlib
import json
import random

import numpy as np
import pytest
import tifffile
from PIL import Image
from recipes.pathology.conftest import tissue, write_pyramid
from rich.console import Console

from shared.damage import rotten
from shared.examples import examples
from shared.recipe_call import call_of
from voxelocity_lab.recipes.pathology import recipe
from voxelocity_lab.recipes.pathology.annotations import Annotation
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, find_pieces
from voxelocity_lab.recipes.pathology.model import load_patches
from voxelocity_lab.recipes.pathology.slides import Box, Slide
from voxelocity_observe.core.errors import DatasetError, InputError

SMALL = {"fit.batch_size": 8, "fit.steps": 1, "tissue.downsample": 4.0}


def write_bare(path, pixels, **options):
    """A TIFF of one level and without a size of pixels."""
    tifffile.imwrite(path, pixels, tile=(64, 64), compression="deflate", **options)
    return path


def pixels_of(path, **options):
    slide = Slide(path, **options)
    height, width = slide.shapes[0]
    return slide.read(Box(y=0, x=0, height=height, width=width)).transpose(1, 2, 0)


@pytest.fixture
def foreign(tmp_path):
    """A folder of slides, none of which is like those of the training."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    write_bare(folder / "bare.tif", tissue(200, 150)[0], photometric="rgb")
    write_bare(folder / "gray.tif", tissue(130, 140)[0][..., 1], photometric="minisblack")
    write_pyramid(folder / "finer.tiff", tissue(128, 128)[0], micrometers=0.1)
    rgb = tissue(96, 96)[0]
    Image.fromarray(rgb[:16, :16]).save(folder / "tiny.png")
    Image.fromarray(rgb[:40, :33]).save(folder / "smaller_than_a_patch.jpg", quality=95)
    Image.fromarray(np.tile(rgb[:33], (1, 25, 1))).save(folder / "long.png")
    Image.fromarray(np.dstack([rgb, np.full(rgb.shape[:2], 255, np.uint8)])).save(folder / "rgba.png")
    Image.fromarray(rgb).quantize(16).save(folder / "palette.png")
    Image.fromarray(rgb).convert("CMYK").save(folder / "print.jpg", quality=95)
    return folder


def test_all_of_them_are_predicted_and_what_is_odd_is_said(tiles, foreign, tmp_path, capsys):
    out = tmp_path / "run"
    rows = ["slide,annotation,micrometers", "images/t0.jpg,masks/t0.png,0.5", "images/t1.jpg,masks/t1.png,0.5"]
    (tiles / "slides.csv").write_text("\n".join(rows) + "\n")
    recipe.train(call_of(tiles, out, overrides={**SMALL, "folds": []}))
    assert load_patches(out / "all_folds").micrometers == (0.5, 0.5)
    recipe.predict(call_of(foreign, out, console=Console(width=10_000)))
    said = capsys.readouterr().out
    assert "2 slides without a pixel size (bare.tif, gray.tif)" in said
    assert "1 slide with another pixel size than in training (finer.tiff): 0.1 micrometers for 0.5 to 0.5" in said
    assert "No tissue was found in gray" in said
    assert "tissue.least_saturation=0" in said
    results = out / "predicted_foreign"
    scores = json.loads((results / "scores.json").read_text())
    assert scores["num_squares"] > 100
    files = sorted(path.name for path in (results / "heat").iterdir())
    assert files == sorted(f"{path.stem}.tiff" for path in foreign.iterdir())
    shapes = {name: tifffile.imread(results / "heat" / name).shape for name in files}
    assert (shapes["tiny.tiff"], shapes["long.tiff"], shapes["bare.tiff"]) == ((1, 1), (1, 75), (6, 4))
    assert Slide(results / "heat" / "bare.tiff").micrometers is None
    assert Slide(results / "heat" / "finer.tiff").micrometers == pytest.approx(3.2)


def test_a_size_of_pixels_that_no_scanner_has_is_none(tmp_path):
    pixels = tissue(128, 128)[0]
    for dots in (72, 300):
        path = write_bare(
            tmp_path / f"{dots}.tif", pixels, photometric="rgb", resolution=(dots, dots), resolutionunit=2
        )
        assert Slide(path).micrometers is None
    (tmp_path / "slides.csv").write_text("slide,annotation,micrometers\n72.tif,,0.25\n")
    (piece,) = find_pieces(tmp_path)
    assert OpenPieces([piece]).slide(piece).micrometers == 0.25


def test_transparent_pixels_are_white_in_a_slide_and_no_tumor_in_a_mask(tmp_path):
    layers = np.zeros((40, 50, 4), np.uint8)
    layers[:20] = (200, 90, 150, 255)
    Image.fromarray(layers).save(tmp_path / "a.png")
    assert (pixels_of(tmp_path / "a.png")[20:] == 255).all()
    assert (pixels_of(tmp_path / "a.png")[:20] == (200, 90, 150)).all()
    mask = Annotation(tmp_path / "a.png", Slide(tmp_path / "a.png")).mask(Box(y=0, x=0, height=40, width=50), 1.0)
    assert np.array_equal(mask, layers[..., 3] > 0)


def test_of_sixteen_bits_the_upper_ones_are_seen(tmp_path):
    values = np.arange(2000, dtype=np.uint16).reshape(40, 50) * 32
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert np.array_equal(pixels_of(tmp_path / "deep.png")[..., 0], values >> 8)


def test_a_mask_of_eight_bits_in_sixteen_is_the_same_mask(tmp_path):
    pixels, tumor = tissue(96, 96)
    Image.fromarray(pixels).save(tmp_path / "s.png")
    Image.fromarray(255 * tumor.astype(np.uint16)).save(tmp_path / "m.png")
    mask = Annotation(tmp_path / "m.png", Slide(tmp_path / "s.png")).mask(Box(y=0, x=0, height=96, width=96), 1.0)
    assert np.array_equal(mask, tumor)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_pixels_of_more_than_sixteen_bits_are_refused(tmp_path, dtype):
    tifffile.imwrite(tmp_path / "a.tif", np.full((20, 30), 70_000, dtype), rowsperstrip=7, metadata=None)
    with pytest.raises(InputError, match=r"a\.tif cannot be opened as a slide"):
        Slide(tmp_path / "a.tif")


@pytest.mark.parametrize("color", [1, (0, 200, 0)])
def test_a_mask_of_labels_or_of_another_color_is_refused(tmp_path, color):
    pixels, tumor = tissue(96, 96)
    Image.fromarray(pixels).save(tmp_path / "s.png")
    Image.fromarray((tumor[..., None] * np.array(color)).astype(np.uint8).squeeze()).save(tmp_path / "m.png")
    with pytest.raises(InputError, match=r"m\.png has values up to (1|200), but none above 127 .*write tumor as 255"):
        Annotation(tmp_path / "m.png", Slide(tmp_path / "s.png"))


def test_a_piece_outside_of_its_slide_is_refused(tmp_path):
    Image.fromarray(tissue(96, 96)[0]).save(tmp_path / "s.png")
    for corner in ("200,0,20,20", "0,0,0,20", "10,10,-5,20"):
        (tmp_path / "slides.csv").write_text(f"slide,annotation,x,y,width,height\ns.png,,{corner}\n")
        with pytest.raises(InputError, match=r"has no pixel of .*s\.png, which has 96 x 96"):
            OpenPieces(find_pieces(tmp_path))


def test_training_on_gray_or_tiny_images_says_what_is_missing(tmp_path):
    rgb, tumor = tissue(96, 96)
    call = call_of(tmp_path, tmp_path / "run", overrides={**SMALL, "folds": []}, overwrite=True)
    Image.fromarray(tumor).save(tmp_path / "m.png")
    for image in (Image.fromarray(rgb).convert("L"), Image.fromarray(rgb).convert("L").convert("RGB")):
        image.save(tmp_path / "s.png")
        (tmp_path / "slides.csv").write_text("slide,annotation\ns.png,m.png\n")
        with pytest.raises(DatasetError, match=r"hold no other tissue; .*least_saturation=0 takes gray images"):
            recipe.train(call)
    Image.fromarray(rgb[:20, :20]).save(tmp_path / "s.png")
    Image.fromarray(tumor[:20, :20]).save(tmp_path / "m.png")
    with pytest.raises(DatasetError, match=r"both lie at least 16 pixels from the edges of a piece"):
        recipe.train(call)


def test_a_broken_image_is_named(tmp_path):
    Image.fromarray(tissue(96, 96)[0]).save(tmp_path / "s.png")
    content = (tmp_path / "s.png").read_bytes()
    for size in (10, 60, len(content) // 2):
        (tmp_path / "s.png").write_bytes(content[:size])
        with pytest.raises(InputError, match=r"the image .*s\.png cannot be read"):
            Slide(tmp_path / "s.png")


def test_tables_of_other_spreadsheets_are_read_or_named(tmp_path):
    (tmp_path / "slides.csv").write_text("slide;annotation;patient\na.tiff;m.tiff;x, y\n./b.tiff;;\n")
    first, second = find_pieces(tmp_path)
    assert (first.patient, first.slide.name, second.slide) == ("x, y", "a.tiff", tmp_path / "b.tiff")
    (tmp_path / "slides.csv").write_bytes("slide,annotation,patient\na.tiff,,Müller\n".encode("cp1252"))
    with pytest.raises(DatasetError, match=r"slides\.csv is not text in UTF-8; save the table"):
        find_pieces(tmp_path)


OME = (
    '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
    '<Image ID="Image:0"><Pixels ID="Pixels:0" SizeX="128" SizeY="128" {}><Channel ID="C:0"/></Pixels></Image></OME>'
)


@pytest.mark.parametrize("is_tiled", [True, False])
@pytest.mark.parametrize(
    ("attributes", "micrometers"),
    [
        ('PhysicalSizeX="0.25" PhysicalSizeY="0.25"', 0.25),
        ('PhysicalSizeX="0.25" PhysicalSizeXUnit="\N{MICRO SIGN}m"', 0.25),
        ('PhysicalSizeX="0.25" PhysicalSizeXUnit="&#181;m"', 0.25),
        ('PhysicalSizeX="250" PhysicalSizeXUnit="nm"', 0.25),
        ('PhysicalSizeXUnit="mm" PhysicalSizeX="0.00025"', 0.25),
        ('PhysicalSizeX="1" PhysicalSizeXUnit="pixel"', None),
        ('PhysicalSizeX="0"', None),
        ('PhysicalSizeX="x"', None),
        ("", None),
    ],
)
def test_the_size_of_pixels_of_ome_is_read(tmp_path, is_tiled, attributes, micrometers):
    form = {"tile": (64, 64)} if is_tiled else {"rowsperstrip": 16}
    path, pixels = tmp_path / "a.ome.tif", tissue(128, 128)[0]
    tifffile.imwrite(
        path, pixels, photometric="rgb", description=OME.format(attributes).encode(), metadata=None, **form
    )
    assert Slide(path).micrometers == (None if micrometers is None else pytest.approx(micrometers))
    assert np.array_equal(pixels_of(path), pixels)


def test_ome_comes_before_the_resolution_of_the_tiff(tmp_path):
    tifffile.imwrite(
        tmp_path / "a.tif", tissue(128, 128)[0], photometric="rgb", tile=(64, 64), metadata=None,
        description=OME.format('PhysicalSizeX="0.5"').encode(), resolution=(1e4, 1e4), resolutionunit="CENTIMETER",
    )  # fmt: skip
    assert Slide(tmp_path / "a.tif").micrometers == pytest.approx(0.5)


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_tiff_of_strips_is_a_slide_of_one_level(tmp_path, compression):
    pixels, path = tissue(100, 90)[0], tmp_path / "a.tif"
    tifffile.imwrite(
        path, pixels, photometric="rgb", rowsperstrip=7, compression=compression, resolution=(2e4, 2e4),
        resolutionunit="CENTIMETER", metadata=None,
    )  # fmt: skip
    slide = Slide(path)
    assert (slide.shapes, slide.downsamples) == (((100, 90),), (1.0,))
    assert slide.micrometers == pytest.approx(0.5)
    assert np.array_equal(pixels_of(path), pixels)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL.*")
def test_damaged_tiffs_of_strips_are_refused_as_slides_are(tmp_path):
    path, numbers = tmp_path / "a.tif", random.Random("strips")
    tifffile.imwrite(path, tissue(60, 50)[0], photometric="rgb", rowsperstrip=7, compression="deflate", metadata=None)
    whole = path.read_bytes()
    for _ in range(examples(12)):
        path.write_bytes(rotten(numbers, whole))
        with contextlib.suppress(InputError):
            Slide(path)
