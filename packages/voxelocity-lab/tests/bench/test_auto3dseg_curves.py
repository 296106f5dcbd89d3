"""Curves of Auto3DSeg's trainings: what is noted of them, and the page that shows them."""

import importlib

import pytest

TRAINED = {"kind": "finished", "patches": 60, "peak_bytes": 2**30}


@pytest.fixture(scope="module")
def curves():
    return importlib.import_module("auto3dseg_curves")


def training(*, seconds, dice):
    """A training of four validations, whose Dice rises to `dice`."""
    times_s = [seconds * share / 4 for share in range(1, 5)]
    return {
        **TRAINED,
        "seconds": seconds,
        "curves": {
            "loss": [(at_s, 2 * at_s, 1.0 / number) for number, at_s in enumerate(times_s, start=1)],
            "dice": [(at_s, 2 * at_s, dice * number / 4) for number, at_s in enumerate(times_s, start=1)],
        },
    }


@pytest.fixture
def found():
    search = {"trials": 4, "failed": 0, "seconds": 40.0, "chosen": {"training#num_patches_per_iter": 3}}
    before = [training(seconds=80.0, dice=0.8), training(seconds=120.0, dice=0.84)]
    after = [training(seconds=40.0, dice=0.9), training(seconds=40.0, dice=0.82)]
    return {"search": search, "target_dice": 0.8, "before": {"runs": before}, "after": {"runs": after}}


def test_the_target_is_the_highest_dice_that_all_trainings_reached(curves, found):
    runs = {side: found[side]["runs"] for side in ("before", "after")}
    assert curves.target_of(runs) == 0.8
    runs["before"][0]["curves"]["dice"] = []
    assert curves.target_of(runs) == 0.0


def test_the_page_shows_both_sides_with_their_curves(curves, found):
    record = {"command": "python x.py", "environment": {"cpu": "x"}}
    page = curves.page("dints", found, record)
    assert page.verdict.startswith("ours reached Dice 0.8 in 40 s, one by one in 1 min 40 s")
    (before, after) = page.values["runs"]
    assert (before["label"], before["wall_s"], before["each_to_target"]) == ("one by one", 100.0, [80.0, 120.0])
    assert after["images_per_s"] == 1.5
    titles = [chart.title for section in page.sections if section.title == "Loss" for chart in section.blocks]
    assert titles == ["Training loss"]


def test_many_points_become_means_of_neighbors():
    thinned = importlib.import_module("auto3dseg_on_cpu").thinned
    points = [(float(at), 2.0 * at, float(at % 2)) for at in range(10)]
    assert thinned(points, 10) == points
    assert thinned(points, 5) == [(at, 2.0 * at, 0.5) for at in (1.0, 3.0, 5.0, 7.0, 9.0)]
    assert thinned(points, 4)[-1] == (9.0, 18.0, 1.0), "the last group is what is left"
    assert thinned([], 5) == []


def test_what_the_templates_log_is_noted_with_its_time(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    script = importlib.import_module("auto3dseg_on_cpu")
    add_scalar = tensorboard.SummaryWriter.add_scalar
    try:
        curves = script.note_curves(0.0)
        with tensorboard.SummaryWriter(tmp_path) as writer:
            writer.add_scalar("train/loss", 0.5, 1)
            writer.add_scalar("val/acc", 0.25, 2)
            writer.add_scalar("val_class/liver", 0.75, 3)
    finally:
        tensorboard.SummaryWriter.add_scalar = add_scalar
    assert {name: [value for *_, value in points] for name, points in curves.items()} == {"loss": [0.5], "dice": [0.25]}
    assert next(path.name for path in tmp_path.iterdir()).startswith("events.out"), "they are logged all the same"
