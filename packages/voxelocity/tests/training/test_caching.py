"""What is prepared before the training begins, tier by tier."""

import io
import re
import shutil
from collections import Counter

import nibabel as nib
import numpy as np
import pytest
from rich.console import Console

import voxelocity as vx
from voxelocity.data.cache import RotatingSchedule, choose
from voxelocity.data.pipeline import CachingFacts, PreparedCases, declare_channels, declare_labels
from voxelocity.planning import absent_classes
from voxelocity.report import read_run
from voxelocity.training import caching as caching_module
from voxelocity.training import entry, train
from voxelocity.training.caching import CacheProgress
from voxelocity_observe.core.errors import DatasetError, InputError, ScanError


@pytest.fixture
def run_on(tiny_msd, tiny_plan, tmp_path, monkeypatch):
    """Trains on a data set with some keys; gives the case ids that were filled first and what was shown."""

    def run(plan, data=tiny_msd, out="run", **options):
        shown, filled = io.StringIO(), []
        part_fill = caching_module.PreparedCases.fill

        def fill(cases, **arguments):
            filled.extend(ref.case_id for ref in cases.refs)
            return part_fill(cases, **arguments)

        with monkeypatch.context() as patched:
            patched.setattr(caching_module.PreparedCases, "fill", fill)
            train(
                vx.open(data), tmp_path / out, device="cpu", console=Console(file=shown, width=400),
                overrides={**tiny_plan, "data.cache.folder": str(tmp_path / "cache"), **plan}, **options,
            )  # fmt: skip
        return filled, shown.getvalue()

    return run


@pytest.mark.parametrize("tier", ["memory", "disk", "lmdb"])
def test_tiers_that_hold_every_case_are_filled_with_all_and_say_so(run_on, tier):
    filled, shown = run_on({"data.cache.tier": tier})
    assert sorted(filled) == [f"case_{index}" for index in range(6)]
    assert re.search(rf"prepared 6 cases in .* in the {tier} cache", shown)


def test_a_class_that_one_side_of_a_fold_lacks_is_said_with_the_folds_that_have_it(run_on, own_msd, voxelocity):
    split = vx.open(own_msd).split(0)
    for ref in split.validation:
        label = nib.load(ref.label)
        nib.save(nib.Nifti1Image(np.minimum(label.get_fdata(), 1).astype(np.uint8), label.affine), ref.label)
    text = (
        "no held-out case of fold 0 contains core, so it is left out of all means, or scores 0 if any voxel is "
        "predicted"
    )
    assert f"warning: train: {text}; folds that hold out cases with it: --fold 1, --fold 2" in run_on({}, own_msd)[1]
    assert f"warning: plan: {text}" in voxelocity("plan", own_msd).succeeded().out
    assert "no held-out case" not in voxelocity("plan", own_msd, "--fold", 1).succeeded().out


def test_a_class_that_cannot_be_learned_is_said(tiny_msd):
    cases = declare_labels(declare_channels(vx.open(tiny_msd)), num_threads=1)
    held = {ref.case_id for ref in cases.split(0).validation}
    present = {ref.case_id: (1, 2) if ref.case_id in held else (1,) for ref in cases.refs}
    assert absent_classes(cases, 0, present) == [
        "no training case of fold 0 contains core, so the network cannot be trained on it; folds that hold out cases "
        "with it: "
        "--fold 0"
    ]
    assert absent_classes(cases, "all", present) == []
    nowhere = dict.fromkeys(present, (1,))
    assert [text.partition("; ")[2] for text in absent_classes(cases, 0, nowhere)] == ["no case has it"] * 2


def test_a_rotating_cache_is_filled_with_its_first_window_and_says_so(run_on):
    filled, shown = run_on({"data.cache.tier": "rotating", "data.cache.num_cases": 3})
    training = [f"case_{index}" for index in (1, 2, 4, 5)]
    window = RotatingSchedule(4, num_cached=3, replace_rate=0.1, seed=0).window(0)
    assert filled == [training[case] for case in window]
    assert re.search(r"prepared 3 cases in .* in the rotating cache", shown)


def test_without_a_cache_nothing_is_prepared_ahead(run_on):
    filled, shown = run_on({"data.cache.tier": "none"})
    assert filled == []
    assert "prepared" not in shown


def without_labels(tiny_msd, folder, *case_ids):
    data = shutil.copytree(tiny_msd, folder)
    for case_id in case_ids:
        path = data / "labelsTr" / f"{case_id}.nii.gz"
        scan = nib.load(path)
        nib.save(nib.Nifti1Image(np.zeros(scan.shape, np.uint8), scan.affine), path)
    return data


def test_labels_of_background_alone_are_refused_where_all_are_looked_at(run_on, tiny_msd, tmp_path):
    data = without_labels(tiny_msd, tmp_path / "data", *[f"case_{index}" for index in range(6)])
    with pytest.raises(
        DatasetError,
        match=r"none of the 6 labels of .* contains anything but background, so there is nothing to train on",
    ):
        run_on({"data.cache.tier": "lmdb"}, data)


def test_a_first_window_of_background_alone_is_told(run_on, tiny_msd, tmp_path):
    schedule = RotatingSchedule(4, num_cached=2, replace_rate=0.1, seed=0)
    window = [("case_1", "case_2", "case_4", "case_5")[case] for case in schedule.window(0)]
    data = without_labels(tiny_msd, tmp_path / "data", *window)
    _, shown = run_on({"data.cache.tier": "rotating", "data.cache.num_cases": 2}, data)
    assert (
        f"warning: train: none of the first 2 labels of {data} in the rotating cache contains anything but "
        "background, so training cannot start until others replace them; are these the right label files?"
    ) in shown


