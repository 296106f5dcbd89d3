"""What is checked before nnU-Net trains: folders of other releases, other plans, folds of absent cases."""

import json
from types import SimpleNamespace

import pytest

from voxelocity.nnunet.checks import check_fold, check_folder, check_previous_stage, check_split, loader_of
from voxelocity_observe.core.errors import ConfigError, InputError

DESCRIPTION = {"labels": {"background": 0, "liver": 1}, "channel_names": {"0": "CT"}, "numTraining": 2}


@pytest.fixture
def trainer(tmp_path):
    """A trainer of nnU-Net as far as its folders, plans and fold."""
    base = tmp_path / "Dataset011_Small"
    folder = base / "nnUNetPlans_3d_fullres"
    folder.mkdir(parents=True)
    (base / "dataset.json").write_text(json.dumps(DESCRIPTION))
    for case in ("case_0", "case_1"):
        for end in (".b2nd", "_seg.b2nd", ".pkl"):
            (folder / f"{case}{end}").touch()
    return SimpleNamespace(
        plans_manager=SimpleNamespace(dataset_name=base.name, plans_name="nnUNetPlans"),
        configuration_name="3d_fullres",
        dataset_json=dict(DESCRIPTION),
        fold=1,
        preprocessed_dataset_folder_base=str(base),
        preprocessed_dataset_folder=str(folder),
        dataset_class=SimpleNamespace(get_identifiers=lambda folder: ["case_0", "case_1"]),
        base=base,
        folder=folder,
    )


def write_splits(trainer, splits):
    path = trainer.base / "splits_final.json"
    path.write_text(splits if isinstance(splits, str) else json.dumps(splits))


def test_folders_of_each_release_are_taken(trainer):
    check_folder(trainer)
    for file in trainer.folder.glob("*.b2nd"):
        file.unlink()
    for name in ("case_0.npz", "case_0.npy", "case_0_seg.npy"):
        (trainer.folder / name).touch()
    check_folder(trainer)


def test_the_variable_that_is_missing_is_named(trainer):
    trainer.preprocessed_dataset_folder_base = trainer.preprocessed_dataset_folder = None
    with pytest.raises(ConfigError, match=r"nnUNet_preprocessed is not set; export nnUNet_preprocessed=FOLDER"):
        check_folder(trainer)


def test_cases_that_are_not_made_yet_come_with_the_command_that_makes_them(trainer):
    command = r"`voxelocity nnunet preprocess Dataset011_Small -c 3d_fullres`"
    for file in trainer.folder.glob("*.b2nd"):
        file.unlink()
    with pytest.raises(InputError, match=rf"nnUNetPlans_3d_fullres holds no case; make it by {command}"):
        check_folder(trainer)
    trainer.preprocessed_dataset_folder += "_none"
    with pytest.raises(InputError, match=rf"_none is missing; make it by {command}"):
        check_folder(trainer)


@pytest.mark.parametrize("stray", ["case_0.npz", "Thumbs.db"])
def test_files_of_two_releases_are_refused_by_name(stray, trainer):
    (trainer.folder / stray).touch()
    with pytest.raises(InputError, match=rf"holds .*{stray}.*; remove foreign files"):
        check_folder(trainer)


@pytest.mark.parametrize(
    ("key", "value"), [("labels", {"background": 0}), ("channel_names", {"0": "MR"}), ("numTraining", 3)]
)
def test_plans_of_another_data_set_are_refused(key, value, trainer):
    trainer.dataset_json[key] = value
    with pytest.raises(InputError, match=rf"are of Dataset011_Small, .* another '{key}' .*move_plans_between_datasets"):
        check_folder(trainer)


def test_a_fold_beyond_those_of_the_file_is_said_and_a_negative_one_refused(trainer):
    assert check_fold(trainer) == "", "without a file, nnU-Net draws folds"
    write_splits(trainer, [{"train": ["case_0"], "val": ["case_1"]}] * 3)
    assert check_fold(trainer) == ""
    trainer.fold = 3
    assert "fold 3 is none of the 3" in check_fold(trainer)
    assert "choose a fold from 0 to 2" in check_fold(trainer)
    trainer.fold = -1
    with pytest.raises(InputError, match="fold -1 does not exist; folds count from 0"):
        check_fold(trainer)
    trainer.fold = "all"
    assert check_fold(trainer) == ""


@pytest.mark.parametrize("splits", ["[", "{}", [["case_0"]], [{"train": ["case_0"]}], [{"train": 5, "val": []}]])
def test_a_file_that_holds_no_folds_is_refused(splits, trainer):
    write_splits(trainer, splits)
    with pytest.raises(InputError, match=r"splits_final\.json .*; correct it, or delete it"):
        check_fold(trainer)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ((["case_0", "case_7"], ["case_1"]), r"trains on 1 case that .* does not hold \(case_7\); preprocess them, or"),
        ((["case_0"], ["b", "a", "d", "c", "e"]), r"validates on 5 cases .* \(a, b, c and 2 more\)"),
        (([], ["case_1"]), "trains on no case; correct .*splits_final.json"),
        ((["case_0"], []), "validates on no case"),
    ],
)
def test_a_fold_of_absent_cases_is_refused_by_their_names(split, said, trainer):
    with pytest.raises(InputError, match=f"fold 1 {said}"):
        check_split(trainer, split)


def test_a_fold_of_present_cases_is_taken(trainer):
    check_split(trainer, (["case_0"], ["case_1"]))


def test_a_cascade_whose_first_network_has_not_predicted_all_cases_is_refused(trainer, tmp_path):
    trainer.folder_with_segs_from_previous_stage = str(tmp_path / "predicted_next_stage")
    trainer.configuration_manager = SimpleNamespace(previous_stage_name="3d_lowres")
    split = ["case_0", "case_2"], ["case_1"]
    with pytest.raises(
        InputError, match=r"no prediction of 3 cases \(case_0, case_1, case_2\) .* every fold of 3d_low"
    ):
        check_previous_stage(trainer, split)
    (tmp_path / "predicted_next_stage").mkdir()
    with pytest.raises(InputError, match=r"of 1 case \(case_2\) for this .* with -tr SimpleNamespace first"):
        check_previous_stage(trainer, split)
    check_previous_stage(trainer, (["case_0"], ["case_1"]))


def test_batches_made_in_another_way_are_refused(trainer):
    names = ("transforms", "get_indices", "get_do_oversample", "get_bbox", "patch_size_was_2d", "final_patch_size")
    loader = SimpleNamespace(**dict.fromkeys(names), _data=SimpleNamespace(identifiers=[], load_case=None))
    assert loader_of(SimpleNamespace(data_loader=loader), trainer) is loader
    with pytest.raises(InputError, match="makes its batches in its own way"):
        loader_of(None, trainer)
    del loader.transforms
    with pytest.raises(InputError, match=r"has no transforms; our trainers need nnU-Net 2\.6 or newer"):
        loader_of(SimpleNamespace(data_loader=loader), trainer)
    loader.transforms, loader._data = None, SimpleNamespace(identifiers=[])
    with pytest.raises(InputError, match="has no load_case"):
        loader_of(SimpleNamespace(data_loader=loader), trainer)
