"""What counts as the person's own code, how a line of it is told, and where it made its loaders and optimizers."""

import json
import linecache
import os
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.recorder import lines
from voxelocity_observe.diagnose.recorder.lines import OwnCode, call_at, call_text, resolved


def code(filename):
    return compile("x = 1", filename, "exec")


def run(source, path, **names):
    """The names of a module of this source, which has run."""
    exec(compile(source, str(path), "exec"), names)
    return names


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


def test_a_script_that_came_with_a_package_is_own_but_its_neighbors_are_not(tmp_path):
    package = tmp_path / "site-packages" / "nnunet"
    own_code = OwnCode(script=str(package / "run.py"))
    assert own_code.holds(code(str(package / "run.py")), "__main__")
    assert not own_code.holds(code(str(package / "nets.py")), "nnunet.nets")


def test_the_innermost_own_line_is_told_with_its_text(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json\n\ndef load(look):\n    return   json.loads('1', parse_int=look)\n")
    names = run(script.read_text(), script, __name__="__main__")
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


def test_the_place_of_the_caller_is_the_innermost_own_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("def train(ask):\n    return ask()\n")
    names = run(script.read_text(), script, __name__="__main__")
    own_code = OwnCode(script=str(script))
    own = {"where": own_code.where, "place": own_code.place_of_caller}
    source = "def ask():\n    return where(), place()\n"
    library = run(source, "/x/site-packages/torch/nn.py", __name__="torch.nn", **own)
    for _ in range(2):
        assert names["train"](library["ask"]) == (f"{script}:2", (f"{script}:2", "return ask()"))


def test_a_module_with_a_name_that_is_no_text_is_judged_by_its_file(tmp_path, own_code):
    names = run("found = where()", tmp_path / "odd.py", __name__=["odd"], where=own_code.where)
    assert names["found"] == f"{tmp_path}/odd.py:1"


def test_code_without_a_folder_is_judged_where_the_working_folder_was_deleted(tmp_path, own_code, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert own_code.holds_file("made.py", "__main__")


def test_the_script_is_own_from_when_it_runs_though_the_recorder_began_before(tmp_path, monkeypatch):
    script = tmp_path / "site-packages" / "train.py"
    own_code = OwnCode()
    assert not own_code.holds(code(str(script)), "train")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert own_code.holds(code(str(script)), "__main__")


class Collate:
    def __call__(self, items):
        return items


def test_a_definition_has_name_and_place_of_functions_and_callable_objects(own_code):
    line = Collate.__call__.__code__.co_firstlineno
    assert own_code.defined(Collate()) == (f"{__name__}.Collate", f"{__file__}:{line}")
    name, where = own_code.defined(json.loads)
    assert name == "json.loads"
    assert where.startswith(json.__file__)
    assert own_code.defined(len) == ("builtins.len", "")


def test_cells_of_a_notebook_are_named_by_their_number(monkeypatch):
    kernel_file = f"{os.sep}tmp{os.sep}ipykernel_12{os.sep}345.py"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={kernel_file: 7}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert lines.shown_file(kernel_file) == "cell 7"
    assert OwnCode(script="").at(kernel_file, 3).where == "cell 7:3"
    assert lines.shown_file(kernel_file.replace("345", "6")) == "notebook cell"
    assert lines.shown_file("<ipython-input-4-0123abcd>") == "cell 4"
    assert lines.shown_file("train.py") == "train.py"


def test_a_line_that_only_started_a_framework_is_not_the_users_place(tmp_path):
    """What the framework calls of the user's is; so is what calls the framework for something else."""
    script = tmp_path / "train.py"
    script.write_text("def main(trainer, ask):\n    return trainer(ask)\ndef training_step(log):\n    return log()\n")
    names = run(script.read_text(), script, __name__="__main__")
    own_code = OwnCode(script=str(script))
    own = {"where": own_code.where, "step": names["training_step"]}
    source = "def fit(ask):\n    return ask()\ndef log():\n    return where()\ndef inner():\n    return step(log)\n"
    library = run(source, "/x/site-packages/pytorch_lightning/trainer.py", __name__="pytorch_lightning.trainer", **own)
    assert names["main"](library["fit"], library["log"]) == ""
    assert names["main"](library["fit"], library["inner"]) == f"{script}:4"


def test_the_command_of_an_installed_package_is_nobodys_own_line():
    command = os.path.join(sysconfig.get_path("scripts"), "nnUNetv2_train")
    assert not OwnCode(script=command).holds(code(command), "__main__")


def test_variables_are_read_without_being_kept_by_their_frame():
    """A frame that is asked for its variables keeps them, and a loss of that moment with its graph."""

    class Loss:
        pass

    def train(keeps):
        known = locals() if keeps else None
        loss = Loss()
        alive = weakref.ref(loss)
        found = lines.variables_of(sys._getframe())
        assert found.pop("loss") is loss
        del loss, found
        return alive() is None, known

    assert train(False) == (True, None)
    _, known = train(True)
    assert known["keeps"], "what the program holds is not emptied"


def called(frame):
    text = call_text(frame)
    return resolved(text, frame) if text else None


class Captured:
    """Stands for objects whose C functions are called; keeps what the calling line is seen to call."""

    def __init__(self):
        self.seen = None

    def look(self, *_):
        self.seen = called(sys._getframe(1))
        return self

    item = tolist = forward = __add__ = look

    def __getitem__(self, at):
        return self

    @property
    def layers(self):
        return self


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("time.sleep(9)", ("time", "sleep")),
        ("sleep(9)", ("time", "sleep")),
        ("zlib.decompress(\n    given)", ("zlib", "decompress")),
        ("given.item()", ("", "item")),
        ("(given + given).item()", ("", "item")),
        ("given[0].tolist()", ("", "tolist")),
        ("print(given)", ("builtins", "print")),
        ("given.layers.forward(given)", ("", "forward")),
        ("given + given", None),
    ],
)
def test_the_call_of_a_c_function_is_read_from_the_source_line(source, expected, monkeypatch):
    given = Captured()

    def sleep(*_):
        given.seen = called(sys._getframe(1))

    sleep.__module__, sleep.__qualname__ = "time", "sleep"
    time_module, zlib_module = ModuleType("time"), ModuleType("zlib")
    time_module.sleep = zlib_module.decompress = sleep
    filename = f"<source of {source}>"
    text = f"def run(given):\n    return {source}\n"
    monkeypatch.setitem(linecache.cache, filename, (len(text), None, text.splitlines(True), filename))
    names = {"time": time_module, "zlib": zlib_module, "sleep": sleep, "__builtins__": {"print": given.look}}
    exec(compile(text, filename, "exec"), names)
    names["run"](given)
    assert given.seen == expected


PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def main(items, run):
    net = nn.Linear(4, 2)
    train_loader = DataLoader(
        items, batch_size=2
    )
    adam = torch.optim.SGD(net.parameters(), lr=0.1)
    run(net, adam, train_loader)
"""
FRAMEWORK = """
from torch import nn

def fit(net, optimizer, loader):
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

class Trainer:
    def fit(self, *parts):
        fit(*parts)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., None]:
    """A user's script that hands its loop to a framework installed below site-packages."""
    script, library = tmp_path / "train.py", tmp_path / "site-packages" / "lightning" / "trainer.py"
    library.parent.mkdir(parents=True)
    script.write_text(PROGRAM)
    library.write_text(FRAMEWORK)
    framework = run(FRAMEWORK, library, __name__="lightning.trainer")
    names = run(PROGRAM, script, __name__="train")
    return lambda items: names["main"](items, framework["Trainer"]().fit)


def test_a_framework_loop_is_told_at_the_lines_that_made_its_parts(
    recorded: Callable[..., Facts], program: Callable[..., None], items: Any, tmp_path: Path
) -> None:
    facts = recorded(lambda: program(items))
    (loader,) = facts.loaders
    script = tmp_path / "train.py"
    assert (loader.where, loader.built, loader.place) == ("", f"{script}:8", f"{script}:8")
    assert loader.call.startswith("DataLoader(\n        items, batch_size=2")
    assert loader.variable == "train_loader"
    assert loader.queue_workers is None
    assert facts.optimizer.where == f"{script}:11"
    assert facts.optimizer.call == "torch.optim.SGD(net.parameters(), lr=0.1)"
    assert facts.optimizer.variable == "adam"
    assert not [stack for stack in facts.stacks if stack.where.endswith(":12")], "the line only started the framework"


def test_a_call_is_found_by_its_line_with_the_name_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "parts.py"
    script.write_text("self.a = make(\n    1)\nuse(other.make(2), 1)\nb = c = make(3)\n")
    assert call_at(str(script), 1, ("make",)) == ("make(\n    1)", "self.a")
    assert call_at(str(script), 3, ("make",)) == ("other.make(2)", "")
    assert call_at(str(script), 4, ("make",)) == ("make(3)", "")
    assert call_at(str(script), 4, ("another",)) == ("", "")
    assert call_at(str(script), 9, ("make",)) == ("", "")
    assert call_at(str(tmp_path / "missing.py"), 1, ("make",)) == ("", "")


def test_the_workers_of_a_queue_are_told(
    recorded: Callable[..., Facts], items: Any, learn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miniature of TorchIO's queue: a data set with `num_workers` of its own, in the module of that name."""
    module = types.ModuleType("torchio.data.queue")

    class Queue(type(items)):  # type: ignore[misc]
        def __init__(self, num_workers: int = 0) -> None:
            super().__init__()
            self.num_workers = num_workers

    Queue.__module__, module.Queue = "torchio.data.queue", Queue  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchio", types.ModuleType("torchio"))
    monkeypatch.setitem(sys.modules, "torchio.data.queue", module)

    def program() -> None:
        patches = Queue(num_workers=3)
        for x, y in torch.utils.data.DataLoader(patches, batch_size=2):
            learn(x, y)

    (loader,) = recorded(program).loaders
    assert (loader.queue_workers, loader.dataset_variable) == (3, "patches")
    assert loader.dataset_call == "Queue(num_workers=3)"
