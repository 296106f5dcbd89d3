"""What customizing writes, keeps, puts back and refuses; its trials take milliseconds here."""

from __future__ import annotations

import errno
import html
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock
from rich.console import Console
from tuning.auto3dseg.conftest import write_inputs

from shared.raising import raising
from voxelocity.monai.auto3dseg import BundleGen, customize, undo
from voxelocity.tuning.page import tuning_document
from voxelocity_observe.core.errors import ConfigError, InputError, OutputError

SPECS = {"universal": {"num_trials": 6, "range_num_images_per_batch": [1, 8], "range_num_sw_batch_size": [1, 4]}}
# A trial that notes that it ran.
NOTED = """
(answer.parent.parent / 'ran').open('a').write('x')
write({'images_per_s': [float(patches)], 'validation_s': [1.0]})
"""


def quiet():
    return Console(quiet=True)


def parameters(work, name):
    return yaml.safe_load((work / name / "configs" / "hyper_parameters.yaml").read_text())


def every_file(work, part=""):
    found = [*work.glob(f"{part}*/configs/*"), *work.glob(f"{part}*/algo_object.json")]
    return {str(path.relative_to(work)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("segresnet", {"batch_size": 1, "num_crops_per_image": 8, "learning_rate": 0.0008}),
        ("segresnet2d", {"num_crops_per_image": 8, "auto_scale_allowed": False, "learning_rate": 0.0008}),
        ("dints", {"num_patches_per_iter": 8, "auto_scale_allowed": False, "learning_rate": 0.4}),
        ("swinunetr", {"num_patches_per_iter": 8, "num_crops_per_image": 16, "learning_rate": 0.0008}),
    ],
)  # fmt: skip
def test_the_winner_is_written_into_the_files_of_every_fold_and_into_monais_object(work, trials, name, written):
    from monai.auto3dseg import algo_from_json

    trials()
    found = customize(work, name, SPECS, console=quiet())
    assert list(found) == [f"{name}_0"]
    result = found[f"{name}_0"]
    assert result.study.winner["patches_per_step"] == 8
    for fold in (0, 1):
        values = parameters(work, f"{name}_{fold}")
        assert written.items() <= values.get("training", values).items()
        assert values["fold"] == fold
        algo, _ = algo_from_json(str(work / f"{name}_{fold}" / "algo_object.json"))
        assert result.values.items() <= algo.fill_records["hyper_parameters.yaml"].items()
    page = (result.folder / "tune.html").read_text()
    assert "--undo" in page
    assert "patches_per_step" in page
    # Of the memory that it costs.
    assert "MiB)" in page or "GiB)" in page or "KiB)" in page


def test_a_learning_rate_stays_where_the_specs_say_so(work, trials):
    trials()
    before = parameters(work, "segresnet_0")["learning_rate"]
    specs = {"segresnet": {**SPECS["universal"], "scale_learning_rate": False}}
    result = customize(work, "segresnet", specs, console=quiet())["segresnet_0"]
    assert result.study.winner["patches_per_step"] == 8
    assert "learning_rate" not in result.values
    assert parameters(work, "segresnet_0")["learning_rate"] == before


def test_settings_that_nothing_beats_stay_and_a_trial_is_shown_by_its_median(work, trials):
    trials("write({'images_per_s': [4.0, 6.0], 'validation_s': [1.0]})")
    document = tuning_document(customize(work, "dints", SPECS, console=quiet())["dints_0"])
    assert "they stay" in document.verdict
    trials_table = next(section for section in document.sections if section.title == "Trials").blocks[1]
    assert {row[2].partition(" images/s")[0] for row in trials_table.rows} == {"5.00"}


def test_the_nearest_to_settings_outside_of_a_range_is_written_where_nothing_beats_it(work, trials):
    trials("write({'images_per_s': [5.0], 'validation_s': [1.0]})")
    specs = {"dints": {**SPECS["universal"], "range_num_images_per_batch": [3, 8]}}
    result = customize(work, "dints", specs, console=quiet())["dints_0"]
    assert result.values["training#num_patches_per_iter"] == 3
    assert "nearest to the algorithm's own settings" in tuning_document(result).verdict


def test_undo_puts_every_file_back_byte_for_byte(work, trials):
    trials()
    before = every_file(work)
    tuned = customize(work, None, SPECS, console=quiet())
    assert sorted(tuned) == ["dints_0", "segresnet2d_0", "segresnet_0", "swinunetr_0"]
    changed = {path for path, content in every_file(work).items() if content != before[path]}
    assert len(changed) == 2 * 8
    assert undo(work, "dints", console=quiet()) == ("dints_0", "dints_1")
    assert every_file(work, "dints") == {path: before[path] for path in before if path.startswith("dints")}
    assert len(undo(work, console=quiet())) == 6
    assert every_file(work) == before
    with pytest.raises(InputError, match="nothing to undo"):
        undo(work, console=quiet())


