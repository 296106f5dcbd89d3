"""Crafted models and weights: checkpoints and plans of others, bundles, and what a run of ours keeps."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from infer.models.test_bundle import config as bundle_config
from infer.models.test_bundle import save as save_bundle
from infer.models.test_nnunet import plans
from infer.models.test_nnunet import save as save_nnunet

from shared.crafted import Kind, SilentError, Trial, as_json, mutated_bytes
from shared.small_predictor import small_spec

_OPCODES = (
    b"0", b"1", b"2", b".", b"(", b")", b"]", b"}", b"N", b"K\x01", b"K\x05", b"a", b"e", b"s", b"u", b"t", b"\x85",
    b"\x86", b"b", b"R", b"Q", b"h\x00", b"q\x00", b"\x93", b"\x81", b"X\x02\x00\x00\x00os", b"X\x03\x00\x00\x00ran",
    b"cos\nmkdir\n", b"cbuiltins\nexec\n", b"ctorch\n_utils\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ccollections\nOrderedDict\n", b"X\x07\x00\x00\x00storage",
)  # fmt: skip


class Planted:
    """Pickled, it makes a folder `ran` where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__("os").mkdir, ("ran",)


def _same(found: Any, whole: Any, what: str) -> None:
    """Raises if two containers of tensors and plain values differ."""
    if isinstance(whole, torch.Tensor):
        is_same = isinstance(found, torch.Tensor) and torch.equal(found, whole)
    elif isinstance(whole, dict):
        is_same = isinstance(found, dict) and found.keys() == whole.keys()
        for key in whole if is_same else ():
            _same(found[key], whole[key], f"{what}.{key}")
    else:
        is_same = bool(found == whole)
    if not is_same:
        raise SilentError(f"{what} is {str(found)[:200]}")


def _pickles(folder: Path) -> Trial:
    from voxelocity.infer.models.foreign_files import read_checkpoint

    def trial(numbers: random.Random) -> None:
        orders = b"".join(numbers.choices(_OPCODES, k=numbers.randint(1, 12)))
        if numbers.random() < 0.2:
            orders = pickle.dumps({"a": Planted()}, protocol=2)[2:]
        with zipfile.ZipFile(folder / "model.pt", "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02" + orders + b".")
            archive.writestr("model/version", "3\n")
            archive.writestr("model/byteorder", "little")
            archive.writestr("model/data/0", bytes(64))
        read_checkpoint(folder / "model.pt")

    return trial


def _damaged_checkpoint(folder: Path) -> Trial:
    from voxelocity.infer.models.foreign_files import read_checkpoint

    # What other toolkits write is not summed up by a checksum that torch looks at.
    weights = {f"w{number}": torch.arange(40.0) + number for number in range(4)}
    torch.save({"model": weights, "epoch": 3, "loss": np.float64(0.5)}, folder / "model.pt")
    content = (folder / "model.pt").read_bytes()

    def trial(numbers: random.Random) -> None:
        (folder / "model.pt").write_bytes(mutated_bytes(numbers, content))
        read_checkpoint(folder / "model.pt")

    return trial


def _own_checkpoint(folder: Path) -> Trial:
    from voxelocity.training.checkpoint import Checkpoints

    like = {"loop": {"step": 0, "best": 0.0}, "network": {"a": torch.zeros(50), "b": torch.zeros(3, 4)}, "moments": {}}
    state = {**like, "loop": {"step": 7, "best": 0.5}, "network": {"a": torch.arange(50.0), "b": torch.ones(3, 4)}}
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    path = checkpoints.save(7, state)
    content = path.read_bytes()

    def trial(numbers: random.Random) -> None:
        path.write_bytes(mutated_bytes(numbers, content))
        found = checkpoints.load_latest(like=like)
        if found is not None:
            _same(found[0], state, "state")

    return trial


def _own_model(folder: Path) -> tuple[Path, dict[str, Any], bytes]:
    """A finished run's model: its folder, description and weights."""
    from voxelocity.infer import save_model
    from voxelocity.step import build_network

    spec = small_spec()
    save_model(folder, build_network(spec.network, num_channels=1, num_classes=2, seed=0), spec)
    described = json.loads((folder / "model.json").read_text())
    return folder, described, (folder / "model.safetensors").read_bytes()


def _descriptions_of_models(folder: Path) -> Trial:
    from voxelocity.infer import load_model

    run, described, _ = _own_model(folder)

    def trial(numbers: random.Random) -> None:
        (run / "model.json").write_bytes(as_json(numbers, described))
        load_model(run)

    return trial


def _weights_of_models(folder: Path) -> Trial:
    from voxelocity.infer import load_model

    run, _, content = _own_model(folder)
    whole = load_model(run)[0].state_dict()

    def trial(numbers: random.Random) -> None:
        changed = mutated_bytes(numbers, content)
        (run / "model.safetensors").write_bytes(changed)
        _same(dict(load_model(run)[0].state_dict()), dict(whole), "weights")

    return trial


def _nnunet_plans(folder: Path) -> Trial:
    from voxelocity.infer import open_model

    place = save_nnunet(folder / "n")
    described = plans()

    def trial(numbers: random.Random) -> None:
        (place / "plans.json").write_bytes(as_json(numbers, described))
        open_model(place)

    return trial


def _nnunet_data_sets(folder: Path) -> Trial:
    from voxelocity.infer import open_model

    place = save_nnunet(folder / "n")
    described = json.loads((place / "dataset.json").read_text())

    def trial(numbers: random.Random) -> None:
        (place / "dataset.json").write_bytes(as_json(numbers, described))
        open_model(place)

    return trial


def _nnunet_archives(folder: Path) -> Trial:
    from voxelocity.infer import open_model

    place = save_nnunet(folder / "n" / "nnUNetTrainer__nnUNetPlans__3d_fullres")
    path = folder / "n.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for file in place.rglob("*") if file.is_file()):
            archive.write(file, file.relative_to(folder))
    content, network = path.read_bytes(), open_model(path).network.state_dict()

    def trial(numbers: random.Random) -> None:
        path.write_bytes(mutated_bytes(numbers, content))
        _same(dict(open_model(path).network.state_dict()), dict(network), "weights")

    return trial


def _bundles(name: str, ending: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        from voxelocity.infer import open_model

        place = save_bundle(folder / "b", bundle_config(), ending=ending)
        path = place / "configs" / name
        described = json.loads(path.read_text()) if name.endswith("json") else yaml.safe_load(path.read_text())

        def trial(numbers: random.Random) -> None:
            path.write_bytes(as_json(numbers, described))
            open_model(place)

        return trial

    return make


MODELS = (
    Kind("pickles in checkpoints of others", 200, _pickles),
    Kind("damaged checkpoints of others", 150, _damaged_checkpoint),
    Kind("plans of nnU-Net", 200, _nnunet_plans),
    Kind("dataset.json of nnU-Net models", 100, _nnunet_data_sets),
    Kind("archives of nnU-Net", 100, _nnunet_archives),
    Kind("configurations of bundles, JSON", 150, _bundles("inference.json", "json")),
    Kind("configurations of bundles, YAML", 50, _bundles("inference.yaml", "yaml")),
    Kind("metadata of bundles", 60, _bundles("metadata.json", "json")),
    Kind("checkpoints of runs", 120, _own_checkpoint),
    Kind("descriptions of models", 120, _descriptions_of_models),
    Kind("weights of models", 80, _weights_of_models),
)
