"""Environment variables that are set and slow training down here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from voxelocity.diagnosis.doctor.check import Check
from voxelocity.diagnosis.doctor.variables import VARIABLES, Around, Variable

_SECTION = "variables"


def judge_variables(environ: Mapping[str, str], around: Around) -> Iterator[Check]:
    """A line for each variable that hurts; a single line that says so if none does."""
    hurting = [
        variable
        for variable in VARIABLES
        if variable.name in environ
        and variable.hurts(environ[variable.name], around)
        and not _is_meant(variable, environ)
    ]
    if not hurting:
        yield Check(section=_SECTION, name="environment", level="ok", found="nothing set that slows training down")
    for variable in hurting:
        yield Check(
            section=_SECTION,
            name=variable.name,
            level=variable.level,
            found=f"={environ[variable.name]}",
            costs=variable.costs,
            cure=f"export {variable.name}={variable.cure}" if variable.cure else f"unset {variable.name}",
            source=variable.source,
        )


def _is_meant(variable: Variable, environ: Mapping[str, str]) -> bool:
    # torchrun sets one thread for each of the ranks that share a machine.
    return variable.name == "OMP_NUM_THREADS" and environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "1")
