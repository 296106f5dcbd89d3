import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml

import voxelocity
from voxelocity.core.config import check_value
from voxelocity.planning import Plan, make, make_plan, read_overrides, step_timing
from voxelocity.planning.machine import survey
from voxelocity.planning.memory_rule import device_bytes
from voxelocity.planning.step_forecast import PatchPass
from voxelocity.report import dataset_panel
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import ConfigError, DatasetError, ScanError
from voxelocity_observe.core.interleaved_timing import Times
from voxelocity_observe.core.quantities import value_text


def test_every_value_may_be_given_back_as_it_is_printed(tiny_msd):
    for choice in make_plan(voxelocity.open(tiny_msd), device="cpu").choices:
        given = check_value(Plan, choice.key, yaml.safe_load(value_text(choice.value, choice.key)))
        if isinstance(choice.value, float | int) and not isinstance(choice.value, bool):
            assert given == pytest.approx(choice.value, rel=0.02), choice.key
        else:
            assert given == choice.value, choice.key


def test_a_plan_survives_the_way_through_its_record(tiny_msd):
    planned = make_plan(voxelocity.open(tiny_msd), device="cpu")
    record = yaml.safe_load(yaml.safe_dump(planned.to_record()))
    assert Plan.parse(record["plan"]) == planned.plan
    assert record["dataset"]["classes"] == ["background", "ball", "core"]
    assert "forecast" not in record
    assert (record["dataset"]["num_training"], record["dataset"]["num_validation"]) == (4, 2)


def test_the_fingerprint_says_what_the_data_are(tiny_msd):
    facts = make_plan(voxelocity.open(tiny_msd), device="cpu").fingerprint
    assert facts.shape_voxel.median == (20, 22, 18)
    assert facts.spacing_mm.low == facts.spacing_mm.high == (1, 1, 1)
    assert facts.stored_dtypes == {"float32": 6}
    assert sum(facts.class_shares.values()) == pytest.approx(1.0)
    assert facts.class_shares["ball"] > facts.class_shares["core"] > 0
    assert 150 < facts.intensity[0].median < 220, "of the foreground, whose mean lies at 180 and 260"


def test_the_fingerprint_counts_and_the_panel_says_scans_without_a_place_or_with_two(own_msd):
    for index, codes in ((0, (0, 0)), (1, (1, 1)), (2, (0, 1))):
        for name in (f"imagesTr/case_{index}.nii.gz", f"labelsTr/case_{index}.nii.gz"):
            image = nib.load(own_msd / name)
            image.header.set_qform(np.diag([-1.0, 1.0, 1.0, 1.0]), codes[0])
            image.header.set_sform(np.eye(4), codes[1])
            image.header["pixdim"][1] = 3.0 if index == 2 else 1.0
            nib.save(nib.Nifti1Image(np.asarray(image.dataobj), None, image.header), own_msd / name)
    record = make_plan(voxelocity.open(own_msd), device="cpu").to_record()
    facts = record["fingerprint"]
    assert (facts["num_unplaced"], facts["num_placed_twice"], facts["num_spaced_twice"]) == (1, 1, 1)
    file = io.StringIO()
    PlainConsole(file=file, width=400).print(dataset_panel(record["dataset"], facts))
    assert "1 case without a position in space" in file.getvalue()
    assert "1 case where sform and qform differ; the sform is used" in file.getvalue()
    assert "1 case whose pixdim is not the spacing of the affine; the affine is used" in file.getvalue()


def test_auto_gives_a_key_back_to_its_rule():
    assert read_overrides({"data": {"batch_size": "auto"}, "seed": 3}) == {"seed": 3}


@pytest.mark.parametrize(
    ("patch", "growth", "words"),
    [
        ([17, 16, 16], [], r"data\.patch\.shape_voxel \(17, 16, 16\)"),
        ([16, 16, 16], [{"until_share": 0.5, "shape_voxel": [8, 6, 8]}], r"growth\[0\]\.shape_voxel \(8, 6, 8\)"),
    ],
)
def test_a_patch_the_network_cannot_take_is_refused_in_words(tiny_msd, patch, growth, words):
    overrides = {"data.patch.shape_voxel": patch, "network.widths": [4, 8, 8], "data.patch.growth": growth}
    overrides |= {"network.strides": [[2, 2, 2]] * 2, "window.shape_voxel": [16, 16, 16]}
    with pytest.raises(ConfigError, match=rf"{words} must be a multiple of \(4, 4, 4\)"):
        make_plan(voxelocity.open(tiny_msd), device="cpu", overrides=overrides)


