"""Expressions of bundles: a few are computed as Python would, the others are refused, and none is ever run."""

import contextlib
import json
import os

import numpy as np
import pytest
import torch

from voxelocity.infer import open_model
from voxelocity.infer.models.bundle_expressions import ExpressionError, Sources, evaluate, plain_reference, priorities
from voxelocity.infer.models.foreign_files import read_checkpoint
from voxelocity_observe.core.errors import InputError

from .test_bundle import SPACED, config, save

VALUES = {
    "@flag": True, "@a": 3, "@a::b": 5, "@d#e": 7, "@list": [1, "@a"], "@names": {"x": 1, "y": 2}, "@text": "models",
    "@arrays": {"code": np.arange(3)},
}  # fmt: skip


def follow(value):
    return VALUES.get(value, value) if isinstance(value, str) else value


def value_of(text, load=None):
    return evaluate(text, Sources(follow=follow, load=load))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1.5, 1.5, -1.5] if @flag else [3.0] * 3", [1.5, 1.5, -1.5]),
        ("[3.0] * 3 if not @flag else [3.0] * 2", [3.0, 3.0]),
        ("len(@names) + @a", 5),
        ("@a::b * 2 // 3 % 4 - 1.5", 1.5),
        ("@d#e / 2", 3.5),
        ("@list[1]", 3),
        ("@names['y']", 2),
        ("@text + '/model.pt'", "models/model.pt"),
        (" @list + [4] ", [1, "@a", 4]),
        ("(1, 2)", [1, 2]),
        ("max(1, @a) and min(4, 2)", 2),
        ("@a > 2 or missing", True),
        ("@a if @a is not None else 1", 3),
        ("monai.utils.CommonKeys.IMAGE", "image"),
        ("np.float32", "float32"),
        ("torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')", "device"),
        ("int(round(2.6))", 3),
        ("None", None),
        ("list(set([i+1 for i in range(6)]) - set([2, 4]))", [1, 3, 5, 6]),
        ("[i * 2 for i in @list]", [2, 6]),
        ("[x for x in range(2, 8, 3)]", [2, 5]),
        ("[[j for j in range(i)] for i in range(3)]", [[], [0], [0, 1]]),
    ],
)
def test_harmless_expressions_are_computed(text, expected):
    assert value_of(text) == expected


def test_arrays_of_a_file_of_the_bundle_are_tensors():
    found = value_of("torch.from_numpy(@arrays['code'])")
    assert torch.equal(found, torch.arange(3))
    assert value_of("torch.load('x.pt', map_location=torch.device('cuda'))['y']", {"x.pt": {"y": 4}}.get) == 4


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch ran')", "open('x')", "@a.bit_length()", "().__class__",
        "[i for i in @list if i]", "lambda x: x", "f'{@a}'", "(x := 3)", "@names.keys()", "eval('1')",
        "os.path.join('a', 'b')", "{**@names}", "2 ** 99999", "[0] * 100000", "'a' * 9", "10 ** 10",
        "9999999999 * 9999999999", "1 / 0", "@list[9]", "@names['z']", "len(3)", "int('x')", "sum(['a'])", "1 +",
        "*@list", "@list * @list", "torch.load(open('x'))", "numpy.ones(3)", "torch.hub.load('a', 'b')", "not_defined",
        "1 < 2 < 3", "-'a'", "(" * 300 + ")" * 300, "-" * 999 + "1", "a" * 2000, "voxelocity_reference_0",
        "@arrays['code'] and 1", "\0", "", "@", "list(5)", "int('9' * 9999)", "True @ False", "len(@names, x=1)",
        "1; 2", "import os", "range(999999999)", "set([[1]])", "[j for i in range(9) for j in range(9)]",
        "[[j for j in range(9999)] for i in range(9999)]", "range('a')", "set([1]) - [1]", "list(set([1, 'a']))",
        "[i for i in 3]", "[i.x for i in [1]]", "[__import__(i) for i in ['os']]",
    ],
)  # fmt: skip
def test_all_others_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExpressionError):
        value_of(text)
    assert os.listdir(tmp_path) == []


def test_what_is_refused_is_named_as_it_is_written():
    with pytest.raises(ExpressionError, match=r"@network_def\.to\(\.\.\.\) is not computed"):
        value_of("@network_def.to(@a)")


def test_a_reference_alone_is_no_expression():
    assert plain_reference(" @a::b ") == "@a::b"
    assert plain_reference("@a + 1") == ""


