"""Slides, their annotations, and what is found in a folder."""

import json
import struct

import numpy as np
import pytest
from PIL import Image
from recipes.pathology.conftest import tissue, write_pyramid

from voxelocity_lab.recipes import division
from voxelocity_lab.recipes.division import content_of
from voxelocity_lab.recipes.pathology.annotations import Annotation, filled, read_outlines
from voxelocity_lab.recipes.pathology.dataset import OpenPieces, find_pieces
from voxelocity_lab.recipes.pathology.settings import TissueConfig
from voxelocity_lab.recipes.pathology.slides import Blocks, Box, Slide
from voxelocity_lab.recipes.pathology.tissue import Tissue
from voxelocity_observe.core.errors import DatasetError, InputError, ScanError


def test_a_region_has_the_pixels_of_its_level_and_white_beyond(slide_file):
    pixels = tissue(320, 400)[0].transpose(2, 0, 1)
    slide = Slide(slide_file)
    assert slide.shapes == ((320, 400), (160, 200), (80, 100))
    assert slide.downsamples == (1.0, 2.0, 4.0)
    assert slide.micrometers == pytest.approx(0.5)
    read = slide.read(Box(y=-3, x=390, height=20, width=30))
    assert np.array_equal(read[:, 3:, :10], pixels[:, :17, 390:])
    assert (read[:, :3] == 255).all()
    assert (read[:, :, 10:] == 255).all()
    coarse = slide.read(Box(y=10, x=20, height=8, width=6), level=2)
    assert np.array_equal(coarse, pixels[:, 40:72:4, 80:104:4])


def test_blocks_give_the_same_and_each_is_read_once(slide_file):
    slide, asked = Slide(slide_file), []
    plain = slide.read
    slide.read = lambda box, level=0: asked.append(box) or plain(box, level)
    blocks, numbers = Blocks(2**30, side=64), np.random.default_rng(0)
    for _ in range(40):
        y, x, height, width = numbers.integers((-40, -40, 1, 1), (340, 420, 150, 150))
        box = Box(y=int(y), x=int(x), height=int(height), width=int(width))
        assert np.array_equal(blocks.read(slide, box), plain(box))
    assert len(asked) == len(set(asked)) <= 5 * 7


def test_a_small_budget_keeps_the_blocks_used_last(slide_file):
    slide, asked = Slide(slide_file), []
    plain = slide.read
    slide.read = lambda box, level=0: asked.append(box) or plain(box, level)
    blocks = Blocks(3 * 64 * 64 * 2, side=64)
    for column in (0, 1, 0, 2, 0, 1):
        blocks.read(slide, Box(y=0, x=64 * column, height=8, width=8))
    assert [box.x // 64 for box in asked] == [0, 1, 2, 1]


def test_slides_that_cannot_be_opened_are_named_with_a_cure(tmp_path, real_data):
    broken = real_data / "wsi" / "openslide_fixtures" / "unopenable.tiff"
    with pytest.raises(
        InputError, match=r"unopenable.tiff cannot be opened as a slide .*convert it to a pyramidal TIFF"
    ):
        Slide(broken)
    with pytest.raises(InputError, match=r"the slide .*none.svs does not exist"):
        Slide(tmp_path / "none.svs")
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"a.jpg cannot be read"):
        Slide(tmp_path / "a.jpg")


def crafted_tiff(path, *, side, tile, num_tiles=16):
    """An uncompressed TIFF whose header claims this size."""
    tags = [
        (256, 4, 1, side), (257, 4, 1, side), (258, 3, 3, None), (259, 3, 1, 1), (262, 3, 1, 2), (277, 3, 1, 3),
        (322, 4, 1, tile), (323, 4, 1, tile), (324, 4, num_tiles, None), (325, 4, num_tiles, None),
    ]  # fmt: skip
    after = 8 + 2 + 12 * len(tags) + 4
    values = {
        258: struct.pack("<3H", 8, 8, 8),
        324: struct.pack("<16I", *[600] * 16),
        325: struct.pack("<16I", *[768] * 16),
    }
    entries, blob = b"", b""
    for tag, kind, count, value in tags:
        entries += struct.pack("<HHII", tag, kind, count, after + len(blob) if value is None else value)
        blob += values.get(tag, b"")
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + blob
    path.write_bytes(header.ljust(600, b"\0") + bytes(2000))
    return path