def test_a_csv_gets_its_classes_and_channels_from_the_files(tmp_path, tiny_scan):
    for index in range(2):
        image, label = tiny_scan(index)
        nib.save(nib.Nifti1Image(np.stack([image, image], axis=-1), np.eye(4)), tmp_path / f"i{index}.nii.gz")
        nib.save(nib.Nifti1Image((label * 100).astype(np.int16), np.eye(4)), tmp_path / f"l{index}.nii.gz")
    rows = "".join(f"i{index}.nii.gz,l{index}.nii.gz\n" for index in range(2))
    (tmp_path / "cases.csv").write_text("image,label\n" + rows)
    cases = make_plan(voxelocity.open(tmp_path / "cases.csv"), device="cpu").cases
    assert cases.label_values == (0, 100, 200)
    assert cases.class_names == ("background", "label_100", "label_200")
    assert cases.channels == ("channel_0", "channel_1")


def test_a_case_with_another_number_of_channels_is_named(tmp_path, tiny_msd, tiny_scan):
    root = shutil.copytree(tiny_msd, tmp_path / "set")
    image, _ = tiny_scan(3)
    nib.save(nib.Nifti1Image(np.stack([image, image], axis=-1), np.eye(4)), root / "imagesTr" / "case_3.nii.gz")
    with pytest.raises(ScanError, match=r"case 'case_3' holds 2 channels .*case_3\.nii\.gz.*, the data set 1 \(MRI\)"):
        make_plan(voxelocity.open(root), device="cpu")


