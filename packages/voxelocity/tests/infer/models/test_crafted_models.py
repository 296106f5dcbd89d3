"""Models that were made to harm: each is refused in words, takes little memory, and runs nothing."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from voxelocity.infer import open_model
from voxelocity.infer.models.foreign_files import read_checkpoint
from voxelocity_observe.core.errors import InputError

from .test_bundle import UNET, config
from .test_bundle import save as save_bundle
from .test_nnunet import plans
from .test_nnunet import save as save_nnunet

VALUES = (None, True, -1, 0, 2.5, 1e400, "x", "", [], [[]], {}, {"x": 1}, [1, 2], [4096] * 3, [10**30], ["a", None])


class Orders:
    """A pickle of hand-written orders."""

    def __init__(self, *orders: bytes) -> None:
        self.content = b"\x80\x02" + b"".join(orders)


def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


CRAFTED = {
    "pops nothing": Orders(b"0."),
    "appends to a number": Orders(b"K\x01K\x02a."),
    "sets an item of a text": Orders(text("a"), b"K\x01K\x02s."),
    "remembers nothing": Orders(b"h\x05."),
    "ends at once": Orders(b""),
    "an order that is none": Orders(b"\xfe."),
    "a set as a key": Orders(b"}](K\x01eK\x02s."),
    "a tuple of nothing": Orders(b"\x85."),
    "builds a number": Orders(b"K\x01}b."),
    "calls a text": Orders(text("os"), b"(tR."),
    "code": Orders(b"cos\nsystem\n", text("touch ran"), b"\x85R."),
    "code by name": Orders(b"ctorch.hub\nload\n", text("a/b"), b"\x85R."),
    "persistent": Orders(b"K\x01Q."),
    "storage of another kind": Orders(b"(", text("storage"), text("a"), text("b"), text("c"), text("d"), b"tQ."),
    "deep": Orders(b"(" * 50_000 + b"t" * 50_000 + b"."),
}


def save_orders(path, orders):
    """As torch saves a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", orders.content)
        archive.writestr("model/version", "3\n")
        archive.writestr("model/byteorder", "little")
    return path


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_pickle_is_refused_and_runs_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save_orders(tmp_path / "model.pt", CRAFTED[kind])
    with pytest.raises(InputError, match=r"model\.pt") as refused:
        read_checkpoint(path)
    # Torch's own text has several lines and advises to run what is in the file.
    assert "\n" not in str(refused.value)
    assert "Re-running" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_of_any_other_object_is_refused(tmp_path):
    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    for protocol in (0, 2, 4):
        (tmp_path / "model.pt").write_bytes(pickle.dumps({"a": Planted()}, protocol=protocol))
        with pytest.raises(InputError):
            read_checkpoint(tmp_path / "model.pt")
    assert not (tmp_path / "ran").exists()


def loss(dtype, *, state=b"", content="12345678"):
    """A dictionary whose `loss` is a scalar of NumPy, of a dtype with this name and state."""
    as_bytes = b"c_codecs\nencode\n" + text(content) + text("latin1") + b"\x86R"
    as_dtype = b"cnumpy\ndtype\n" + text(dtype) + b"\x89\x88\x87R" + state
    return Orders(b"}" + text("loss"), b"cnumpy._core.multiarray\nscalar\n", as_dtype, as_bytes, b"\x86Rs.")


# The states (3, ">", None) and, of a field far behind the value, (3, "|", None, ("a",), {"a": (None, 2**31 - 1)}, 8).
BIG = b"(K\x03" + text(">") + b"Ntb"
FIELD = b"(K\x03" + text("|") + b"N(" + text("a") + b"t}" + text("a") + b"(NJ\xff\xff\xff\x7ftsK\x08tb"


@pytest.mark.parametrize(
    ("orders", "why"),
    [
        (loss("O8"), "numbers of O8"),
        (loss("V8", state=FIELD), "numbers of V8"),
        (loss("f8", state=BIG), "byte order of another machine"),
        (loss("f8", content="1234"), "is damaged"),
        (loss("f8", content=""), "is damaged"),
    ],
)
def test_a_number_of_numpy_has_no_type_that_a_file_makes_up(orders, why, tmp_path):
    with pytest.raises(InputError, match=why):
        read_checkpoint(save_orders(tmp_path / "model.pt", orders))


def test_numbers_of_numpy_become_those_of_python(tmp_path):
    numbers = {"a": np.float64(0.1), "b": np.float32(0.25), "c": np.int64(-7), "d": np.int32(5), "e": np.bool_(True)}
    torch.save({"log": [numbers]}, tmp_path / "model.pt")
    (found,) = read_checkpoint(tmp_path / "model.pt")["log"]
    assert found == numbers
    assert {type(value) for value in found.values()} == {float, int, bool}


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_checkpoint_is_read_as_it_was_or_refused(seed, tmp_path):
    weights = {f"w{n}": torch.arange(4.0) + n for n in range(4)}
    torch.save({"model": weights, "epoch": 3, "loss": np.float64(0.5)}, tmp_path / "model.pt")
    content = bytearray((tmp_path / "model.pt").read_bytes())
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 6)):
        content[rng.integers(len(content))] = rng.integers(256)
    (tmp_path / "model.pt").write_bytes(content[: rng.integers(1, len(content))] if seed % 4 == 0 else content)
    try:
        found = read_checkpoint(tmp_path / "model.pt")
    except InputError:
        return
    assert isinstance(found, dict)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.to(torch.complex64),
        lambda value: value > 0,
        lambda value: value.to(torch.float8_e4m3fn),
        lambda value: value.to_sparse(),
        lambda value: value.to("meta"),
        lambda value: torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8),
        lambda value: value.to(torch.int64) + 2**62,
        lambda value: value * float("nan"),
        lambda value: value.reshape(-1)[:0],
        lambda value: "text",
    ],
)
def test_weights_of_another_kind_are_refused(change, tmp_path):
    save_bundle(tmp_path / "b", config())
    path = tmp_path / "b" / "models" / "model.pt"
    weights = torch.load(path, weights_only=True)
    name = next(name for name, value in weights.items() if value.is_floating_point())
    weights[name] = change(weights[name])
    torch.save(weights, path)
    with pytest.raises(InputError, match=r"model\.pt"):
        open_model(tmp_path / "b")