def test_undo_runs_none_of_the_code_in_the_folder(work, trials, monkeypatch):
    trials()
    before = every_file(work)
    customize(work, "dints", SPECS, console=quiet())
    monkeypatch.setattr("voxelocity.tuning.auto3dseg.algorithms.import_bundle_algo_history", None)
    assert undo(work, ["dints_1"], console=quiet()) == ("dints_1",)
    assert undo(work, console=quiet()) == ("dints_0",)
    assert every_file(work) == before
    with pytest.raises(ConfigError, match="has no algorithm"):
        undo(work, "none such", console=quiet())


def test_undo_keeps_what_was_changed_after_it_was_written(work, trials):
    trials()
    before = every_file(work)
    customize(work, ["segresnet"], SPECS, console=quiet())
    file = work / "segresnet_0" / "configs" / "hyper_parameters.yaml"
    edited = file.read_text() + "# mine\n"
    file.write_text(edited)
    undo(work, console=quiet())
    assert every_file(work) == before
    assert (work / "tune" / "changed" / "segresnet_0" / "configs" / "hyper_parameters.yaml").read_text() == edited


def test_a_second_customization_begins_with_what_the_algorithm_was(work, trials):
    trials()
    before = every_file(work)
    customize(work, "dints", SPECS, console=quiet())
    first = parameters(work, "dints_0")
    customize(work, "dints", SPECS, console=quiet())
    assert parameters(work, "dints_0") == first
    undo(work, console=quiet())
    assert every_file(work) == before


def test_a_second_customization_of_files_that_were_changed_says_which_an_undo_will_put_back(work, trials):
    trials()
    original = every_file(work, "dints_0")
    customize(work, "dints", SPECS, console=quiet())
    file = work / "dints_0" / "configs" / "hyper_parameters.yaml"
    edited = file.read_text() + "# mine\n"
    file.write_text(edited)
    with pytest.raises(ConfigError, match="configuration"):
        customize(work, "dints_0", SPECS, console=quiet())
    # What was refused lost nothing.
    undo(work, "dints_0", console=quiet())
    assert every_file(work, "dints_0") == original
    customize(work, "dints_0", SPECS, console=quiet())
    file.write_text(edited)
    before, shown = every_file(work, "dints_0"), io.StringIO()
    customize(work, "dints", SPECS, overwrite=True, console=Console(file=shown, width=400))
    assert "dints_0 was changed after it was customized" in shown.getvalue()
    assert "dints_1 was changed" not in shown.getvalue()
    undo(work, console=quiet())
    assert every_file(work, "dints_0") == before


@pytest.mark.parametrize("content", ["", "[]", '{"configuration": 1}'])
def test_own_settings_that_cannot_be_read_are_found_again(work, trials, content):
    trials()
    first = customize(work, "dints_0", SPECS, console=quiet())["dints_0"]
    place = work / "tune" / "dints_0" / "own.json"
    kept = place.read_text()
    place.write_text(content)
    assert customize(work, "dints_0", SPECS, console=quiet())["dints_0"].values == first.values
    assert json.loads(place.read_text()) == json.loads(kept)
    unlike = json.loads(kept)
    del unlike["own"]["patches"]
    place.write_text(json.dumps(unlike))
    customize(work, "dints_0", SPECS, console=quiet())
    assert json.loads(place.read_text()) == json.loads(kept)


def test_nothing_is_written_where_the_algorithms_own_settings_are_best(work, trials):
    trials("write({'images_per_s': [10.0 if (patches, windows) == (2, 1) else 1.0], 'validation_s': [1.0]})")
    before = every_file(work)
    found = customize(work, "swinunetr", SPECS, console=quiet())["swinunetr_0"]
    assert found.values == {}
    assert found.kept is None
    assert every_file(work) == before


def test_no_memory_at_all_writes_nothing_and_says_so(work, trials, capsys):
    trials("raise MemoryError")
    before = every_file(work)
    found = customize(work, "segresnet", SPECS, memory_limit_bytes=4 * 10**9)["segresnet_0"]
    assert found.study.winner is None
    assert {trial.outcome.kind for trial in found.study.trials} == {"out_of_memory"}
    assert every_file(work) == before
    assert "No settings fit into the memory" in capsys.readouterr().out


