"""What a diagnosis rests on, as sections of tables that a terminal and a page show alike. Judges nothing."""

from voxelocity.diagnosis.render.evidence.sections import evidence_sections

__all__ = ["evidence_sections"]
