"""Each rule against a small program with its fault, watched by the recorder; and which rules cannot be tried so."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from voxelocity.diagnosis.facts import HostFacts
from voxelocity.diagnosis.judge import diagnose
from voxelocity.diagnosis.rules import RULES

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program with one fault.

    Attributes:
        program: module and function below `programs`.
        is_cause: whether the fault holds the program back; otherwise it is worth knowing.
        num_cpus: that the rules are told of, as the recorder itself does not see the machine.
    """

    program: str
    is_cause: bool = True
    num_cpus: int = 4


TABLE = {
    "VX101": Planted(program="loading.own_thread"),
    "VX102": Planted(program="loading.no_loader"),
    "VX103": Planted(program="loading.too_few_workers"),
    "VX104": Planted(program="loading.too_many_workers", num_cpus=2),
    "VX105": Planted(program="loading.restarted_workers"),
    "VX106": Planted(program="loading.late_batches"),
    "VX107": Planted(program="loading.thread_loader"),
    "VX111": Planted(program="loading.slow_collate"),
    "VX112": Planted(program="chains.gunzip"),
    "VX113": Planted(program="chains.repeated_work"),
    "VX114": Planted(program="chains.dominant_random"),
    "VX115": Planted(program="loading.large_batches", is_cause=False),
    "VX122": Planted(program="loading.small_files"),
    "VX204": Planted(program="networks.item_each_step", is_cause=False),
    "VX304": Planted(program="networks.float64"),
    "VX313": Planted(program="networks.contiguous", is_cause=False),
    "VX331": Planted(program="networks.anomaly_detection"),
    "VX332": Planted(program="networks.deterministic"),
    "VX341": Planted(program="networks.filled_gradients", is_cause=False),
    "VX342": Planted(program="networks.looping_optimizer"),
    "VX351": Planted(program="networks.one_thread", num_cpus=8),
    "VX361": Planted(program="networks.garbage"),
    "VX362": Planted(program="networks.logging_each_step"),
    "VX363": Planted(program="networks.busy_loop"),
    "VX401": Planted(program="validations.large_validation"),
    "VX402": Planted(program="validations.gradients_in_validation", is_cause=False),
    "VX404": Planted(program="validations.waiting_validation"),
    "VX405": Planted(program="validations.slow_metrics"),
    "VX411": Planted(program="validations.frequent_saving"),
}

# Planted in facts instead, in the tests beside this one.
FACTS_ONLY = {
    "VX108": "needs cores that are all busy",
    "VX109": "a run of `voxelocity train`, in tests/diagnosis/test_own_run.py",
    "VX121": "needs slow storage",
    "VX123": "needs a /dev/shm that is full",
    "VX124": "needs a network file system",
    **dict.fromkeys(("VX201", "VX202", "VX203", "VX205", "VX206", "VX207", "VX208"), "needs a GPU"),
    **dict.fromkeys(("VX301", "VX302", "VX305", "VX311", "VX312", "VX403"), "needs a GPU"),
    "VX303": "needs a CPU with bfloat16 units",
    "VX321": "torch.compile takes longer than all other programs together",
    "VX322": "torch.compile takes longer than all other programs together",
    "VX352": "needs a container with fewer cores than its machine",
    "VX353": "needs threads and workers on the same cores, with nobody else on them",
    **dict.fromkeys((f"VX50{number}" for number in range(1, 8)), "needs a machine in trouble"),
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
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watch(program: str, folder: Path, *, num_cpus: int):
    """The diagnosis of a program that runs in this process."""
    attach = pytest.importorskip("voxelocity.diagnosis.attach", reason="recorder not there")
    read = pytest.importorskip("voxelocity.diagnosis.facts.read", reason="recorder not there")
    module, _, function = program.partition(".")
    record, work = folder / "record", folder / "work"
    work.mkdir()
    run = getattr(load(module), function)
    with attach.record_here(record):
        run(work)
    return diagnose(replace(read.read_facts(record), host=HostFacts(num_cpus=num_cpus)))


def test_every_rule_has_a_program_or_a_reason_why_not():
    assert set(TABLE) | set(FACTS_ONLY) == {rule.code for rule in RULES}
    assert not set(TABLE) & set(FACTS_ONLY)


@pytest.mark.parametrize("code", sorted({rule.code for rule in RULES}))
def test_every_rule_is_planted_in_facts(code):
    others = [path.read_text() for path in HERE.glob("test_*.py") if path != Path(__file__)]
    assert any(re.search(rf'"{code}"', text) for text in others)


@pytest.mark.parametrize("code", TABLE)
def test_a_program_with_a_planted_fault_is_found_out(code, tmp_path):
    planted = TABLE[code]
    diagnosis = watch(planted.program, tmp_path, num_cpus=planted.num_cpus)
    found = {finding.code: finding for finding in diagnosis.findings}
    assert code in found, f"found {sorted(found)}; {diagnosis.verdict}"
    assert found[code].is_cause or not planted.is_cause, found[code]


def test_a_program_at_its_ceiling_has_no_cause(tmp_path):
    diagnosis = watch("networks.clean", tmp_path, num_cpus=2)
    assert not diagnosis.causes, diagnosis.causes
    assert diagnosis.verdict.startswith("Nothing holds this program back")


@pytest.mark.skipif(
    importlib.util.find_spec("voxelocity.diagnosis.attach") is not None, reason="each is run by the recorder above"
)
@pytest.mark.parametrize("program", sorted({planted.program for planted in TABLE.values()} | {"networks.clean"}))
def test_the_programs_themselves_run(program, tmp_path):
    """A fault in a planted program must not look like a fault of the recorder."""
    module, _, function = program.partition(".")
    getattr(load(module), function)(tmp_path)
