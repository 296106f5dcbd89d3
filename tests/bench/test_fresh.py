import pytest

from voxelocity.bench.fresh import python_says
from voxelocity.core.errors import VoxelocityError


def test_a_program_that_fails_is_told_with_its_last_lines():
    with pytest.raises(VoxelocityError, match=r"bench: '-c .*' ended with status 3:\nwhy$"):
        python_says("-c", "import sys; print('why', file=sys.stderr); sys.exit(3)")


def test_variables_are_added_to_those_of_this_process(monkeypatch):
    monkeypatch.setenv("OURS", "1")
    code = "import os; print(os.environ['OURS'], os.environ['GIVEN'])"
    assert python_says("-c", code, environ={"GIVEN": "2"}).split() == ["1", "2"]


def test_a_fresh_python_finds_this_package():
    assert python_says("-c", "import voxelocity; print(voxelocity.__version__)").strip() == "0.1.0"
