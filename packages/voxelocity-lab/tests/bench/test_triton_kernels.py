"""`benchmarks/triton_kernels.py`: every kernel compiled ahead, and the committed table of what they take."""

import ast
import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton_kernels
import voxelocity
from harness import RESULTS

SOURCES = Path(voxelocity.__file__).parent
KERNELS = {name for family in triton_kernels.FAMILIES.values() for name in triton_kernels.kernels_of(family)}


def test_every_kernel_of_the_package_is_compiled_ahead():
    defined = {
        function.name
        for path in SOURCES.rglob("*.py")
        if "triton.jit" in (text := path.read_text())
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)
        and not function.name.startswith("_")
    }
    assert defined == KERNELS == {variant.kernel for variant in triton_kernels.variants()}


def test_no_two_rows_are_of_one_form():
    forms = [(variant.kernel, variant.form) for variant in triton_kernels.variants()]
    assert len(forms) == len(set(forms))


@pytest.mark.slow
def test_the_largest_form_of_each_kernel_compiles_without_spills():
    for variant in {variant.kernel: variant for variant in triton_kernels.variants()}.values():
        check(triton_kernels.compiled(variant, 90))


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", triton_kernels.ARCHITECTURES)
def test_every_form_of_each_kernel_compiles_without_spills(architecture):
    for variant in triton_kernels.variants():
        check(triton_kernels.compiled(variant, architecture))


def check(row):
    assert row["spill_store_bytes"] == row["spill_load_bytes"] == 0, row
    assert 0 < row["registers"] <= 255, row
    assert row["machine_code_bytes"] > 0, row


def test_the_committed_table_has_every_form_for_every_architecture_and_no_spills():
    record = json.loads((RESULTS / "triton_kernels.json").read_text())
    assert record["architectures"] == [f"sm_{number}" for number in triton_kernels.ARCHITECTURES]
    rows = record["kernels"]
    forms = [(variant.kernel, variant.form) for variant in triton_kernels.variants()]
    assert [(row["kernel"], row["form"]) for row in rows] == forms, "run python benchmarks/triton_kernels.py again"
    assert all(row["spill_store_bytes"] == row["spill_load_bytes"] == 0 for row in rows)


def test_figures_that_agree_on_all_architectures_are_given_once():
    same = {"kernel": "a", "form": "b", "accesses": {"load16": 2}, "shared_bytes": 0, "machine_code_bytes": 9}
    spills = {"spill_store_bytes": 0, "spill_load_bytes": 0}
    row = triton_kernels.in_one_row([{**same, **spills, "registers": number} for number in (56, 64)])
    assert row == {**same, **spills, "registers": "56 64"}


def test_accesses_are_counted_by_their_bytes():
    ptx = "ld.global.v4.b32 {..};\n ld.global.L1::evict_last.v2.b64 {..};\n st.global.b8 [..];\n ld.shared.b32 a;"
    assert triton_kernels.accesses(ptx) == {"load16": 2, "store1": 1}