@pytest.mark.parametrize("ending", ["tiff", "svs"])
def test_a_slide_that_would_end_the_program_is_refused(tmp_path, ending):
    assert Slide(crafted_tiff(tmp_path / f"plain.{ending}", side=64, tile=16)).shapes == ((64, 64),)
    for side in (2**30, 2**31 - 1):
        with pytest.raises(InputError, match=rf"huge\.{ending}"):
            Slide(crafted_tiff(tmp_path / f"huge.{ending}", side=side, tile=2**30)).read(
                Box(y=0, x=0, height=8, width=8)
            )


@pytest.mark.parametrize(
    "name", ["CMU-1-Small-Region.svs", "cptac_15BR001_level.dcm", "CMU-1-Small-Region_pyramid.tiff"]
)
def test_real_slides_give_tissue(name, real_data):
    slide = Slide(real_data / "wsi" / name)
    found = Tissue(slide, TissueConfig())
    assert 0.05 < found.mask.mean() < 0.95
    y, x = (int(at * found.downsample) for at in np.argwhere(found.mask)[found.mask.sum() // 2])
    assert slide.read(Box(y=y - 25, x=x - 25, height=50, width=50)).std() > 3.0


def test_a_level_that_is_missing_is_named(slide_file):
    with pytest.raises(InputError, match=r"slide.tiff has no level 3; it has 3 \(0 to 2\)"):
        Slide(slide_file).read(Box(y=0, x=0, height=1, width=1), level=3)


def test_a_tile_that_is_broken_is_named_and_the_others_can_be_read(tmp_path):
    path = write_pyramid(tmp_path / "s.tiff", tissue(320, 400)[0], num_levels=1)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = b"\xff" * 4000
    path.write_bytes(content)
    slide = Slide(path)
    messages = []
    for y in range(0, 320, 64):
        for x in range(0, 384, 64):
            try:
                slide.read(Box(y=y, x=x, height=64, width=64))
            except ScanError as error:
                messages.append(str(error))
    assert 1 <= len(messages) < 10
    assert all("s.tiff: 64 x 64 pixels at x " in text for text in messages)
    assert all("copy the slide again from its source" in text for text in messages)


def test_tissue_is_what_is_not_glass(slide_file):
    found = Tissue(Slide(slide_file), TissueConfig(downsample=4.0))
    assert found.downsample == 4.0
    assert found.mask[:, :85].mean() > 0.98
    assert found.mask[:, 92:].mean() == 0.0
    assert found.has(Box(y=0, x=100, height=20, width=20))
    assert not found.has(Box(y=0, x=380, height=20, width=20))


def crossing_number(outline, y, x):
    inside = False
    for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside


def test_outlines_are_filled_as_point_by_point():
    numbers = np.random.default_rng(1)
    for _ in range(5):
        outline = numbers.uniform(-10.0, 60.0, (9, 2))
        box = Box(y=3, x=-4, height=25, width=30)
        ours = filled([outline], box, 1.5)
        theirs = [
            [crossing_number(outline, (y + 0.5) * 1.5, (x + 0.5) * 1.5) for x in range(-4, 26)] for y in range(3, 28)
        ]
        assert np.array_equal(ours, theirs)


def test_real_outlines_have_their_area(real_data):
    path = sorted((real_data / "camelyon16_annotations" / "polygons").glob("*.json"))[0]
    tumor, _ = read_outlines(path)
    outline = max(tumor, key=len)
    x, y = outline.T
    area = 0.5 * abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))
    low, high = outline.min(axis=0), outline.max(axis=0)
    downsample = max(high - low) / 700.0
    box = Box(
        y=int(low[1] / downsample) - 1, x=int(low[0] / downsample) - 1, height=800, width=800
    )  # fmt: skip
    assert filled([outline], box, downsample).sum() * downsample**2 == pytest.approx(area, rel=0.01)


def write_outlines(path, positive, negative=()):
    path.write_text(json.dumps({"positive": positive, "negative": list(negative)}))
    return path


