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
