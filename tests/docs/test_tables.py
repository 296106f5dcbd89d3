"""What a table lists must also stand where it cannot be derived: in documents, extras and help texts."""

from pathlib import Path

import pytest
import typer.main

from voxelocity.infer.models.open import KINDS
from voxelocity.infer.runtimes.table import EXPORT_FORMATS, RUNTIMES
from voxelocity_observe.cli.main import app
from voxelocity_observe.core.place import LAUNCHERS
from voxelocity_observe.diagnose.doctor.probes import probe_packages
from voxelocity_observe.sinks import TRACKERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODELS = [kind.name for kind in KINDS]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("inference.md", RUNTIMES),
        ("inference.md", EXPORT_FORMATS),
        ("inference.md", MODELS),
        ("tracking.md", TRACKERS),
        ("scale.md", [launcher.name for launcher in LAUNCHERS]),
    ],
    ids=["runtimes", "export formats", "models", "trackers", "launchers"],
)
def test_a_page_names_each_entry(page, names):
    text = (DOCS / page).read_text()
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize(
    ("command", "parameter", "names"),
    [("predict", "runtime", RUNTIMES), ("predict", "model", MODELS), ("train", "log", TRACKERS)],
    ids=lambda value: value if isinstance(value, str) else "names",
)
def test_the_help_of_a_command_names_each_entry(command, parameter, names):
    (text,) = [
        option.help for option in typer.main.get_command(app).commands[command].params if option.name == parameter
    ]
    assert [name for name in names if name not in text] == []


def test_an_extra_installs_what_an_entry_needs():
    extras = probe_packages().wanted
    assert [name for name, tracker in TRACKERS.items() if tracker.package and name not in extras] == []
    packages = {requirement.name for requirements in extras.values() for requirement in requirements}
    assert [name for name, runtime in RUNTIMES.items() if runtime.packages and not packages & {*runtime.packages}] == []
