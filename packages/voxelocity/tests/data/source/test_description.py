from __future__ import annotations

import copy
import functools
import operator

import pytest

from voxelocity.data.source import open_cases
from voxelocity.data.source.description import Description, read_json, whole_number
from voxelocity_observe.core.errors import DatasetError


def described(tmp_path, **values) -> Description:
    return Description(path=tmp_path / "dataset.json", values=values)


def test_malformed_json_is_located_by_line_and_column(tmp_path):
    path = tmp_path / "dataset.json"
    path.write_text('{\n "name": "x",\n "labels" {}\n}')
    with pytest.raises(DatasetError, match=r"dataset\.json: not valid JSON at line 3, column 11 \(.*\); correct it"):
        read_json(path)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_file_is_called_empty(tmp_path, text):
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match=r"dataset\.json is empty; copy it again"):
        read_json(tmp_path / "dataset.json")


def test_a_byte_order_mark_is_no_obstacle(tmp_path):
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "x.json").write_bytes('{"a": "Größe"}'.encode("latin-1"))
    with pytest.raises(DatasetError, match=r"x\.json: byte 9 is not UTF-8; save the file as UTF-8"):
        read_json(tmp_path / "x.json")


def test_a_key_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"dataset": {"a": 1, "b": 2, "a": 3}}')
    with pytest.raises(DatasetError, match=r'x\.json: "a" appears twice in one object; remove or rename'):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_beyond_the_parser_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DatasetError, match=r"x\.json: not usable as JSON \(.*\); copy the file again"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "found"), [("{}", "an empty object"), ("[1]", "a list"), ("null", "null"), ("3", "a number")]
)
def test_a_top_level_without_fields_is_refused(tmp_path, text, found):
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match=rf"dataset\.json: the top level is {found}, not the description of"):
        Description.read(tmp_path / "dataset.json")


@pytest.mark.parametrize(("value", "kind"), [([], "a list"), ("x", "a string"), (True, "true"), (None, "null")])
def test_a_field_of_the_wrong_type_is_named(tmp_path, value, kind):
    with pytest.raises(DatasetError, match=rf'"labels" is {kind}; write it in the form'):
        described(tmp_path, labels=value).require("labels", dict)


def test_true_is_not_a_number_of_cases(tmp_path):
    with pytest.raises(DatasetError, match='"numTraining" is true; write it in the form "numTraining": 20'):
        described(tmp_path, numTraining=True).require("numTraining", int)


def test_the_folder_names_a_data_set_without_name(tmp_path):
    assert described(tmp_path).name == tmp_path.name
    assert described(tmp_path, name=" ").name == tmp_path.name
    assert described(tmp_path, name="Spleen").name == "Spleen"


def test_channels_are_ordered_by_number_not_as_text(tmp_path):
    names = {str(index): f"c{index}" for index in reversed(range(12))}
    assert described(tmp_path, modality=names).channels == tuple(f"c{index}" for index in range(12))


def test_channel_names_win_over_modality(tmp_path):
    assert described(tmp_path, modality={"0": "old"}, channel_names={"0": "new"}).channels == ("new",)


@pytest.mark.parametrize("names", [{}, {"1": "CT"}, {"0": "CT", "2": "PET"}, {"CT": 0}])
def test_channel_numbers_with_gaps_are_refused(tmp_path, names):
    with pytest.raises(DatasetError, match=r'"channel_names" has the keys .*; number the channels "0", "1"'):
        _ = described(tmp_path, channel_names=names).channels


def test_a_channel_name_must_be_a_text(tmp_path):
    with pytest.raises(DatasetError, match=r'"modality" calls channel 1 7; write its name as a string'):
        _ = described(tmp_path, modality={"0": "CT", "1": 7}).channels


def test_labels_are_sorted_by_value(tmp_path):
    labels = described(tmp_path).check_labels([(10, "c"), (0, "background"), (2, "b")])
    assert list(labels.items()) == [(0, "background"), (2, "b"), (10, "c")]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([(0, "background"), (-1, "bone")], r'gives "bone" the value -1; label values must be 0 to 65535'),
        ([(0, "background"), (70000, "bone")], r'gives "bone" the value 70000; label values must be 0 to 65535'),
        ([(0, "background"), (1, "a"), (1, "b")], r'gives 1 to both "a" and "b"; keep one of them'),
        ([(0, "background"), (1, "a"), (2, "a")], r'has two classes called "a"; rename one'),
        ([(1, "a"), (2, "b")], r"has the values \[1, 2\] and no 0; add the background as 0"),
        ([], r"has the values \[\] and no 0; add the background"),
        ([(0, "background")], r"has 1 classes with the background; 2 to 65535 can be learned"),
        ([(i, str(i)) for i in range(65_536)], r"has 65536 classes with the background; 2 to 65535 can be learned"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(tmp_path, pairs, text):
    with pytest.raises(DatasetError, match=r'dataset\.json: "labels" ' + text):
        described(tmp_path).check_labels(pairs)


def test_256_classes_are_accepted(tmp_path):
    assert len(described(tmp_path).check_labels((i, str(i)) for i in range(256))) == 256


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-3", -3),
        ("007", 7),
        ("1_0", None),
        ("1.0", None),
        ("", None),
        ("²", None),
        ("１", None),
        (" 1", None),
    ],
)
def test_whole_numbers_are_plain_digits(text, number):
    assert whole_number(text) == number


def test_values_in_quotes_are_taken_without_them(tmp_path):
    for number in (1, "1"):
        zero = type(number)(0)
        found = described(tmp_path, labels={"background": zero, "liver": number})
        assert (found.labels, found.names_are_values) == ({0: "background", 1: "liver"}, False)


def _places(value, path=()):
    """The keys that lead to every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


LONG = ["x" * 5000, ["x" * 5000] * 50, {"x" * 5000: "x" * 5000}, 10**3000, -(10**3000)]


@pytest.mark.parametrize("layout", ["msd", "nnunet"])
def test_no_value_of_a_description_makes_a_long_message(request, tmp_path, layout, write_json):
    described = request.getfixturevalue(layout)
    crafted = []
    for *path, last in _places(described):
        for value in LONG:
            crafted.append(copy.deepcopy(described))
            functools.reduce(operator.getitem, path, crafted[-1])[last] = value
        if isinstance(last, str):
            crafted.append(copy.deepcopy(described))
            holder = functools.reduce(operator.getitem, path, crafted[-1])
            holder["x" * 5000] = holder.pop(last)
    texts = []
    for values in crafted:
        write_json(values)
        try:
            open_cases(tmp_path)
        except DatasetError as error:
            texts.append(str(error))
    assert len(texts) > len(crafted) // 2
    assert max(map(len, texts)) < 1500, max(texts, key=len)[:2000]
