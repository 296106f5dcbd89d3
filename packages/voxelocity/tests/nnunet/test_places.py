import importlib.machinery
import importlib.util

import pytest

from voxelocity.nnunet import places
from voxelocity_observe.core.errors import InputError, OutputError


@pytest.fixture
def nnunet(tmp_path, monkeypatch):
    """An installed nnU-Net, as far as its folder of trainers."""
    folder = tmp_path / "nnunetv2"
    (folder / "training" / "nnUNetTrainer" / "variants").mkdir(parents=True)
    spec = importlib.machinery.ModuleSpec("nnunetv2", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "nnunetv2" else None)
    return folder


def test_the_copy_is_the_file_and_goes_again(nnunet):
    place = places.install()
    assert place == nnunet / "training" / "nnUNetTrainer" / "variants" / "nnUNetTrainerVoxelocity.py"
    assert place.read_text() == (places.FOLDER / place.name).read_text()
    assert places.install() == place, "again, over an older copy"
    places.uninstall()
    assert not place.exists()
    places.uninstall()


def test_a_file_of_somebody_else_is_left_alone(nnunet):
    place = places.installed_place()
    place.write_text("class nnUNetTrainerVoxelocity: ...\n")
    for change in (places.install, places.uninstall):
        with pytest.raises(OutputError, match=r"is not a copy of our trainers; move it away first"):
            change()
    assert place.read_text() == "class nnUNetTrainerVoxelocity: ...\n"


def test_without_nnunet_the_error_says_where_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"nnunetv2 is not installed in this Python; .* nnUNetv2_train"):
        places.install()


def test_leftovers_of_another_installation_are_passed_over(nnunet, tmp_path, monkeypatch):
    spec = importlib.util.find_spec("nnunetv2")
    spec.submodule_search_locations.insert(0, str(tmp_path / "leftover"))
    assert places.install().is_relative_to(nnunet)
    spec.submodule_search_locations[:] = [str(tmp_path / "leftover")]
    with pytest.raises(InputError, match=r"leftover holds no trainers of nnU-Net v2; .* nnUNet_extTrainer="):
        places.install()


def test_a_folder_that_cannot_be_written_has_a_way_around(nnunet):
    place = places.installed_place()
    place.parent.rmdir()
    with pytest.raises(OutputError, match=r"cannot be written: .*; set nnUNet_extTrainer=.* which needs no copy"):
        places.install()


def test_the_folder_is_printed_alone_and_what_hinders_nnunet_is_said_next_to_it(nnunet, voxelocity, monkeypatch):
    (nnunet / "paths.py").write_text("nnUNet_extTrainer = None\n")
    shown = voxelocity("nnunet", "trainers")
    assert (shown.status, shown.out, shown.err) == (0, f"{places.FOLDER}\n", "")
    (nnunet / "paths.py").write_text("nnUNet_raw = None\n")
    shown = voxelocity("nnunet", "trainers")
    assert shown.out == f"{places.FOLDER}\n"
    assert "this release of nnU-Net does not know nnUNet_extTrainer; give `voxelocity nnunet install`" in shown.err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shown = voxelocity("nnunet", "trainers")
    assert (shown.status, shown.out) == (0, f"{places.FOLDER}\n")
    assert "nnunetv2 is not installed in this Python" in shown.err
