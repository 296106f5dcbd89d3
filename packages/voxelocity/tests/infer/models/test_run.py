import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.small_predictor import small_spec
from voxelocity.infer import SPEC_NAME, WEIGHTS_NAME, ModelSpec, load_model, open_model, save_keep_largest, save_model
from voxelocity.step import build_network
from voxelocity_observe.core.errors import ConfigError, InputError


def spec(name="dynunet"):
    network = {"name": name, "widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 2]]}
    return small_spec(network=network, labels={0: "background", 7: "organ"})


def network(seed=3, name="dynunet", memory_format=torch.contiguous_format):
    built = build_network(spec(name).network, num_channels=1, num_classes=2, seed=seed)
    return built.to(memory_format=memory_format).eval()


@pytest.mark.parametrize("name", ["dynunet", "unet"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
def test_a_saved_model_answers_as_before(tmp_path, name, memory_format):
    original = network(name=name, memory_format=memory_format)
    save_model(tmp_path, original, spec(name))
    loaded, loaded_spec = load_model(tmp_path)
    assert loaded_spec.model_copy(update={"weights_sha256": ""}) == spec(name)
    image = torch.randn(1, 1, 16, 16, 16)
    torch.testing.assert_close(loaded(image), original(image), rtol=1e-5, atol=1e-5)
    assert not list(tmp_path.glob(".*")), "temporary files are left"


def test_a_folder_without_a_model_is_refused_with_the_cure(tmp_path):
    with pytest.raises(
        InputError, match=r"holds no model\.json, so no model was finished there; name the folder of a finished run$"
    ):
        load_model(tmp_path)


def test_a_truncated_model_is_refused(tmp_path):
    save_model(tmp_path, network(), spec())
    path = tmp_path / WEIGHTS_NAME
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged .*; train the model again"):
        load_model(tmp_path)


def test_a_single_bit_of_the_weights_that_changed_is_found(tmp_path):
    save_model(tmp_path, network(), spec())
    path = tmp_path / WEIGHTS_NAME
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # of the last weight, which stays a finite number
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors is not the file that was written .*; copy both again"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensor: tensor.fill_(torch.nan), r"holds NaN or infinity in '.*weight', so it cannot predict; copy it"),
        (lambda tensor: tensor.to(torch.int8), r"holds other weights than model\.json describes"),
        (lambda tensor: tensor.half(), r"holds other weights than model\.json describes"),
    ],
)
def test_weights_that_no_training_writes_are_refused(tmp_path, change, text):
    save_model(tmp_path, network(), spec())
    path = tmp_path / WEIGHTS_NAME
    weights = load_file(path)
    name = max(weights, key=lambda name: weights[name].numel())
    save_file({**weights, name: change(weights[name])}, path)
    with pytest.raises(InputError, match=text):
        load_model(tmp_path)


@pytest.mark.parametrize(("name", "reads"), [(WEIGHTS_NAME, "open"), (SPEC_NAME, "read_text")])
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch, name, reads):
    save_model(tmp_path, network(), spec())
    allowed = getattr(Path, reads)

    def refuse(path, *arguments, **named):
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return allowed(path, *arguments, **named)

    # By hand, as tests may run as root, who may read everything.
    monkeypatch.setattr(Path, reads, refuse)
    with pytest.raises(InputError, match=rf"{name} cannot be read \(Permission denied\); check that it is a file"):
        load_model(tmp_path)


def test_a_network_that_nobody_trained_takes_no_memory(tmp_path):
    save_model(tmp_path, network(), spec())
    large = {"name": "dynunet", "widths": [4096] * 9, "strides": [[2, 2, 2]] * 8}
    description = {**spec().to_plain(), "network": large, "window": {"shape_voxel": [512, 512, 512]}}
    (tmp_path / SPEC_NAME).write_text(json.dumps(description))
    with pytest.raises(InputError, match=r"holds other weights than model\.json describes"):
        load_model(tmp_path)


