import pytest

from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import process_rank
from voxelocity_observe.core.place import LAUNCHERS, Place, concerns_one_rank, launcher_job, read_place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-07,11]-ib,login1",
    "SLURM_JOB_ID": "70123",
    "SLURM_STEP_ID": "1",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        # The script of a job, whatever its number of tasks.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
    ],
)
def test_one_process_is_alone_whatever_started_it(variables):
    assert read_place(variables) == Place()
    assert read_place(variables).is_alone


def test_torchrun_says_which_rank_this_is():
    assert read_place(TORCHRUN) == Place(rank=3, size=4, local_rank=1, local_size=2, launcher="torchrun")


@pytest.mark.parametrize(("address", "local_size"), [("127.0.0.1", 4), ("node7", 2)])
def test_a_launcher_that_does_not_count_the_ranks_of_a_machine_has_at_least_those_up_to_this_one(address, local_size):
    ignite = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": address}
    assert read_place(ignite).local_size == local_size


def test_srun_says_which_task_this_is_and_where_the_first_one_is():
    wanted = Place(
        rank=2, size=5, local_rank=0, local_size=2, launcher="srun", address=("gpu03-ib", 20_000 + 70_124 % 20_000)
    )
    assert read_place(SRUN) == wanted
    assert read_place({**SRUN, "SLURM_PROCID": "4", "SLURM_NODEID": "2"}).local_size == 1


@pytest.mark.parametrize(
    ("nodes", "host"), [("node7", "node7"), ("a[1,3]", "a1"), ("a1,b2", "a1"), ("rack1-n[08-09]", "rack1-n08")]
)
def test_the_first_node_of_a_step_is_read_from_slurms_short_form(nodes, host):
    assert read_place({**SRUN, "SLURM_STEP_NODELIST": nodes}).address[0] == host


def test_ranks_that_mpirun_started_on_one_machine_meet_there():
    place = read_place(MPIRUN)
    assert (place.rank, place.size, place.launcher) == (1, 2, "mpirun")
    assert place.address[0] == "127.0.0.1"
    assert place.address[1] >= 20_000


def test_mpirun_on_several_machines_needs_the_address_of_the_first():
    several = {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(ConfigError, match=r"-x MASTER_ADDR=HOST -x MASTER_PORT=29500"):
        read_place(several)
    assert read_place({**several, "MASTER_ADDR": "first"}).size == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "4"}, r"torchrun contradict each other: RANK=4 of WORLD_SIZE=4"),
        ({"RANK": "first"}, r"RANK is 'first', not a whole number"),
        ({"LOCAL_RANK": "2"}, r"LOCAL_RANK=2 of 2 on this machine; unset them"),
    ],
)
def test_impossible_variables_are_refused_by_name(changed, words):
    with pytest.raises(ConfigError, match=words):
        read_place({**TORCHRUN, **changed})


def test_a_launcher_says_how_often_it_started_the_program_again():
    assert read_place({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}).num_restarts == 2
    assert read_place({**SRUN, "SLURM_RESTART_COUNT": "1"}).num_restarts == 1
    assert read_place({"SLURM_RESTART_COUNT": "1"}) == Place(num_restarts=1)


def test_a_job_keeps_its_name_when_its_launcher_is_started_again():
    assert launcher_job({}) == ""
    assert launcher_job({"TORCHELASTIC_RUN_ID": "a"}) == "a"
    assert launcher_job({"TORCHELASTIC_RUN_ID": "a", "SLURM_JOB_ID": "7"}) == "7"


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.rank)
def test_what_a_launcher_says_of_a_rank_is_known_everywhere(launcher):
    names = (launcher.rank, launcher.size, launcher.local_rank, launcher.local_size)
    variables = {name: str(number) for name, number in zip(names, (1, 2, 1, 2), strict=True) if name}
    place = read_place({**variables, "SLURM_STEP_TASKS_PER_NODE": "2"})
    assert (place.rank, place.size, place.local_size, place.launcher) == (1, 2, 2, launcher.name)
    assert process_rank(environ=variables) == 1
    # A command that a rank starts is not a rank itself.
    assert all(map(concerns_one_rank, variables))
    assert not concerns_one_rank("SLURM_JOB_ID")
