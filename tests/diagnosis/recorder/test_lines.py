"""What counts as the person's own code, and how a line of it is told."""

import json
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

from voxelocity.diagnosis.recorder import lines
from voxelocity.diagnosis.recorder.lines import OwnCode


def code(filename):
    return compile("x = 1", filename, "exec")


@pytest.fixture
def own_code(tmp_path):
    return OwnCode(script=str(tmp_path / "train.py"))


@pytest.mark.parametrize(
    ("filename", "module"),
    [
        (json.__file__, "json"),
        (f"{sysconfig.get_paths()['purelib']}/numpy/core.py", "numpy.core"),
        ("/usr/lib/python3/dist-packages/apt/cache.py", "apt.cache"),
        (lines.__file__, lines.__name__),
        ("/home/me/src/monai/transforms/compose.py", "monai.transforms.compose"),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap"),
        ("<eval_with_key>.0", "torch.fx"),
        ("<string>", "dataclasses"),
        ("/tmp/torchinductor_me/ab/cab.py", "cab"),
    ],
)
def test_code_of_python_and_of_libraries_is_not_own(own_code, filename, module):
    assert not own_code.holds(code(filename), module)


@pytest.mark.parametrize(
    ("filename", "module"),
    [
        ("{}/train.py", "__main__"),
        ("{}/lib/loaders.py", "lib.loaders"),
        ("/elsewhere/my_project/nets.py", "nets"),
        ("<stdin>", "__main__"),
        ("<string>", "__main__"),
        ("<ipython-input-3-abc>", "__main__"),
        ("/tmp/ipykernel_7/12.py", "__main__"),
    ],
)
def test_scripts_modules_and_typed_code_are_own(own_code, tmp_path, filename, module):
    assert own_code.holds(code(filename.format(tmp_path)), module)


def test_a_script_that_came_with_a_package_is_own_but_its_neighbours_are_not(tmp_path):
    package = tmp_path / "site-packages" / "nnunet"
    own_code = OwnCode(script=str(package / "run.py"))
    assert own_code.holds(code(str(package / "run.py")), "__main__")
    assert not own_code.holds(code(str(package / "nets.py")), "nnunet.nets")


def test_the_innermost_own_line_is_told_with_its_text(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json\n\ndef load(look):\n    return   json.loads('1', parse_int=look)\n")
    names = {"__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), names)
    own_code = OwnCode(script=str(script))
    seen = []
    names["load"](lambda text: seen.append(own_code.place(sys._getframe(1))))
    assert seen == [(f"{script}:4", "return   json.loads('1', parse_int=look)")]


def test_a_stack_without_own_code_is_nowhere(tmp_path):
    own_code = OwnCode(script=str(tmp_path / "train.py"))
    seen = []
    thread = threading.Thread(target=own_code.place, args=(None,))
    threading.setprofile(lambda frame, *_: seen.append(own_code.place(frame)))
    thread.start()
    threading.setprofile(None)
    thread.join()
    assert set(seen) == {lines.NOWHERE} == {("", "")}


def test_long_lines_are_cut_and_lines_without_source_are_empty(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("x = '" + "y" * 500 + "'\n")
    place = OwnCode(script="").at(str(module), 1)
    assert place.where == f"{module}:1"
    assert len(place.line) == 160
    assert place.line.endswith("...")
    assert OwnCode(script="").at(str(Path("missing.py").absolute()), 3).line == ""