def with_broken(tiny_msd, folder, *case_ids):
    data = shutil.copytree(tiny_msd, folder)
    for case_id in case_ids:
        path = data / "imagesTr" / f"{case_id}.nii.gz"
        path.write_bytes(path.read_bytes()[:-400])
    return data


def test_broken_cases_are_left_out_where_that_was_asked_for_and_in_a_run_that_goes_on(run_on, tiny_msd, tmp_path):
    data = with_broken(tiny_msd, tmp_path / "data", "case_1", "case_3")
    with pytest.raises(ScanError, match="truncated"):
        run_on({}, data)
    filled, shown = run_on({}, data, skip_broken=True)
    assert sorted(filled) == [f"case_{index}" for index in range(6)]
    for case_id in ("case_1", "case_3"):
        assert re.search(rf"warning: train: case '{case_id}' is left out, one of 6: .*truncated", shown)
    facts = read_run(tmp_path / "run")
    assert sum("is left out" in text for text in facts.warnings) == 2
    assert [score.case_id for score in facts.scores] == ["case_0"]
    # It must not come back by itself, which would change the order of the others.
    for case_id in ("case_1", "case_3"):
        name = f"imagesTr/{case_id}.nii.gz"
        shutil.copy(tiny_msd / name, data / name)
    filled, _ = run_on({}, data, resume=True, full_validation=True)
    assert [score.case_id for score in read_run(tmp_path / "run").scores] == ["case_0"]


def test_a_validation_of_all_cases_that_can_be_used_is_whole(tiny_msd, tiny_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "unlearned_text", lambda *_: "")
    result = train(
        vx.open(with_broken(tiny_msd, tmp_path / "data", "case_3")), tmp_path / "run", device="cpu", skip_broken=True,
        overrides={**tiny_plan, "data.cache.folder": str(tmp_path / "cache")}, console=Console(quiet=True),
    )  # fmt: skip
    assert [score.case_id for score in result.scores] == ["case_0"]
    assert result.next_command.startswith("voxelocity predict")


def test_labels_of_background_alone_are_refused_where_broken_cases_are_left_out(run_on, tiny_msd, tmp_path):
    data = with_broken(tiny_msd, tmp_path / "broken", "case_1")
    data = without_labels(data, tmp_path / "data", *[f"case_{index}" for index in (0, 2, 3, 4, 5)])
    with pytest.raises(DatasetError, match=r"none of the 5 labels of .* so there is nothing to train on"):
        run_on({}, data, skip_broken=True)


def test_cases_are_prepared_once_where_others_are_left_out(run_on, tiny_msd, tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "memory_folder", lambda **_: (None, "it is full"))
    prepare, prepared = PreparedCases._prepare, Counter()

    def counted(cases, index):
        prepared[cases.refs[index].case_id] += 1
        return prepare(cases, index)

    monkeypatch.setattr(PreparedCases, "_prepare", counted)
    run_on({}, with_broken(tiny_msd, tmp_path / "data", "case_1"), skip_broken=True)
    assert prepared == {f"case_{index}": 1 for index in range(6)}


def test_broken_cases_are_not_left_out_where_none_would_be_left(run_on, tiny_msd, tmp_path):
    data = with_broken(tiny_msd, tmp_path / "data", "case_0", "case_3")
    with pytest.raises(DatasetError, match=r"no case is left to judge by, because 2 cannot be used"):
        run_on({}, data, skip_broken=True)


def test_broken_cases_are_not_looked_for_where_cases_are_prepared_while_training(run_on):
    with pytest.raises(
        InputError,
        match=r"skip_broken=True .* the tier none does not do; add overrides={\"data\.cache\.tier\": \"disk\"}",
    ):
        run_on({"data.cache.tier": "none"}, skip_broken=True)


def facts(**changes):
    values = {"num_found": 2, "num_prepared": 3, "num_bytes": 4 * 2**30, "seconds": 8.0, "num_kept": 5}
    return CachingFacts(**(values | {"num_with_foreground": 5} | changes))


def said(closing, *, is_terminal=False):
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=120, color_system=None)
    with CacheProgress(console, "disk", 5) as progress:
        for _ in range(5):
            progress.advance("a", 2**20)
    progress.finish(closing)
    return out.getvalue()


@pytest.mark.parametrize(
    ("changes", "closing"),
    [
        ({"num_found": 0, "num_prepared": 5}, " in 8.0 s: 4.00 GiB in the disk cache, 512 MiB/s\n"),
        # Of the ready ones nobody knows how fast they were made.
        ({}, " in 8.0 s, 2 of them already cached: 4.00 GiB in the disk cache\n"),
        ({"num_kept": 1}, "4.00 GiB in the disk cache, 1 of the cases"),
        ({"num_kept": 0}, "4.00 GiB not kept"),
    ],
)
def test_closing_line_tells_what_was_done_and_how_fast(changes, closing):
    line = said(facts(**changes))
    assert line.startswith("prepared 5 cases in 8.0 s")
    assert closing in line


def test_bar_in_a_terminal_shows_cases_and_bytes_a_second():
    text = said(facts(), is_terminal=True)
    assert "5 of 5 cases" in text
    assert "iB/s" in text
