"""A diagnosis before a change, and what it becomes."""

import dataclasses

import pytest


@pytest.fixture
def before(example_diagnosis):
    return example_diagnosis("data-bound")


@pytest.fixture
def after(before, changed):
    """The same program with workers: it waits a fifth of what it did."""
    return changed(before, findings=before.findings[1:], wait=0.2, num_workers=2)


@pytest.fixture
def changed():
    """Makes the diagnosis of the same program when its steps wait so many times as long."""

    def make(diagnosis, *, findings, wait=1.0, num_workers=0, num_images=4, **environment):
        def shorter(step):
            parts = {**step.parts, "wait": step.parts["wait"] * wait}
            return dataclasses.replace(step, parts=parts, seconds=sum(parts.values()), num_images=num_images)

        loaders = [dataclasses.replace(one, num_workers=num_workers) for one in diagnosis.facts.loaders]
        facts = dataclasses.replace(
            diagnosis.facts,
            steps=[shorter(step) for step in diagnosis.facts.steps],
            loaders=loaders,
            environment={**diagnosis.facts.environment, **environment},
        )
        return dataclasses.replace(diagnosis, findings=findings, facts=facts)

    return make
