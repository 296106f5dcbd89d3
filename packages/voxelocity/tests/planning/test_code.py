"""Code that the file of a run names."""

import pytest

import voxelocity as vx
from voxelocity.planning import check_code
from voxelocity_observe.core.errors import ConfigError

OWN = "voxelocity.data.augment.color:ColorAndStain"


@pytest.fixture
def plan(tiny_msd, tiny_plan, tmp_path):
    cases = vx.open(tiny_msd)
    return lambda overrides: vx.plan(cases, overrides={**tiny_plan, **overrides}, cache_folder=tmp_path)


@pytest.fixture
def naming(plan):
    """A plan whose file names this effect."""

    def make(factory):
        return plan(overrides={"data.augment.effects": [{"factory": factory}]}).plan

    return make


@pytest.mark.parametrize(
    "overrides",
    [
        {"planner.allowed_code": ["subprocess:Popen"]},
        {"planner.allowed_code": "subprocess:Popen"},
        {"planner": {"allowed_code": ["a:b", "subprocess:Popen"]}},
        {"data.augment.effects": [{"factory": "subprocess:Popen"}]},
        {"data": {"augment": {"effects": [{"factory": "subprocess:Popen"}]}}},
    ],
)
def test_code_that_the_command_names_may_run(naming, overrides):
    check_code(naming("subprocess:Popen"), overrides, where="run.yaml")


@pytest.mark.parametrize(
    "overrides",
    [{}, {"planner.allowed_code": ["subprocess:run"]}, {"data.augment.effects": 3}, {"data.augment.effects": [3]}],
)
def test_other_code_may_not(naming, overrides):
    with pytest.raises(ConfigError, match=r"run\.yaml names code: subprocess:Popen"):
        check_code(naming("subprocess:Popen"), overrides, where="run.yaml")


def test_what_the_file_itself_allows_does_not_count(plan):
    keys = {"data.augment.effects": [{"factory": "subprocess:Popen"}], "planner.allowed_code": ["subprocess:Popen"]}
    with pytest.raises(ConfigError, match="subprocess:Popen"):
        check_code(plan(overrides=keys).plan, {}, where="run.yaml")


def test_our_own_effects_need_no_permission_and_our_other_functions_do(naming):
    check_code(naming(OWN), {}, where="run.yaml")
    with pytest.raises(ConfigError, match="write_whole"):
        check_code(naming("voxelocity_observe.core.whole_file:write_whole"), {}, where="run.yaml")
