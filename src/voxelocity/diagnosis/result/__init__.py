"""What a diagnosis comes to: findings and the whole of it, as plain records and as a file."""

from voxelocity.diagnosis.result.diagnosis import Ceiling, Diagnosis, Share
from voxelocity.diagnosis.result.finding import Basis, Finding, Risk

__all__ = ["Basis", "Ceiling", "Diagnosis", "Finding", "Risk", "Share"]
