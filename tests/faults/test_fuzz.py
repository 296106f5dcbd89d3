"""Seeded mutations of everything that is read: accepted, or refused in words; any other exception is a failure."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import yaml

import voxelocity as package
from shared.crafted import ODD_VALUES, as_json, mutated_bytes, mutated_values
from voxelocity.cli.options import read_overrides
from voxelocity.data.decode import read_case
from voxelocity.infer import load_model
from voxelocity.planning import make_plan
from voxelocity.report import read_run
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.resume import SavedRun
from voxelocity_observe.core.errors import VoxelocityError

_LONGEST_REFUSAL = 3000


@pytest.fixture
def fuzz(trials):
    """Calls with each mutation; what is raised must be an error of ours with a short text."""

    def run(name, usual, mutate, call):
        numbers = random.Random(name)
        for number in range(trials.num(usual)):
            mutation = mutate(numbers)
            with trials.one(f"{name} {number}: {str(mutation)[-100:]!r}"):
                try:
                    call(mutation)
                except VoxelocityError as error:
                    refusal = str(error)
                else:
                    refusal = "accepted"
                assert 0 < len(refusal) < _LONGEST_REFUSAL, f"{len(refusal)} characters"

    return run


def test_descriptions_of_data_sets(fuzz, own_msd):
    path = own_msd / "dataset.json"
    values = json.loads(path.read_text())

    def call(content):
        path.write_bytes(content)
        cases = package.open(own_msd)
        make_plan(cases, device="cpu")

    fuzz("dataset.json", 60, lambda numbers: as_json(numbers, values), call)


def test_tables_of_data_sets(fuzz, own_msd):
    path = own_msd / "cases.csv"
    rows = [f"imagesTr/case_{n}.nii.gz,labelsTr/case_{n}.nii.gz,{n % 3}" for n in range(6)]
    content = "\n".join(["image,label,fold", *rows]).encode()

    def call(changed):
        path.write_bytes(changed)
        make_plan(package.open(path), device="cpu")

    fuzz("cases.csv", 60, lambda numbers: mutated_bytes(numbers, content), call)


def test_values_of_the_command_line(fuzz, tiny_msd, tiny_plan):
    cases = package.open(tiny_msd)
    plan = make_plan(cases, device="cpu", overrides=tiny_plan).plan.to_plain()

    def option(numbers):
        keys, holder = [], plan
        while isinstance(holder, dict) and holder:
            keys.append(numbers.choice(sorted(holder)))
            holder = holder[keys[-1]]
        value = json.dumps(numbers.choice((holder, *ODD_VALUES)))
        if numbers.random() < 0.5:
            value = mutated_bytes(numbers, value.encode()).decode(errors="replace")
        return f"{'.'.join(keys)}={value}"

    fuzz("--set", 120, option, lambda text: make_plan(cases, device="cpu", overrides=read_overrides(None, [text])))


def test_records_of_runs(fuzz, undisturbed, copy_of):
    run = copy_of(undisturbed.run)
    path = run / "run.yaml"
    values = yaml.safe_load(path.read_text())
    text = path.read_bytes()

    def mutate(numbers):
        if numbers.random() < 0.5:
            return mutated_bytes(numbers, text)
        return yaml.safe_dump(mutated_values(numbers, values)).encode()

    def call(content):
        path.write_bytes(content)
        try:
            SavedRun.read(path)
        finally:
            read_run(run)

    fuzz("run.yaml", 80, mutate, call)


@pytest.mark.parametrize("name", ["events.jsonl", "scores.json"])
def test_facts_of_runs(fuzz, undisturbed, damaged, voxelocity, copy_of, name):
    run = copy_of(undisturbed.run)
    lines = (run / name).read_bytes()
    whole = [json.loads(line) for line in lines.splitlines()] if name == "events.jsonl" else json.loads(lines)

    def mutate(numbers):
        if numbers.random() < 0.3:
            return mutated_bytes(numbers, lines)
        changed = mutated_values(numbers, whole)
        if name == "events.jsonl" and isinstance(changed, list):
            return b"\n".join(json.dumps(event).encode() for event in changed) + b"\n"
        return json.dumps(changed).encode()

    def call(content):
        (run / name).write_bytes(content)
        ended = voxelocity("report", run)
        assert ended.status == 0 or ended.err.startswith("voxelocity: "), ended.err

    fuzz(name, 40, mutate, call)


def test_descriptions_of_models(fuzz, undisturbed, copy_of):
    run = copy_of(undisturbed.run)
    values = json.loads((run / "model.json").read_text())

    def call(content):
        (run / "model.json").write_bytes(content)
        load_model(run)

    fuzz("model.json", 80, lambda numbers: as_json(numbers, values), call)


def test_weights(fuzz, undisturbed, copy_of):
    run = copy_of(undisturbed.run)
    content = (run / "model.safetensors").read_bytes()

    def call(changed):
        (run / "model.safetensors").write_bytes(changed)
        load_model(run)
        assert changed == content, "other weights were loaded without a word"

    fuzz("model.safetensors", 80, lambda numbers: mutated_bytes(numbers, content[:600]) + content[600:], call)


def test_checkpoints(fuzz, tmp_path):
    import torch

    like = {"loop": {"step": 0, "best": 0.0}, "network": {"a": torch.zeros(50), "b": torch.zeros(3, 4)}, "moments": {}}
    state = {**like, "loop": {"step": 7, "best": 0.5}, "network": {"a": torch.arange(50.0), "b": torch.ones(3, 4)}}
    checkpoints = Checkpoints(tmp_path, keep=2)
    path = checkpoints.save(7, state)
    content = path.read_bytes()

    def call(changed):
        path.write_bytes(changed)
        found = checkpoints.load_latest(like=like)
        loaded = found[0]
        assert loaded["loop"] == state["loop"], "another state was loaded without a word"
        assert all(torch.equal(loaded["network"][name], state["network"][name]) for name in ("a", "b"))

    fuzz("checkpoint", 200, lambda numbers: mutated_bytes(numbers, content), call)


@pytest.mark.parametrize("part", ["image", "label"])
@pytest.mark.parametrize("where", ["header", "anywhere", "compressed"])
def test_scans(fuzz, own_msd, part, where):
    cases = package.open(own_msd)
    ref = cases.refs[0]
    path = ref.images[0] if part == "image" else ref.label
    packed = path.read_bytes()
    content = gzip.decompress(packed)

    def mutate(numbers):
        if where == "compressed":
            return mutated_bytes(numbers, packed)
        changed = (
            mutated_bytes(numbers, content[:352]) + content[352:]
            if where == "header"
            else mutated_bytes(numbers, content)
        )
        return gzip.compress(changed, 1, mtime=0)

    def call(changed):
        path.write_bytes(changed)
        read_case(ref, label_values=cases.label_values)

    fuzz(f"{part} {where}", 60, mutate, call)