SQUARE = [[100, 80], [200, 80], [200, 160], [100, 160]]
HOLE = [[120, 100], [140, 100], [140, 120], [120, 120]]


def test_outlines_with_holes_are_a_mask_at_any_downsample(slide_file, tmp_path):
    annotation = Annotation(write_outlines(tmp_path / "a.json", [SQUARE], [HOLE]), Slide(slide_file))
    whole = annotation.mask(Box(y=0, x=0, height=320, width=400), 1.0)
    assert whole.sum() == 100 * 80 - 20 * 20
    coarse = annotation.mask(Box(y=0, x=0, height=80, width=100), 4.0)
    assert coarse.sum() == whole.sum() / 16


def write_asap(path, groups, kind="Polygon"):
    text = "".join(
        f'<Annotation Name="A {group}" PartOfGroup="{group}" Type="{kind}"><Coordinates>'
        + "".join(f'<Coordinate Order="{n}" X="{x}" Y="{y}"/>' for n, (x, y) in enumerate(points))
        + "</Coordinates></Annotation>"
        for group, points in groups.items()
    )
    path.write_text(f"<ASAP_Annotations><Annotations>{text}</Annotations></ASAP_Annotations>")
    return path


@pytest.mark.parametrize(("tumor", "hole"), [("_0", "_2"), ("Tumor", "Exclusion"), ("metastases", "normal")])
def test_the_xml_of_asap_means_the_same(slide_file, tmp_path, tumor, hole):
    path = write_asap(tmp_path / "a.xml", {tumor: SQUARE, hole: HOLE})
    box, slide = Box(y=50, x=50, height=200, width=200), Slide(slide_file)
    same = Annotation(write_outlines(tmp_path / "a.json", [SQUARE], [HOLE]), slide)
    assert np.array_equal(Annotation(path, slide).mask(box, 1.0), same.mask(box, 1.0))


def test_annotations_that_may_mean_anything_are_refused_by_name(slide_file, tmp_path):
    slide = Slide(slide_file)
    path = write_asap(tmp_path / "a.xml", {"Tumor": SQUARE, "necrosis": HOLE})
    with pytest.raises(
        InputError, match=r"annotation 'A necrosis' is in the group 'necrosis', which may or may not be tumor"
    ):
        Annotation(path, slide)
    path = write_asap(tmp_path / "a.xml", {"Tumor": SQUARE}, kind="PointSet")
    with pytest.raises(InputError, match=r"annotation 'A Tumor' is a PointSet, which has no area"):
        Annotation(path, slide)
    (tmp_path / "a.json").write_text(json.dumps({"positive": [SQUARE], "unsure": [HOLE]}))
    with pytest.raises(InputError, match=r"it also has unsure"):
        Annotation(tmp_path / "a.json", slide)


def test_a_mask_is_read_at_any_downsample(slide_file, tmp_path):
    tumor = tissue(320, 400)[1]
    annotation = Annotation(write_pyramid(tmp_path / "m.tiff", 255 * tumor.astype(np.uint8)), Slide(slide_file))
    assert np.array_equal(annotation.mask(Box(y=-5, x=0, height=50, width=60), 1.0)[5:], tumor[:45, :60])
    assert np.array_equal(annotation.mask(Box(y=0, x=0, height=160, width=200), 2.0), tumor[::2, ::2])


@pytest.mark.parametrize(
    ("positive", "named"),
    [
        ([[[500, 10], [600, 10], [600, 50]]], r"outline 0 of .*a.json lies outside of .*slide.tiff \(400 x 320 pixels"),
        ([[[1, 1], [2, 2]]], r"outline 0 of .*a.json has 2 points"),
        ([[[1, 1], [2, float("nan")], [3, 1]]], r"or one that is not a number"),
        ("no list", r"a.json cannot be read .*must be JSON with the lists `positive` and `negative`"),
    ],
)
def test_outlines_that_cannot_be_used_are_named(positive, named, slide_file, tmp_path):
    with pytest.raises(InputError, match=named):
        Annotation(write_outlines(tmp_path / "a.json", positive), Slide(slide_file))