def test_the_masks_of_brats_have_priorities():
    text = "lambda x: torch.where(x[[2]] > 0, 4, torch.where(x[[0]] > 0.5, 1, torch.where(x[[1]] > 0, 2, 0)))"
    assert priorities(text) == [(2, 4), (0, 1), (1, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "lambda x: x", "lambda x, y: torch.where(x[[0]] > 0, 1, 0)", "lambda x: torch.where(y[[0]] > 0, 1, 0)", "0",
        "lambda x: torch.where(x[[0]] > 0, 1, 5)", "lambda x: torch.where(x[[0]] < 0, 1, 0)", "lambda x: 0",
        "lambda x: torch.where(x[0] > 0, 1, 0)", "lambda x: os.where(x[[0]] > 0, 1, 0)",
        "lambda x: torch.where(x[[0]] > 0, 1, __import__('os'))",
    ],
)  # fmt: skip
def test_other_functions_of_masks_are_refused(text):
    with pytest.raises(ExpressionError):
        priorities(text)


def save_with(folder, **keys):
    """A bundle whose spacing is the value of `asked`."""
    return save(folder, {**config({**SPACED, "pixdim": "@asked"}), **keys})


def spacing_of(folder):
    return open_model(folder).preparation.stages[0].spacing_mm


def test_expressions_of_expressions_are_followed(tmp_path):
    keys = {"asked": "$@low if @is_low else @high", "is_low": "$not @zero", "zero": 0, "high": [3.0, 3.0, 3.0]}
    keys |= {"low": "$@three", "three": "$[@one + 0.5] * 3", "one": "$1"}
    assert spacing_of(save_with(tmp_path / "b", **keys)) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"asked": "$@asked + [1]"}, "follows more than 20 references"),
        ({"asked": "$@a0", **{f"a{n}": f"$@a{n + 1} + @a{n + 1}" for n in range(18)}, "a18": [1.0]}, "more than"),
        ({"asked": "$torch.load('../x.pt')['a']"}, "names the file '../x.pt', which is not in the bundle"),
        ({"asked": "$torch.load('/etc/passwd')['a']"}, "names the file '/etc/passwd'"),
        ({"asked": "$torch.load('models/no.pt')['a']"}, "no.pt is missing"),
        ({"asked": "$os.getcwd()"}, "asked is the expression '$os.getcwd()', which is code and is not evaluated"),
    ],
)
def test_expressions_that_lead_nowhere_are_refused_with_their_key_and_file(tmp_path, keys, message):
    folder = save_with(tmp_path / "b", **keys)
    with pytest.raises(InputError) as error:
        spacing_of(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_the_file_of_an_architecture_that_holds_code_is_refused(tmp_path):
    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = save_with(tmp_path / "b", asked="$torch.load('models/code.pt')['a']")
    for is_zip in (False, True):
        torch.save({"a": Planted()}, folder / "models" / "code.pt", _use_new_zipfile_serialization=is_zip)
        with pytest.raises(InputError, match=r"code\.pt holds posix\.mkdir, which may run code"):
            open_model(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("array", [np.array(["x"], dtype=object), np.zeros(2, [("a", "i8")]), np.array(["x"])])
def test_arrays_of_other_things_than_numbers_are_refused(tmp_path, array):
    path = tmp_path / "codes.pt"
    numbers = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.eye(3, dtype=np.int64)[:2]), "c": True}
    torch.save(numbers, path)
    found = read_checkpoint(path, with_arrays=True)
    assert all(np.array_equal(found[key], numbers[key]) for key in numbers)
    assert found["b"].dtype == np.int64
    torch.save({"a": array}, path)
    with pytest.raises(InputError, match=r"codes\.pt"):
        read_checkpoint(path, with_arrays=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_of_an_architecture_is_refused_or_harmless(tmp_path, seed):
    folder = save_with(tmp_path / "b", asked="$torch.load('models/code.pt')['a']")
    path = folder / "models" / "code.pt"
    torch.save({"a": [1.0, 1.0, 1.0], "b": np.arange(6)}, path, _use_new_zipfile_serialization=False)
    content, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    for _ in range(rng.integers(1, 6)):
        content[rng.integers(len(content))] = rng.integers(256)
    path.write_bytes(content[: rng.integers(1, len(content))] if seed % 4 == 0 else content)
    # Of a damaged number, the bundle may be refused or have another spacing.
    with contextlib.suppress(InputError):
        assert len(spacing_of(folder)) == 3


@pytest.mark.parametrize("path", ["$@bundle_root + '/models/best.pt'", "models/best.pt"])
@pytest.mark.parametrize("place", ["checkpointloader", "handlers"])
def test_weights_are_those_that_the_bundle_loads(tmp_path, path, place):
    loader = {"_target_": "CheckpointLoader", "load_path": path}
    described = [{"_target_": "StatsHandler"}, loader] if place == "handlers" else loader
    folder = save(tmp_path / "b", {**config(), place: described})
    (folder / "models" / "model.pt").rename(folder / "models" / "best.pt")
    assert open_model(folder).spec.labels[1] == "liver"
    # Of another machine: the bundle's own file is taken.
    text = (folder / "configs" / "inference.json").read_text().replace(json.dumps(path), '"/data/model.pt"')
    (folder / "configs" / "inference.json").write_text(text)
    with pytest.raises(InputError, match=r"model\.pt is missing"):
        open_model(folder)
