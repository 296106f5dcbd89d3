"""The result of a diagnosis: findings and everything else, as plain records and as a file."""

from voxelocity.diagnosis.result.diagnosis import Ceiling, Diagnosis
from voxelocity.diagnosis.result.finding import Basis, Finding, Risk

__all__ = ["Basis", "Ceiling", "Diagnosis", "Finding", "Risk"]