@pytest.mark.parametrize(
    "arguments",
    [
        {"strides": [0]}, {"strides": [-1]}, {"strides": ["x"]}, {"strides": 2}, {"channels": []}, {"channels": [4]},
        {"channels": [4, 0]}, {"channels": [4, -8]}, {"channels": [4, 10**9]}, {"channels": [10**30, 8]},
        {"kernel_size": 0}, {"kernel_size": -3}, {"kernel_size": [3, 3]}, {"spatial_dims": 9}, {"spatial_dims": None},
        {"norm": "none such"}, {"norm": ["group", {"num_groups": 0}]}, {"norm": ["group", {"num_groups": 3}]},
        {"act": [[]]}, {"dropout": "x"}, {"num_res_units": 10**9}, {"num_res_units": -1}, {"in_channels": 0},
        {"unknown": 1}, {"bias": {}},
    ],
)  # fmt: skip
def test_a_bundle_whose_network_cannot_be_is_refused(arguments, tmp_path):
    save_bundle(tmp_path / "b", config())
    path = tmp_path / "b" / "configs" / "inference.json"
    described = json.loads(path.read_text())
    described["network_def"] |= arguments
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"/b\b"):
        open_model(tmp_path / "b")


def test_references_to_references_make_no_bomb(tmp_path):
    links = {f"a{level}": [f"@a{level + 1}"] * 10 for level in range(12)}
    save_bundle(tmp_path / "b", config())
    path = tmp_path / "b" / "configs" / "inference.json"
    path.write_text(json.dumps({**config(network={**UNET, "act": "@a0"}), **links, "a12": "x"}))
    with pytest.raises(InputError, match="more than 20000 values"):
        open_model(tmp_path / "b")


@pytest.mark.parametrize("reference", ["@" + "9" * 5000, "@preprocessing::transforms::" + "9" * 5000, "@", "@::", "%#"])
def test_references_to_nowhere_are_refused(reference, tmp_path):
    save_bundle(tmp_path / "b", config())
    path = tmp_path / "b" / "configs" / "inference.json"
    path.write_text(json.dumps(config(network={**UNET, "act": reference})))
    with pytest.raises(InputError):
        open_model(tmp_path / "b")


def places(values, way=()):
    """The ways to all values of a mapping."""
    for key, value in values.items():
        yield (*way, key)
        if isinstance(value, dict):
            yield from places(value, (*way, key))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plans_of_other_types_are_refused_or_harmless(value, tmp_path):
    save_nnunet(tmp_path / "n")
    whole = plans()
    whole["configurations"]["3d_fullres"]["inherits_from"] = ""
    for way in places(whole):
        crafted = copy.deepcopy(whole)
        part = crafted
        for key in way[:-1]:
            part = part[key]
        part[way[-1]] = value
        (tmp_path / "n" / "plans.json").write_text(json.dumps(crafted))
        with contextlib.suppress(InputError):
            open_model(tmp_path / "n")


@pytest.mark.parametrize(
    "arguments",
    [
        {"features_per_stage": [4096, 4096, 4096]},
        {"n_conv_per_stage": [4096] * 3},
        {"n_conv_per_stage": [64] * 3},
        {"kernel_sizes": [[4096] * 3] * 3},
    ],
)
def test_a_network_that_is_larger_than_its_weights_is_refused_before_it_is_built(arguments, tmp_path):
    described = plans()
    save_nnunet(tmp_path / "n")
    kinds = described["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
    described["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"] = {**kinds, **arguments}
    (tmp_path / "n" / "plans.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"other weights|less than or equal"):
        open_model(tmp_path / "n")


@pytest.mark.parametrize("convolutions", [[2] * 10**6, "x", None, [None], {"a": 1}])
def test_earlier_plans_with_impossible_levels_are_refused(convolutions, tmp_path):
    described = plans()
    configuration = described["configurations"]["3d_fullres"]
    configuration.pop("architecture")
    configuration |= {
        "UNet_class_name": "PlainConvUNet", "UNet_base_num_features": 4, "unet_max_num_features": 8,
        "n_conv_per_stage_encoder": convolutions, "n_conv_per_stage_decoder": [1, 2],
        "conv_kernel_sizes": [[3, 3, 3]] * 3, "pool_op_kernel_sizes": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
    }  # fmt: skip
    save_nnunet(tmp_path / "n")
    (tmp_path / "n" / "plans.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"plans\.json"):
        open_model(tmp_path / "n")


def test_a_thousand_links_to_one_fold_are_refused(tmp_path):
    save_nnunet(tmp_path / "n")
    for number in range(1, 1000):
        (tmp_path / "n" / f"fold_{number}").symlink_to(tmp_path / "n" / "fold_0")
    with pytest.raises(InputError, match="more than the 50"):
        open_model(tmp_path / "n")