def test_on_a_cpu_a_quarter_of_the_limit_stays_free_for_what_a_training_also_holds(work, trials, capsys):
    measured = {"measurements": {"images_per_s": [1.0], "validation_s": [1.0]}, "peak_host_bytes": 2**28}
    trials(f"answer.write_text(json.dumps({measured}))")
    before = every_file(work)
    found = customize(work, "segresnet", SPECS, device="cpu", memory_limit_bytes=2**28 + 2**25)["segresnet_0"]
    assert found.study.winner is None
    assert {trial.outcome.kind for trial in found.study.trials} == {"finished"}
    assert every_file(work) == before
    said = " ".join(capsys.readouterr().out.split())
    assert "No settings fit into the memory with a margin; the smallest try took" in said
    assert "Raise --memory-limit, or make its network or patch smaller." in said


def test_the_largest_batch_that_fits_is_found_and_failures_are_outcomes(work, trials):
    trials("""
if patches > 4: raise MemoryError
if windows == 2: sys.exit(3)
write({'images_per_s': [float(patches)], 'validation_s': [1.0]})
""")
    specs = {"dints": {**SPECS["universal"], "num_trials": 12}}
    found = customize(work, "dints", specs, console=quiet())["dints_0"]
    assert found.study.winner["patches_per_step"] == 4
    assert {"out_of_memory", "crashed"} <= {trial.outcome.kind for trial in found.study.trials}
    assert len(found.study.trials) <= 12


def test_a_killed_customization_continues(work, trials):
    trials(NOTED)

    class Killed(Console):
        def print(self, *words, **options):
            if " size " in str(words):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        customize(work, "dints", SPECS, console=Killed(quiet=True))
    folder = work / "tune" / "dints_0"
    assert (folder / "ran").read_text() == "xx"
    before = every_file(work)
    found = customize(work, "dints", SPECS, console=quiet())["dints_0"]
    assert len((folder / "ran").read_text()) == len(found.study.trials)
    assert every_file(work) != before


def test_what_a_kill_left_half_written_is_put_back(work, trials):
    from voxelocity.tuning.auto3dseg.algorithms import algorithms_in

    trials()
    before = every_file(work)
    one = next(algorithm for algorithm in algorithms_in(work) if algorithm.id == "dints_0")
    one.originals.keep()
    (work / "dints_0" / "configs" / "hyper_parameters.yaml").write_text("half")
    undo(work, console=quiet())
    assert every_file(work) == before


def test_what_a_kill_left_half_put_back_is_put_back_before_another_customization(work, trials):
    trials()
    before = every_file(work)
    customize(work, "dints", SPECS, console=quiet())
    file = Path("configs", "hyper_parameters.yaml")
    (work / "tune" / "originals" / "dints_0" / file).replace(work / "dints_0" / file)
    customize(work, "dints", SPECS, console=quiet())
    undo(work, console=quiet())
    assert every_file(work) == before


def test_two_at_once_in_one_folder_are_refused(work, trials):
    trials()
    code = "import sys; from filelock import FileLock\nwith FileLock(sys.argv[1]): print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, work / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        for call in (lambda: customize(work, "dints", SPECS, console=quiet()), lambda: undo(work, console=quiet())):
            with pytest.raises(OutputError, match="another process is tuning") as caught:
                call()
            assert str(work) in str(caught.value)
    finally:
        other.communicate("\n")
    with FileLock(work / ".lock", blocking=False):
        pass


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("at", ["algo_to_json", "ConfigParser.export_config_file"])
def test_a_disk_that_fills_while_the_files_are_written_leaves_them_as_they_were(work, trials, monkeypatch, at):
    def full(*args, **options):
        (work / "dints_0" / "algo_object.json").write_text("")
        raise FULL

    trials()
    before = every_file(work)
    monkeypatch.setattr(f"voxelocity.tuning.auto3dseg.algorithms.{at}", full)
    with pytest.raises(OutputError, match="no space left") as caught:
        customize(work, "dints", SPECS, console=quiet())
    assert "dints_0" in str(caught.value)
    assert every_file(work) == before
    monkeypatch.undo()
    trials("raise RuntimeError('all trials are there already')")
    assert customize(work, "dints", SPECS, console=quiet())["dints_0"].values


def test_a_disk_that_is_full_when_the_originals_are_kept_changes_nothing(work, trials, monkeypatch):
    trials()
    before = every_file(work)
    monkeypatch.setattr("voxelocity.tuning.auto3dseg.originals.shutil.copy2", raising(FULL))
    with pytest.raises(OutputError, match="no space left"):
        customize(work, "dints", SPECS, console=quiet())
    assert every_file(work) == before
    with pytest.raises(InputError, match="nothing to undo"):
        undo(work, console=quiet())


