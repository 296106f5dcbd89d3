"""A run exported to another runtime: what is written, what it is compared on, what is refused."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from shared.small_predictor import small_spec
from voxelocity.core.requests.export import ExportRequest
from voxelocity.data.source import open_cases
from voxelocity.infer import ModelSpec, Predictor, open_model, predict_files, save_model
from voxelocity.infer import export as exporting
from voxelocity.infer.export import export_run
from voxelocity.infer.models.exported import ExportedNetwork
from voxelocity.infer.runtimes import onnxruntime, program
from voxelocity.infer.runtimes.contract import NamedForward
from voxelocity.step import build_network
from voxelocity_observe.core.errors import ConfigError, ExportError, InputError, OutputError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_msd, traces_once):
    """A run that learned nothing, with its data set and two validation cases."""
    folder = tmp_path_factory.mktemp("run")
    spec = small_spec(
        channels=["MRI"],
        labels={0: "background", 1: "ball", 2: "core"},
        prepare={"spacing_mm": [1.5, 1.5, 1.5]},
        window={"shape_voxel": [16, 8, 8], "batch_size": 4},
    )
    save_model(folder, build_network(spec.network, num_channels=1, num_classes=3, seed=2), spec)
    record = {"dataset": {"path": str(tiny_msd)}, "cases": {"validation": ["case_1", "case_4"]}}
    (folder / "run.yaml").write_text(yaml.safe_dump(record))
    (folder / "scores.json").write_text("{}")
    return folder


def export(run, out, to, **changes):
    call = {name: changes.pop(name) for name in ("device", "warn") if name in changes}
    request = ExportRequest(run=run, out=out, to=to, **changes)
    return export_run(request, **{"device": CPU, "num_threads": 1, **call})


@pytest.fixture(scope="module")
def exports(run, tmp_path_factory):
    """Both formats that are data, each with its record."""
    root = tmp_path_factory.mktemp("exports")
    return {to: (root / to, export(run, root / to, to)) for to in ("onnx", "openvino")}


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_an_export_predicts_what_its_run_predicts(run, exports, to, tiny_msd, tmp_path):
    folder, record = exports[to]
    assert {path.name for path in folder.iterdir()} == {"model.json", "parity.json", "parity.html"} | (
        {"network.onnx"} if to == "onnx" else {"network.xml", "network.bin"}
    )
    assert record.relative_difference < 1e-4
    scan = tiny_msd / "imagesTr" / "case_0.nii.gz"
    before, after = (
        predict_files(model, [scan], tmp_path / name, device=CPU, num_threads=1)[0]
        for name, model in (("run", run), ("export", folder))
    )
    assert sum(before.num_voxels.values()) > 0
    differing = sum(abs(before.num_voxels[name] - after.num_voxels[name]) for name in before.num_voxels)
    assert differing <= 2
    assert open_model(folder).spec.label_values == (0, 1, 2)


def test_the_report_compares_the_validation_cases_of_the_run(exports):
    folder, record = exports["onnx"]
    assert [case.case_id for case in record.cases] == ["case_1", "case_4"]
    assert record.windows_of == "case_1"
    written = json.loads((folder / "parity.json").read_text())
    assert written["format"] == "voxelocity export report"
    assert written["to"] == "onnx"
    assert written["cases"][0]["num_voxels"] == record.cases[0].num_voxels
    assert written["agreement"] > 0.999
    before, after = written["mean_dice"]["run"], written["mean_dice"]["export"]
    assert before == pytest.approx(after, abs=1e-3)
    assert 0.0 < before < 1.0
    page = (folder / "parity.html").read_text()
    assert "2 validation cases" in page
    assert "case_4" in page


def test_without_its_data_set_a_run_is_compared_on_noise_and_that_is_said(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    record = yaml.safe_load((copy / "run.yaml").read_text())
    record["dataset"]["path"] = str(tmp_path / "gone")
    (copy / "run.yaml").write_text(yaml.safe_dump(record))
    warnings = []
    # What a killed export left.
    (tmp_path / "out" / ".building").mkdir(parents=True)
    (tmp_path / "out" / ".building" / "network.onnx").write_bytes(b"half")
    found = export(copy, tmp_path / "out", "onnx", warn=warnings.append)
    (warning,) = warnings
    assert str(tmp_path / "gone") in warning
    assert "both are compared on noise" in warning
    assert found.cases == ()
    assert not (tmp_path / "out" / ".building").exists()
    assert "4 windows of noise" in found.verdict()
    assert "No validation case was compared" in (tmp_path / "out" / "parity.html").read_text()


def test_a_run_that_was_never_validated_is_exported_with_a_warning(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "scores.json").unlink()
    warnings = []
    export(copy, tmp_path / "out", "onnx", cases=0, warn=warnings.append)
    (warning,) = warnings
    assert f"export: the run in {copy} did not finish: its network was never validated" in warning


def test_the_export_of_a_run_that_learned_nothing_has_no_score_either(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    spec = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(json.dumps({**spec, "unlearned": "it made only 1 training step"}))
    warnings = []
    record = export(copy, tmp_path / "out", "onnx", warn=warnings.append)
    assert "too short to be scored: it made only 1 training step" in warnings[0]
    assert "has no score: it made only 1 training step" in record.verdict()
    assert "Dice" not in record.verdict()
    model = open_model(tmp_path / "out")
    assert model.unlearned == "it made only 1 training step"
    assert "too short to be scored" in model.doubts[0]


def test_an_export_that_answers_wrongly_is_not_kept(run, tmp_path, monkeypatch):
    original = ExportedNetwork.__call__
    monkeypatch.setattr(ExportedNetwork, "__call__", lambda self, windows: original(self, windows) + 0.5)
    with pytest.raises(
        ExportError, match=r"network\.onnx differ from the run's by 0\.\d+ of the largest logit, more than 0\.001"
    ):
        export(run, tmp_path / "out", "onnx", cases=0)
    assert not (tmp_path / "out").exists()


def test_an_export_is_built_under_the_switches_that_its_model_predicts_with(run, tmp_path, monkeypatch):
    used = []

    @contextlib.contextmanager
    def switches(spec, devices):
        used.append((spec.class_names[1], devices))
        yield
        raise AssertionError("an error of the export ends the block")

    def fail(network, task):
        assert used == [("ball", [CPU])]
        raise RuntimeError("built")

    monkeypatch.setattr(exporting, "switches_of", switches)
    monkeypatch.setattr(program, "to_onnx", fail)
    with pytest.raises(ExportError, match="built"):
        export(run, tmp_path / "out", "onnx")


def test_a_network_that_cannot_be_exported_is_said_in_one_line(run, tmp_path, monkeypatch):
    def fail(network, task):
        raise RuntimeError("unsupported operator aten::grid_sampler_3d\nlong trace")

    monkeypatch.setattr(program, "to_onnx", fail)
    with pytest.raises(
        ExportError, match=r"exported to openvino \(RuntimeError: unsupported operator aten::grid_sampler_3d\)"
    ):
        export(run, tmp_path / "out", "openvino")
    assert not (tmp_path / "out").exists()


def test_a_second_export_into_the_same_folder_waits_for_nothing_and_harms_nothing(run, tmp_path):
    out = tmp_path / "out"
    with exporting._building_folder(out) as folder:
        (folder / "network.onnx").write_bytes(b"half")
        with pytest.raises(OutputError, match=r"another export into .*out is running; wait for it"):
            export(run, out, "onnx")
        assert (folder / "network.onnx").read_bytes() == b"half"
    assert not out.exists()


def test_an_export_is_replaced_only_if_asked_and_a_run_never(run, exports, tmp_path):
    folder, _ = exports["onnx"]
    with pytest.raises(OutputError, match=f"{folder} holds an export already; replace it with --overwrite"):
        export(run, folder, "onnx")
    with pytest.raises(OutputError, match=f"{run} holds another model, whose model.json would be lost"):
        export(run, run, "onnx", overwrite=True)
    with pytest.raises(InputError, match=f"{folder} is not a run of voxelocity"):
        export(folder, tmp_path / "out", "onnx")


def test_what_compares_an_onnx_model_is_asked_for_before_it_is_built(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "why_not_on_gpu", lambda: "it computes on CPUs only")
    with pytest.raises(ConfigError, match="--to onnx cannot be used here: it computes on CPUs only"):
        export(run, tmp_path / "out", "onnx", device=torch.device("cuda"))


@pytest.fixture
def own_export(exports, tmp_path):
    return shutil.copytree(exports["openvino"][0], tmp_path / "own")


def test_an_export_in_another_format_leaves_no_file_of_the_one_before(run, own_export):
    export(run, own_export, "onnx", overwrite=True, cases=0)
    assert sorted(path.name for path in own_export.iterdir()) == [
        "model.json", "network.onnx", "parity.html", "parity.json"
    ]  # fmt: skip


def test_a_changed_or_missing_file_of_an_export_is_refused(own_export):
    weights = own_export / "network.bin"
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match=f"{weights} is not the file that was exported with the model.json next to it"):
        open_model(own_export)
    weights.unlink()
    with pytest.raises(InputError, match=f"{weights} cannot be read .*export the run again"):
        open_model(own_export)


def describe(folder, **exported):
    """Changes what the description says of the export, and returns the whole of it."""
    path = folder / "model.json"
    values = json.loads(path.read_text())
    values["exported"] |= exported
    path.write_text(json.dumps(values))
    return values


def test_machine_code_runs_only_if_it_is_named(own_export):
    describe(own_export, format="pt2", sha256={"network.pt2": "0" * 64})
    with pytest.raises(InputError, match=r"network\.pt2 holds machine code, .* give --network network\.pt2"):
        open_model(own_export)


def test_a_checksum_cannot_name_a_file_elsewhere(own_export):
    describe(own_export, sha256={"../../etc/passwd": "0"})
    with pytest.raises(InputError, match=r"exported\.sha256"):
        open_model(own_export)


@pytest.mark.parametrize("name", ["network.xml", "network.bin"])
def test_a_file_without_a_checksum_is_not_opened(own_export, name):
    noted = json.loads((own_export / "model.json").read_text())["exported"]["sha256"]
    describe(own_export, sha256={other: digest for other, digest in noted.items() if other != name})
    with pytest.raises(InputError, match=rf"{name} is not the file .* none is noted there"):
        open_model(own_export)


def test_an_export_refuses_another_runtime(exports, tiny_msd, tmp_path):
    folder, _ = exports["onnx"]
    with pytest.raises(
        InputError, match=f"{folder} is an export, which runs only in onnxruntime; leave runtime='compile' out"
    ):
        predict_files(folder, [tiny_msd / "imagesTr"], tmp_path, device=CPU, num_threads=1, runtime="compile")


def test_a_damaged_model_file_with_the_right_checksum_is_refused(own_export):
    (own_export / "network.xml").write_text("<net/>")
    values = describe(own_export, sha256={"network.xml": "9" * 64})
    model = ExportedNetwork(own_export / "network.xml", ModelSpec.parse(values))
    with pytest.raises(InputError, match=r"network\.xml cannot be opened \(RuntimeError.*export the run again"):
        model.open(CPU)


def test_a_run_predicts_the_same_in_a_runtime_of_choice(run, tiny_msd):
    """`Predictor` takes a loaded network in place of eager mode."""
    model, calls = open_model(run), []

    def forward(windows):
        calls.append(len(windows))
        return model.network(windows)

    ref = open_cases(tiny_msd).refs[0]
    found, wanted = (
        next(
            Predictor(model.network, model.spec, model.preparation, device=CPU, **options).stream([ref], num_threads=0)
        ).classes
        for options in ({"forward": NamedForward("test", forward)}, {})
    )
    np.testing.assert_array_equal(found, wanted)
    assert max(calls) <= 4
    assert len(calls) > 1


@pytest.mark.nightly  # compiles for half a minute
def test_machine_code_that_is_named_predicts_what_its_run_predicts(run, tmp_path, tiny_msd):
    record = export(run, tmp_path / "out", "pt2", cases=1)
    assert record.relative_difference < 1e-4
    predict_files(tmp_path / "out", [tiny_msd / "imagesTr"], tmp_path / "p", device=CPU, num_threads=1,
                  factory="network.pt2")  # fmt: skip
    assert len(list((tmp_path / "p").glob("*.nii.gz"))) == 6
