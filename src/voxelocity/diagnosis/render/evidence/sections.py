"""All sections of evidence, in the order in which questions come up."""

from __future__ import annotations

from voxelocity.diagnosis.render.evidence.data import files_section, loaders_section, transforms_section
from voxelocity.diagnosis.render.evidence.machine import environment_section, host_section
from voxelocity.diagnosis.render.evidence.profile import profile_section
from voxelocity.diagnosis.render.evidence.program import (
    calls_section,
    experiments_section,
    settings_section,
    stacks_section,
)
from voxelocity.diagnosis.render.evidence.steps import passes_section, steps_section
from voxelocity.diagnosis.result import Diagnosis
from voxelocity.report.document import Section

_MAKERS = (
    steps_section,
    passes_section,
    experiments_section,
    loaders_section,
    transforms_section,
    stacks_section,
    files_section,
    calls_section,
    profile_section,
    settings_section,
    host_section,
    environment_section,
)


def evidence_sections(diagnosis: Diagnosis) -> list[Section]:
    """The sections that have anything to show."""
    sections = (make(diagnosis.facts) for make in _MAKERS)
    return [section for section in sections if section is not None]
