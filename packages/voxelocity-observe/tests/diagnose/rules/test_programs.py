"""Each rule against a small program with its fault, watched by the recorder; and which rules cannot be tried so."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from voxelocity_observe.diagnose.facts import HostFacts, read_facts
from voxelocity_observe.diagnose.judging import diagnose
from voxelocity_observe.diagnose.result import Diagnosis
from voxelocity_observe.diagnose.rules import RULES
from voxelocity_observe.diagnose.watching.attach import record_here

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program with one fault.

    Attributes:
        program: module and function below `programs`.
        is_cause: whether the fault holds the program back; otherwise it is worth knowing.
        num_cpus: that the rules are told of, as the recorder itself does not see the machine.
        host: what else the rules are told of the machine.
    """

    program: str
    is_cause: bool = True
    num_cpus: int = 4
    host: Mapping[str, float | str] = field(default_factory=dict)


# On one core no other worker could hide what these programs do, which is then what to change first.
TABLE = {
    "VX101": Planted(program="loading.own_thread"),
    "VX102": Planted(program="loading.no_loader"),
    "VX103": Planted(program="loading.too_few_workers"),
    "VX104": Planted(program="loading.too_many_workers", num_cpus=2),
    "VX105": Planted(program="loading.restarted_workers"),
    "VX106": Planted(program="loading.late_batches"),
    "VX107": Planted(program="loading.thread_loader"),
    "VX108": Planted(program="loading.more_work_than_cores", num_cpus=1),
    "VX111": Planted(program="loading.slow_collate", num_cpus=1),
    "VX112": Planted(program="loading.gunzip", num_cpus=1),
    "VX113": Planted(program="chains.repeated_work", num_cpus=1),
    "VX114": Planted(program="chains.dominant_random", num_cpus=1),
    "VX115": Planted(program="loading.large_batches", is_cause=False),
    "VX116": Planted(program="chains.read_again"),
    "VX117": Planted(program="chains.fixed_after_random", num_cpus=1),
    "VX118": Planted(program="chains.slow_replacement", num_cpus=1),
    "VX119": Planted(program="loading.needless_workers"),
    "VX122": Planted(program="loading.small_files", num_cpus=1),
    "VX204": Planted(program="networks.item_each_step", is_cause=False),
    "VX304": Planted(program="networks.float64"),
    "VX313": Planted(program="networks.contiguous", is_cause=False),
    "VX314": Planted(program="networks.sample_by_sample", is_cause=False),
    "VX321": Planted(program="networks.varying_shapes"),
    "VX322": Planted(program="networks.graph_breaks", is_cause=False),
    "VX331": Planted(program="networks.anomaly_detection"),
    "VX332": Planted(program="networks.deterministic"),
    "VX341": Planted(program="networks.filled_gradients", is_cause=False),
    "VX342": Planted(program="networks.looping_optimizer"),
    "VX351": Planted(program="networks.one_thread", num_cpus=8),
    "VX352": Planted(program="networks.many_threads", num_cpus=1, host={"num_machine_cpus": 4}),
    "VX361": Planted(program="networks.garbage"),
    "VX362": Planted(program="networks.logging_each_step"),
    "VX363": Planted(program="networks.busy_loop"),
    "VX364": Planted(program="networks.scores_each_step"),
    "VX401": Planted(program="validations.large_validation"),
    "VX402": Planted(program="validations.gradients_in_validation", is_cause=False),
    "VX404": Planted(program="validations.waiting_validation"),
    "VX405": Planted(program="validations.slow_metrics"),
    "VX406": Planted(program="validations.overlapping_windows"),
    "VX411": Planted(program="validations.frequent_saving"),
    "VX508": Planted(program="networks.growing_memory"),
}

# Planted in facts instead, in the tests beside this one.
FACTS_ONLY = {
    "VX109": "a run of `voxelocity train`, in tests/diagnosis/facts/test_own_run.py",
    "VX120": "needs items made twice, in an experiment",
    "VX121": "needs slow storage, measured by an experiment",
    **dict.fromkeys(("VX123", "VX124", "VX303", "VX501", "VX502", "VX503"), "rests on the machine, which is planted"),
    **dict.fromkeys(("VX201", "VX202", "VX203", "VX205", "VX206", "VX207", "VX208"), "needs a GPU"),
    **dict.fromkeys(("VX301", "VX302", "VX305", "VX311", "VX312", "VX403"), "needs a GPU"),
    **dict.fromkeys(("VX601", "VX602", "VX603", "VX604"), "needs two ranks"),
    "VX315": "needs two ranks, in tests/diagnosis/recorder/test_ranks.py",
    "VX504": "needs cores that other programs use, and a thread that waits for one",
    "VX353": "needs threads and workers on the same cores, with nobody else on them",
    **dict.fromkeys(("VX505", "VX506", "VX507"), "needs a GPU"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Waiting threads spin: beside other programs on the same cores these steps would take fifty times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"planted_{name}", PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watch(planted: Planted, folder: Path) -> Diagnosis:
    """The diagnosis of a program that runs in this process."""
    module, _, function = planted.program.partition(".")
    record, work = folder / "record", folder / "work"
    work.mkdir(parents=True)
    run = getattr(load(module), function)
    # Steps of some milliseconds need not settle on a machine with other work: they count from the fourth on.
    with record_here(record, warmup_seconds=0.0):
        run(work)
    assert not (record / "errors.txt").exists(), (record / "errors.txt").read_text()
    host = HostFacts(num_cpus=planted.num_cpus, **planted.host)
    return diagnose(replace(read_facts(record), host=host))


def test_every_rule_has_a_program_or_a_reason_why_not():
    assert set(TABLE) | set(FACTS_ONLY) == {rule.code for rule in RULES}
    assert not set(TABLE) & set(FACTS_ONLY)


@pytest.mark.nightly  # Where other programs take the cores meanwhile, clocks show them and not the fault.
@pytest.mark.parametrize("code", TABLE)
def test_a_program_with_a_planted_fault_is_found_out(code, tmp_path):
    diagnosis = watch(TABLE[code], tmp_path)
    found = {finding.code: finding for finding in diagnosis.findings}
    assert code in found, f"found {sorted(found)}; {diagnosis.verdict}"
    assert found[code].is_cause or not TABLE[code].is_cause, found[code]


@pytest.mark.nightly
def test_a_program_at_its_ceiling_has_no_cause(tmp_path):
    diagnosis = watch(Planted(program="networks.clean", num_cpus=2), tmp_path)
    assert not diagnosis.causes, diagnosis.causes
    assert diagnosis.verdict.startswith("Nothing holds this program back")