@pytest.mark.parametrize(
    ("algos", "ids"),
    [
        (["dints", "segresnet"], ["dints_0", "segresnet_0"]),
        ({"swinunetr": {"_target_": "swinunetr.scripts.algo.SwinunetrAlgo"}}, ["swinunetr_0"]),
        ("dints_1", ["dints_1"]),
    ],
)
def test_algorithms_are_chosen_as_bundlegen_takes_them(work, trials, algos, ids):
    trials()
    assert sorted(customize(work, algos, {"universal": {"num_trials": 1}}, console=quiet())) == ids


@pytest.mark.parametrize(
    ("algos", "specs", "words"),
    [
        ("segresne", None, ["segresne'", "segresnet"]),
        (None, {"dints": {"num_trial": 2}}, ["num_trial'", "num_trials"]),
    ],
)
def test_a_wrong_word_is_named_before_anything_is_measured(work, trials, algos, specs, words):
    trials("raise RuntimeError")
    with pytest.raises(ConfigError) as caught:
        customize(work, algos, specs, console=quiet())
    assert all(word in str(caught.value) for word in words), caught.value
    assert not list(work.glob("tune/*/study.db"))


def test_a_folder_without_algorithms_is_named(tmp_path):
    for call in (customize, undo):
        with pytest.raises(InputError, match="holds no algorithms") as caught:
            call(tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_an_algorithm_that_cannot_be_loaded_is_named_with_the_missing_package(work, monkeypatch):
    for file in work.glob("*/algo_object.json"):
        file.write_text(file.read_text().replace(".scripts.algo.", ".scripts.gone."))
    with pytest.raises(InputError, match="fire") as caught:
        customize(work, console=quiet())
    assert str(work) in str(caught.value)


def test_a_template_of_ones_own_stays_as_it_is(work, trials, capsys):
    trials()
    for other in work.glob("s*_?"):
        shutil.rmtree(other)
    file = work / "dints_0" / "algo_object.json"
    state = json.loads(file.read_text())
    state["_state_"]["name"] = "mine"
    file.write_text(json.dumps(state))
    customize(work, None, {"universal": {"num_trials": 1}})
    assert "dints_0 stays unchanged" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="this algorithm cannot be measured: 'mine'; choose from segresnet"):
        customize(work, "mine", console=quiet())


def test_a_configuration_file_that_is_not_yaml_is_named(work, trials):
    trials()
    (work / "dints_0" / "configs" / "notes.yaml").write_text("a: [")
    with pytest.raises(InputError, match=r"cannot read .*notes\.yaml"):
        customize(work, "dints", SPECS, console=quiet())


def test_the_page_quotes_a_folder_whose_name_has_a_space(work, trials):
    trials()
    spaced = work.with_name("my work")
    work.rename(spaced)
    for file in spaced.glob("*/algo_object.json"):
        file.write_text(file.read_text().replace(str(work), str(spaced)))
    found = customize(spaced, "dints", SPECS, console=quiet())["dints_0"]
    page = (found.folder / "tune.html").read_text().replace("<wbr>", "")
    assert f"voxelocity tune '{spaced}' --undo" in html.unescape(page)


def test_folds_that_differ_are_searched_apart(work, trials):
    trials()
    file = work / "dints_1" / "configs" / "hyper_parameters.yaml"
    file.write_text(file.read_text().replace("amp: true", "amp: false"))
    assert sorted(customize(work, "dints", SPECS, console=quiet())) == ["dints_0", "dints_1"]


def test_an_algorithm_that_fails_by_itself_is_named_with_what_it_said(work, trials):
    trials(own="print('the network has a hole'); sys.exit(1)")
    with pytest.raises(InputError, match="the network has a hole") as caught:
        customize(work, "dints", SPECS, console=quiet())
    assert "dints_0" in str(caught.value)


@pytest.mark.parametrize("content", [None, "stats_summary: {image_stats: {}}"], ids=["missing", "incomplete"])
def test_statistics_that_are_not_there_are_named(work, trials, content):
    trials()
    for file in work.glob("*/algo_object.json"):
        file.write_text(file.read_text().replace("/datastats.yaml", "/other.yaml"))
    for folder in (work, work.parent):
        (folder / "datastats.yaml").unlink(missing_ok=True)
    if content is not None:
        (work / "datastats.yaml").write_text(content)
    with pytest.raises(InputError, match="DataAnalyzer"):
        customize(work, "dints", SPECS, console=quiet())