def test_a_mask_of_another_size_is_refused(slide_file, tmp_path):
    Image.fromarray(np.zeros((50, 60), np.uint8)).save(tmp_path / "m.png")
    with pytest.raises(InputError, match=r"m.png has 60 x 50 pixels, and its slide .*slide.tiff has 400 x 320"):
        Annotation(tmp_path / "m.png", Slide(slide_file))


def test_a_table_names_slides_and_parts_of_them(slide_file, tmp_path):
    write_outlines(tmp_path / "a.json", [SQUARE])
    (tmp_path / "slides.csv").write_text(
        "slide,annotation,fold,x,y,width,height\nslide.tiff,a.json,2,16,8,100,90\nslide.tiff,,,,,,\n"
    )
    part, whole = find_pieces(tmp_path)
    assert (part.name, part.fold, part.box) == ("slide_x16_y8", 2, Box(y=8, x=16, height=90, width=100))
    assert (whole.name, whole.annotation, whole.box) == ("slide", None, None)
    opened = OpenPieces([part, whole])
    assert opened.slide(part) is opened.slide(whole)
    assert opened.box(whole) == Box(y=0, x=0, height=320, width=400)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slide,fold\na.tiff,0\n", r"slides.csv has no column 'annotation'"),
        ("slide,annotation,fold\na.tiff,,first\n", r"line 2 of .*: fold is 'first'; it must be a whole number"),
        ("slide,annotation,x\na.tiff,,5\n", r"has x only; a piece needs x, y, width and height"),
        ("slide,annotation\na.tiff,\na.tiff,\n", r"two pieces called 'a'"),
        ("slide,annotation\n", r"holds no slides"),
        ("slide,annotation,Patient\na.tiff,,p\n", r"a column 'Patient', which is unknown; call it 'patient'"),
        ("slide,annotation,patient_id\na.tiff,,p\n", r"a column 'patient_id', which is unknown; call it 'patient'"),
        ("slide,annotation,Folds\na.tiff,,0\n", r"a column 'Folds', which is unknown; call it 'fold'"),
        ("slide,annotation,fold\na.tiff,,-1\n", r"line 2 of .*: fold is -1; folds are numbered from 0"),
        ("slide,annotation\n,m.png\n", r"line 2 of .* names no slide"),
        ("slide,annotation\na,b.tiff,m.png\n", r"line 2 of .* more cells than the table has columns"),
        ("slide,annotation,micrometers\na.tiff,,353\n", r"line 2 of .*: micrometers is '353'"),
        (
            "slide,annotation,patient,fold\na.tiff,m.png,p,0\nb.tiff,m.png,p,1\n",
            r"the patient 'p' fold 0 in line 2 and fold 1 in line 3, so that networks would be scored on their "
            "training patients",
        ),
        (
            "slide,annotation,fold\na.tiff,m.png,0\nb.tiff,n.png,\n",
            r"line 3 of .*: b.tiff has an annotation and no fold, which other slides have",
        ),
        (
            "slide,annotation,fold,patient\na.tiff,m.png,2,\nb.tiff,n.png,,\nc.tiff,o.png,0,anna\n",
            r"line 3 of .*: b.tiff has an annotation and no fold, which other slides have",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_named(text, named, tmp_path):
    (tmp_path / "slides.csv").write_text(text)
    with pytest.raises(DatasetError, match=named):
        find_pieces(tmp_path)


def folds_of(folder, rows, head="slide,annotation,x,y,width,height"):
    (folder / "slides.csv").write_text("\n".join([head, *rows]) + "\n")
    return {piece.name: piece.fold for piece in find_pieces(folder)}


def test_pieces_of_a_slide_and_visits_of_a_patient_share_a_fold_in_any_order_of_lines(tmp_path):
    rows = [f"p{p}_visit{v}.tiff,m.xml,{x},0,99,99" for p in range(5) for v in (1, 2) for x in (0, 50, 100)]
    found = folds_of(tmp_path, rows)
    assert len(found) == 30
    by_patient = {p: {fold for name, fold in found.items() if name.startswith(f"p{p}_")} for p in range(5)}
    assert all(len(folds) == 1 for folds in by_patient.values())
    assert set(found.values()) == {0, 1, 2, 3}
    assert folds_of(tmp_path, rows[::-1]) == found


def test_a_table_may_name_patients_and_some_folds(tmp_path):
    head = "slide,annotation,patient,fold"
    rows = ["a.tiff,m.xml,anna,", "b.tiff,m.xml,bob,", "c.tiff,m.xml,anna,"]
    found = folds_of(tmp_path, rows, head)
    assert found["a"] == found["c"] != found["b"]
    assert folds_of(tmp_path, ["a.tiff,m.xml,anna,", "c.tiff,m.xml,anna,3"], head) == {"a": 3, "c": 3}
    with pytest.raises(DatasetError, match=r"line 3 of .* gives a.tiff the patient 'bob', and a line above 'anna'"):
        folds_of(tmp_path, ["a.tiff,m.xml,anna,", "a.tiff,m.xml,bob,"], head)


def test_tiles_of_a_slide_have_the_same_folds_in_any_order_of_lines(tmp_path):
    found = []
    for lines in (["1,2,0,0", "1,10,640,0", "0,3,0,640"], ["0,3,0,640", "1,10,640,0", "1,2,0,0"]):
        (tmp_path / "tiles.csv").write_text("\n".join(["row,col,x,y", *lines]) + "\n")
        found.append({piece.name: piece.fold for piece in find_pieces(tmp_path)})
    assert found == [{"r0c3": 0, "r1c2": 1, "r1c10": 2}] * 2


def test_content_is_known_again_under_another_name_and_a_change_anywhere_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(division, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(division, "_BLOCK_BYTES", 20)
    for size in (90, 300):
        content = bytes(range(90)) * 4
        for name in ("one", "two"):
            (tmp_path / name).write_bytes(content[:size])
        assert content_of(tmp_path / "one") == content_of(tmp_path / "two")
        (tmp_path / "two").write_bytes(content[: size - 1] + b"!")
        assert content_of(tmp_path / "one") != content_of(tmp_path / "two")
        (tmp_path / "two").write_bytes(content[: size + 1])
        assert content_of(tmp_path / "one") != content_of(tmp_path / "two")
    with pytest.raises(ScanError, match=r"none cannot be read \(No such file or directory\)"):
        content_of(tmp_path / "none")


def test_a_folder_without_tables_is_all_its_slides(slide_file, tmp_path):
    # As archives from a Mac leave them.
    (tmp_path / "._slide.tiff").write_bytes(b"Mac OS X")
    assert [piece.name for piece in find_pieces(tmp_path)] == ["slide"]
    assert find_pieces(slide_file)[0].slide == slide_file
    with pytest.raises(DatasetError, match="none does not exist; name a folder of slides"):
        find_pieces(tmp_path / "none")


def test_real_tiles_are_found_with_their_folds(real_data):
    pieces = find_pieces(real_data / "camelyon_tiles")
    assert len(pieces) == 50
    assert {piece.fold for piece in pieces} == {0, 1, 2, 3}
    parts = find_pieces(real_data / "ocdc_oral_slide")
    assert len(parts) == 10
    opened = OpenPieces(parts)
    tumor = opened.annotation(parts[0]).mask(opened.box(parts[0]), 1.0)
    assert tumor.mean() == pytest.approx(0.3471, abs=0.005)


def test_a_table_of_a_spreadsheet_is_read_and_a_short_line_named(slide_file, tmp_path):
    (tmp_path / "slides.csv").write_text("slide,annotation\nslide.tiff\n", encoding="utf-8-sig")
    assert [(piece.slide, piece.annotation) for piece in find_pieces(tmp_path)] == [(slide_file, None)]
    (tmp_path / "slides.csv").unlink()
    (tmp_path / "index.csv").write_text("id,fold\na\n")
    with pytest.raises(DatasetError, match=r"line 2 of .*index.csv: fold is ''; it must be a whole number"):
        find_pieces(tmp_path)


def test_an_image_that_is_too_large_to_be_read_at_once_is_named(tiles, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"t0\.jpg has more pixels than are read at once; convert it to a pyramidal"):
        Slide(tiles / "images" / "t0.jpg")