def damaged(folder, content):
    """The text of the error for a model whose description has this content."""
    (folder / SPEC_NAME).write_bytes(content)
    with pytest.raises(InputError) as refused:
        load_model(folder)
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "is damaged (Expecting property name"),
        (b"\xff\xfe{\x00}\x00", "is damaged ('utf-8' codec can't decode byte 0xff in position 0"),
        (b"[" * 100_000, "is damaged (maximum recursion depth"),
        (b'{"labels": ' + b"9" * 5_000 + b"}", "is damaged (Exceeds the limit"),
        (b"[1, 2]", "is damaged (it holds a JSON list, not keys and values)"),
        (b"null", "is damaged (it holds a JSON NoneType, not keys and values)"),
    ],
)
def test_a_description_of_other_bytes_is_refused_with_the_cure(tmp_path, content, text):
    save_model(tmp_path, network(), spec())
    told = damaged(tmp_path, content)
    assert told.startswith(f"infer: {tmp_path / SPEC_NAME} {text}")
    assert told.endswith("; train the model again")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("channels", "CT", "channels = 'CT' is not valid"),
        ("channels", [], "channels = [] is not valid"),
        ("labels", ["background"], "labels = ['background'] is not valid"),
        ("labels", {}, "labels = {} is not valid"),
        ("labels", {"0": "background", "organ": "7"}, "'organ' is not valid"),
        ("labels", {"0": "background", "-1": "organ"}, "'-1' is not valid"),
        ("labels", {"0": "background", "65536": "organ"}, "'65536' is not valid"),
        ("window", [8, 8, 8], "window = [8, 8, 8] is not valid"),
        ("window", {"shape_voxel": [100_000] * 3}, "100000 is not valid"),
        ("window", {"shape_voxel": [0, 8, 8]}, "window.shape_voxel (0, 8, 8) has a 0, which only models of other"),
        ("window", {"shape_voxel": [1, 1, 1]}, "window.shape_voxel (1, 1, 1) is not a multiple of (4, 4, 4)"),
        ("window", {"shape_voxel": [4, 4, 4]}, "leaves one voxel at the coarsest level"),
        ("window", {"shape_voxel": [8, 8, 8], "batch_size": 10**9}, "batch_size = 1000000000 is not valid"),
        ("network", {"name": "unet", "widths": [10**6, 8], "strides": [[2, 2, 2]]}, "1000000 is not valid"),
        ("prepared", {}, "unknown key 'prepared'; did you mean 'prepare'?"),
    ],
)
def test_a_description_with_a_wrong_value_is_refused_with_the_cure(tmp_path, key, value, text):
    save_model(tmp_path, network(), spec())
    told = damaged(tmp_path, json.dumps({**spec().to_plain(), key: value}).encode())
    assert told.startswith(f"infer: {tmp_path / SPEC_NAME}: ")
    assert text in told
    assert told.endswith("; train the model again")


def test_the_model_of_a_recipe_is_named_as_one(tmp_path):
    save_model(tmp_path, network(), spec())
    told = damaged(tmp_path, json.dumps({"format": 3, "recipe": "tractography"}).encode())
    assert f"voxelocity recipe tractography predict DATA -o {tmp_path}" in told


@pytest.mark.parametrize("version", [5, 0, "1.5", None])
def test_a_description_in_another_format_is_refused_before_its_keys_are_read(tmp_path, version):
    save_model(tmp_path, network(), spec())
    told = damaged(tmp_path, json.dumps({"format_version": version, "key_of_tomorrow": 1}).encode())
    assert told == (
        f"infer: {tmp_path / SPEC_NAME} has the format_version {version!r}, but this release reads 1, 2, 3, 4; "
        "install the release of voxelocity that wrote it, or train the model again"
    )


def test_a_description_without_pairs_of_classes_is_read_as_it_was_meant(tmp_path):
    save_model(tmp_path, network(), spec())
    values = json.loads((tmp_path / SPEC_NAME).read_text()) | {"format_version": 1}
    del values["window"]["swap_pairs"]
    (tmp_path / SPEC_NAME).write_text(json.dumps(values))
    assert load_model(tmp_path)[1].window.swap_pairs == ()


def test_pairs_of_classes_are_kept_and_must_be_classes_of_the_model():
    values = spec().to_plain() | {"labels": {0: "background", 1: "eye_L", 2: "eye_R"}}
    values["window"]["swap_pairs"] = [["eye_L", "eye_R"]]
    again = ModelSpec.parse(json.loads(json.dumps(ModelSpec.parse(values).to_plain())))
    assert again.window.swap_pairs == (("eye_L", "eye_R"),)
    values["window"]["swap_pairs"] = [["eye_L", "eye_X"]]
    with pytest.raises(ConfigError, match="swap_pairs names 'eye_X', which is not a class"):
        ModelSpec.parse(values)


def test_a_run_without_scores_is_doubtful_and_a_copied_model_is_not(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    save_model(folder, network(), spec().model_copy(update={"num_steps": 5}))
    assert open_model(folder).doubts == ()
    (folder / "run.yaml").write_text("")
    (text,) = open_model(folder).doubts
    assert "never validated" in text
    assert "trained for 5 steps" in text
    assert f"voxelocity train --resume '{folder}'" in text
    (folder / "scores.json").write_text("")
    assert open_model(folder).doubts == ()


def test_classes_that_keep_their_largest_component_are_written_next_to_the_weights(tmp_path):
    save_model(tmp_path, network(), spec())
    before = json.loads((tmp_path / SPEC_NAME).read_text())
    save_keep_largest(tmp_path, ["organ"])
    assert json.loads((tmp_path / SPEC_NAME).read_text()) == {**before, "keep_largest": ["organ"]}
    assert load_model(tmp_path)[1].keep_largest == ("organ",)
    for name in ("background", "liver"):
        (tmp_path / SPEC_NAME).write_text(json.dumps({**before, "keep_largest": [name]}))
        with pytest.raises(InputError, match=f"keep_largest names {name}, which labels does not have"):
            load_model(tmp_path)