def test_a_declaration_that_contradicts_the_files_is_refused(tmp_path, tiny_msd):
    root = shutil.copytree(tiny_msd, tmp_path / "set")
    description = json.loads((root / "dataset.json").read_text())
    description["modality"] = {"0": "T1", "1": "T2"}
    (root / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=r"declares 2 channels \(T1, T2\), but case 'case_0' holds 1"):
        make_plan(voxelocity.open(root), device="cpu")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"fold": "0"}, r"^vx\.plan\(fold='0'\): give a whole number or 'all'"),
        ({"fold": 1.0}, r"fold=1\.0\): give a whole number or 'all'"),
        ({"seed": "a"}, r"seed='a'\): give a whole number from 0"),
        ({"seed": -1}, r"seed=-1\): give a whole number from 0"),
        ({"time_budget_s": "5m"}, r"time_budget_s='5m'\): give seconds as a number, .* time_budget also takes a text"),
        ({"time_budget_s": float("nan")}, r"time_budget_s=nan\): give seconds as a number"),
        ({"time_budget": "5"}, r"^vx\.plan\(time_budget='5'\): '5' has no unit"),
        (
            {"time_budget": "5m", "time_budget_s": 300.0},
            r"\(time_budget='5m', time_budget_s=300\.0\): give one of them",
        ),
        ({"device": "tpu"}, r"device='tpu'\): not known; choose auto, cpu or cuda"),
        ({"device": "cuda:0"}, r"device='cuda:0'\): not known; choose auto, cpu or cuda"),
        ({"epochs": 0}, r"^vx\.plan\(epochs=0\): give a whole number from 1"),
        ({"rounds": 3}, r"^vx\.plan\(rounds=\.\.\.\): there is no such option"),
        ({"overides": {}}, "there is no such option; did you mean 'overrides'"),
        ({"cases": "folder"}, r"cases is 'folder'; give what voxelocity\.open\(\.\.\.\) returns"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_by_name(tiny_msd, argument, said):
    with pytest.raises(ConfigError, match=said):
        make_plan(**{"cases": voxelocity.open(tiny_msd), "device": "cpu", **argument})


@pytest.mark.parametrize(
    ("argument", "overrides", "said"),
    [
        (
            {"seed": 7},
            {"seed": 3},
            r"\(seed=7\): the configuration fixes seed to 3; .*{\"seed\": 7} replaces",
        ),
        (
            {"time_budget_s": 33.0},
            {"train": {"time_budget_s": 0}},
            r"\(time_budget_s=33\.0\): the configuration fixes train\.time_budget_s to 0\.0; leave one of them out",
        ),
    ],
)
def test_an_argument_and_a_key_that_contradict_each_other_are_refused(tiny_msd, argument, overrides, said):
    with pytest.raises(ConfigError, match=said):
        make_plan(voxelocity.open(tiny_msd), device="cpu", overrides=overrides, **argument)


def test_the_seed_of_the_configuration_holds_where_none_is_asked_for(tiny_msd):
    cases = voxelocity.open(tiny_msd)
    assert make_plan(cases, device="cpu", overrides={"seed": 3}).plan.seed == 3
    assert make_plan(cases, device="cpu", overrides={"seed": 3}, seed=3).plan.seed == 3
    assert make_plan(cases, device="cpu", seed=2**60 + 1).plan.seed == 2**60 + 1
    assert make_plan(cases, device="cpu").plan.seed == 0


def test_a_plan_that_this_machine_cannot_compile_is_refused_before_anything_runs(tiny_msd, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"step: precision.compile=default generates C\+\+ .* 'no-such-compiler'"):
        make_plan(voxelocity.open(tiny_msd), device="cpu", overrides={"precision.compile": "default"})
    planned = make_plan(voxelocity.open(tiny_msd), device="cpu")
    assert planned.plan.precision.compile == "none", "without it nothing is asked of the machine"


@pytest.fixture
def measured(monkeypatch):
    """Steps of the other memory format take half the time; one entry a measurement."""
    calls = []

    def time_steps(task, ways, device, *, limit_s, clock):
        calls.append(task)
        return Times(seconds={name: ((0.1,) * 5 if "channels_last" in name else (0.2,) * 5) for name in ways})

    monkeypatch.setattr(step_timing, "time_steps", time_steps)
    monkeypatch.setattr("voxelocity.planning.make._MEASURE", "once")
    return calls


def channels_last(planned):
    (choice,) = [choice for choice in planned.choices if choice.key == "precision.channels_last"]
    return choice


def test_a_plan_measures_once_and_keeps_it_in_the_cache_folder(tiny_msd, tmp_path, measured):
    cases, one_format = voxelocity.open(tiny_msd), {"precision.compute": "float32", "network.name": "unet"}
    first = make_plan(cases, device="cpu", overrides=one_format, cache_folder=tmp_path)
    assert first.plan.precision.channels_last is True
    second = make_plan(cases, device="cpu", overrides=one_format, cache_folder=tmp_path)
    assert channels_last(first) == channels_last(second)
    assert len(measured) == len(list((tmp_path / "measured").iterdir())) == 1
    record = yaml.safe_load(yaml.safe_dump(second.to_record()))
    (kept,) = [choice for choice in record["choices"] if choice["key"] == "precision.channels_last"]
    figures = {"ratio": 0.5, "low": 0.5, "high": 0.5, "rounds": 5, "decided": True}
    assert kept["measured"] == {"what": "channels_last_3d against contiguous", **figures}
    make_plan(cases, device="cpu", overrides={**one_format, "planner.measure": "again"}, cache_folder=tmp_path)
    assert len(measured) == 2


def test_measuring_can_be_turned_off(tiny_msd, tmp_path, measured):
    overrides = {"precision.compute": "float32", "network.name": "unet", "planner.measure": "never"}
    planned = make_plan(voxelocity.open(tiny_msd), device="cpu", overrides=overrides, cache_folder=tmp_path)
    assert (planned.plan.precision.channels_last, measured) == (False, [])
    with pytest.raises(ConfigError, match=r"planner\.measure = 'off' is not valid: .*'once', 'again' or 'never'"):
        make_plan(voxelocity.open(tiny_msd), device="cpu", overrides={"planner.measure": "off"})


def test_a_plan_settled_in_full_measures_nothing(tiny_msd, tmp_path, tiny_plan, measured):
    make_plan(voxelocity.open(tiny_msd), device="cpu", overrides=tiny_plan, cache_folder=tmp_path)
    assert measured == []


class SmallerThanItSays:
    """A GPU whose trials need three times what the rules count; notes the patches and batches that were tried."""

    def __init__(self, monkeypatch, room_bytes):
        self.tried, self.needed = [], []
        self._room_bytes = room_bytes
        gpu = {"device": "cuda", "device_name": "GPU", "device_memory_bytes": 2**33, "device_free_bytes": 2**33}
        monkeypatch.setattr(make, "survey", lambda *_, **__: replace(survey("cpu", cache_folder=Path()), **gpu))
        monkeypatch.setattr(make, "_MEASURE", "again")
        monkeypatch.setattr("voxelocity.planning.step_timing.time_steps", self.time_steps)

    def time_steps(self, task, ways, device, *, limit_s, clock):
        self.tried.append((task.batch_size, task.patch_voxel))
        patch = PatchPass(
            network=task.network, shape_voxel=task.patch_voxel, num_channels=task.num_channels,
            num_outputs=task.num_classes, is_half=True,
        )  # fmt: skip
        needed = 3 * device_bytes(patch, batch_size=task.batch_size)
        self.needed.append(needed)
        why_not = "the device's memory is too small for the planned step"
        is_full = needed > self._room_bytes
        return Times(seconds={}, why_not=why_not if is_full else "no time", ran_out_of_memory=is_full)


def test_a_trial_that_runs_out_of_memory_makes_the_plan_smaller_until_it_fits(tiny_msd, tmp_path, monkeypatch):
    cases = voxelocity.open(tiny_msd)
    gpu = SmallerThanItSays(monkeypatch, 3 * 2**30)
    planned = make_plan(cases, cache_folder=tmp_path, overrides={"data.prepare.spacing_mm": [0.1, 0.1, 0.1]})
    assert len(gpu.tried) > 1
    assert gpu.tried[-1] == (planned.plan.data.batch_size, planned.plan.data.patch.shape_voxel)
    assert gpu.needed == sorted(set(gpu.needed), reverse=True)
    assert gpu.needed[-1] <= 3 * 2**30 < gpu.needed[-2]
    assert len({choice.key for choice in planned.choices}) == len(planned.choices)
    # A run that continues keeps what it took, whatever is free now.
    again = make_plan(
        cases,
        cache_folder=tmp_path,
        overrides={"data.prepare.spacing_mm": [0.1, 0.1, 0.1], "planner.measure": "never"},
        saved_plan=planned.plan,
    )
    assert (again.plan.data.patch, again.plan.data.batch_size) == (
        planned.plan.data.patch,
        planned.plan.data.batch_size,
    )
    assert again.plan.network == planned.plan.network


def test_a_plan_that_cannot_become_smaller_is_kept_as_it_is(tiny_msd, tmp_path, monkeypatch):
    gpu = SmallerThanItSays(monkeypatch, 0)
    plan = {"data.patch.shape_voxel": [16, 16, 16], "data.batch_size": 2, "network.widths": [8, 16, 32]}
    planned = make_plan(voxelocity.open(tiny_msd), cache_folder=tmp_path, overrides=plan)
    assert (planned.plan.data.batch_size, len(gpu.tried)) == (2, 2)


def test_a_plan_on_a_gpu_keeps_what_it_expects_and_warns_of_a_budget_that_trains_nothing(tiny_msd, monkeypatch):
    gpu = {"device": "cuda", "device_name": "H100", "device_memory_bytes": 2**36, "device_free_bytes": 2**36}
    monkeypatch.setattr(make, "survey", lambda *_, **__: replace(survey("cpu", cache_folder=Path()), **gpu))
    cases, never = voxelocity.open(tiny_msd), {"planner.measure": "never"}
    record = make_plan(cases, time_budget_s=60.0, overrides=never).to_record()
    assert record["forecast"]["num_steps"] > 1000
    with pytest.warns(UserWarning, match=r"a time budget of 5 s leaves about 0 s .* 11 steps of 21 ms .*too few to"):
        make_plan(cases, time_budget_s=5.0, overrides=never)
