"""The observer's command line where the engine and the lab are not installed."""

import importlib

import pytest
import typer
from typer.testing import CliRunner

from voxelocity_observe.cli import command, foreign_options


@pytest.fixture
def alone(monkeypatch):
    """The command line of the observer without the other distributions."""
    monkeypatch.setattr(command, "TABLES", ("voxelocity_observe.cli.commands",))
    app = typer.Typer(cls=foreign_options.HintingGroup, pretty_exceptions_enable=False)
    names = command.add_commands(app)

    def call(*arguments):
        return CliRunner().invoke(app, arguments)

    return names, call


def test_the_observer_alone_has_its_own_commands(alone):
    names, call = alone
    assert set(names) == {"doctor", "diagnose", "explain", "monitor"}
    assert "VX101" in call("explain").output


def test_a_command_of_another_distribution_says_what_to_install(alone):
    _, call = alone
    others = {"voxelocity": "voxelocity.cli.commands", "voxelocity[lab]": "voxelocity_lab.cli.commands"}
    wanted_by = {name: wanted for wanted, table in others.items() for name in names_in(table)}
    for name, wanted in wanted_by.items():
        done = call(name, "x")
        assert done.exit_code == 2
        assert f"pip install '{wanted}'" in " ".join(done.output.replace("│", " ").split())
    assert "pip install" not in call("no-such-command").output


def names_in(table):
    return {found.name for found in importlib.import_module(table).COMMANDS}


def test_a_run_is_diagnosed_only_where_the_engine_is_installed(alone, tmp_path, monkeypatch):
    _, call = alone
    (tmp_path / "run.yaml").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = call("diagnose", str(tmp_path))
    assert "pip install voxelocity" in str(done.exception)
