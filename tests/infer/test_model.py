import json

import pytest
import torch

from voxelocity.core.errors import InputError
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME, ModelSpec, load_model, save_model
from voxelocity.step import build_network


def spec(name="dynunet"):
    return ModelSpec.parse(
        {
            "network": {"name": name, "widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 2]]},
            "channels": ["CT"],
            "labels": {0: "background", 7: "organ"},
            "prepare": {},
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
        }
    )


def network(seed=3, name="dynunet", memory_format=torch.contiguous_format):
    built = build_network(spec(name).network, num_channels=1, num_classes=2, seed=seed)
    return built.to(memory_format=memory_format).eval()


@pytest.mark.parametrize("name", ["dynunet", "unet"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_a_saved_model_answers_as_before(tmp_path, name, memory_format):
    original = network(name=name, memory_format=memory_format)
    save_model(tmp_path, original, spec(name))
    loaded, loaded_spec = load_model(tmp_path)
    assert loaded_spec == spec(name)
    image = torch.randn(1, 1, 16, 16, 16)
    torch.testing.assert_close(loaded(image), original(image), rtol=1e-5, atol=1e-5)
    assert not list(tmp_path.glob(".*")), "temporary files are left"


def test_a_folder_without_a_model_is_refused_with_the_cure(tmp_path):
    with pytest.raises(InputError, match=r"holds no model\.json, so no model was finished there; name the folder"):
        load_model(tmp_path)


def test_a_truncated_model_is_refused(tmp_path):
    save_model(tmp_path, network(), spec())
    path = tmp_path / WEIGHTS_NAME
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged .*; train the model again"):
        load_model(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path):
    save_model(tmp_path, network(name="unet"), spec("dynunet"))
    with pytest.raises(InputError, match=r"holds other weights than model\.json beside it says"):
        load_model(tmp_path)


def test_a_damaged_description_is_refused(tmp_path):
    save_model(tmp_path, network(), spec())
    (tmp_path / SPEC_NAME).write_text("{")
    with pytest.raises(InputError, match=r"model\.json is damaged"):
        load_model(tmp_path)
    (tmp_path / SPEC_NAME).write_text(json.dumps({"network": {}}))
    with pytest.raises(InputError, match=r"model\.json: network\.name"):
        load_model(tmp_path)