def test_a_script_of_monais_customizes_by_us_after_one_import(templates, tmp_path, inputs, trials):
    trials()
    made = BundleGen(str(tmp_path), algos=["dints"], templates_path_or_url=str(templates), **inputs)
    made.generate(str(tmp_path / "work"), num_fold=2, gpu_customization=True, gpu_customization_specs=SPECS)
    assert parameters(tmp_path / "work", "dints_1")["training"]["num_patches_per_iter"] == 8
    history = made.get_history()
    assert [entry["identifier"] for entry in history] == ["dints_0", "dints_1"]
    assert history[1]["algo_instance"].fill_records["hyper_parameters.yaml"]["training#num_patches_per_iter"] == 8


def test_bundlegen_leaves_a_template_of_ones_own_unchanged_and_says_so(templates, tmp_path, inputs, trials):
    trials()
    script = shutil.copytree(templates / "dints", tmp_path / "own" / "mine") / "scripts" / "algo.py"
    script.write_text(script.read_text().replace("class DintsAlgo", "class MineAlgo"))
    made = BundleGen(str(tmp_path), templates_path_or_url=str(tmp_path / "own"), **inputs)
    with pytest.warns(UserWarning, match="BundleGen: mine stay unchanged: only segresnet"):
        made.generate(str(tmp_path / "work"), num_fold=1, gpu_customization=True)
    assert not (tmp_path / "work" / "tune").exists()


def test_without_gpu_customization_bundlegen_is_monais(templates, tmp_path, inputs, trials):
    trials("raise RuntimeError")
    made = BundleGen(str(tmp_path), algos="dints", templates_path_or_url=str(templates), **inputs)
    made.generate(str(tmp_path / "work"), num_fold=1)
    assert parameters(tmp_path / "work", "dints_0")["training"]["auto_scale_allowed"] is True
    assert not (tmp_path / "work" / "tune").exists()


def test_the_command_line_tunes_and_undoes(work, trials, voxelocity, tmp_path):
    trials()
    before = every_file(work)
    (tmp_path / "specs.yaml").write_text(yaml.safe_dump(SPECS))
    ended = voxelocity("tune", work, "--specs", tmp_path / "specs.yaml", "--algos", "dints", "--memory-limit", "4GB")
    assert ended.status == 0, ended.err
    assert "tune.html" in ended.out
    assert every_file(work) != before
    ended = voxelocity("tune", work, "--undo")
    assert ended.status == 0, ended.err
    assert "dints_0, dints_1" in ended.out
    assert every_file(work) == before


@pytest.mark.parametrize("option", [("--trials", "3"), ("--for", "memory"), ("--set", "seed=1"), ("--no-keep",)])
def test_options_of_our_own_runs_are_refused_for_a_work_folder(work, voxelocity, option):
    ended = voxelocity("tune", work, "--auto3dseg", *option)
    assert ended.status == 2
    assert option[0] in ended.err


def test_templates_that_cannot_be_downloaded_may_be_given(templates, inputs, tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError("no route to the host")

    monkeypatch.setattr("monai.apps.auto3dseg.bundle_gen.download_and_extract", refuse)
    monkeypatch.setattr("monai.apps.auto3dseg.bundle_gen.time.sleep", lambda seconds: None)
    with (
        pytest.warns(UserWarning, match=r"attempt [12]/3"),
        pytest.raises(InputError, match=r"could not be downloaded \(no route.*templates_path_or_url=FOLDER\)"),
    ):
        BundleGen(str(tmp_path), algos="dints", **inputs)
    made = BundleGen(str(tmp_path), algos="dints", templates_path_or_url=str(templates), **inputs)
    assert [algo.name for algo in made.algos] == ["dints"]
    with pytest.raises(ValueError, match="Unable to find provided algos"):
        BundleGen(str(tmp_path), algos="nothing", templates_path_or_url=str(templates), **inputs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_template_that_needs_a_gpu_names_one_that_does_not(templates, tmp_path):
    given = write_inputs(tmp_path)
    made = BundleGen(str(tmp_path), algos="swinunetr", templates_path_or_url=str(templates), **given)
    with pytest.raises(InputError, match=r'asks every GPU for its memory, and this machine has none .*algos="dints"'):
        made.generate(str(tmp_path / "work"), num_fold=1)
    made = BundleGen(str(tmp_path), algos="dints", templates_path_or_url=str(templates), **given)
    made.generate(str(tmp_path / "work"), num_fold=1)
    assert (tmp_path / "work" / "dints_0").is_dir()
