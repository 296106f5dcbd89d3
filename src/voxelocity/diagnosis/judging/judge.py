"""From facts to a diagnosis: the split, the ceiling, the findings (largest saving first) and the verdict.

Pure: reads no files, queries no hardware, prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from voxelocity.core.quantities import duration_text
from voxelocity.diagnosis.accounting.split import ceiling, split
from voxelocity.diagnosis.accounting.watched import (
    CHANGED_LOAD,
    RESIDENT,
    data_room_s,
    experiment_s,
    load_change,
    part_s,
    passes_s,
    resident_s,
    watched_s,
)
from voxelocity.diagnosis.facts import Facts
from voxelocity.diagnosis.judging.verdict import verdict
from voxelocity.diagnosis.result import Diagnosis, Finding
from voxelocity.diagnosis.rules import RULES, Pool, Rule
from voxelocity.diagnosis.rules.seen import compute_s, num_cores, on_gpu

# A smaller saving is lost in the difference between two runs of one program, so it is not a cause.
CAUSE_SHARE = 0.03
_ESTIMATED = "it is estimated from the steps' parts"
# A cause that names the slow work goes before one that would save up to this many times as much by hiding it.
_NAMED_WORK_FACTOR = 1.5
# The share of its pool's time that a cause of unknown cost counts as, so that it does not rank behind trifles.
_UNKNOWN_SHARE = 0.5
_UNKNOWN_POOLS: tuple[Pool, ...] = ("data", "machine", "memory")


def diagnose(facts: Facts, *, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """What holds the program back, why, and what to change.

    Findings that save from the same part of the time never promise more in total than that part holds: each takes from
    what those above it leave. Those that would save less than `CAUSE_SHARE` of the watched time are not causes.
    """
    found = [(rule, finding) for rule in rules for finding in rule(facts)]
    findings = _ranked(facts, found)
    return Diagnosis(
        verdict=verdict(facts, findings, rules),
        split=split(facts),
        ceiling=ceiling(facts),
        findings=findings,
        not_measured=_not_measured(facts),
        own_share=_own_share(facts),
        facts=facts,
    )


def _own_share(facts: Facts) -> float | None:
    """The share of the watched time that watching took: of the training's thread, and of all cores in workers."""
    if facts.cost is None or not facts.cost.of_s > 0.0:
        return None
    share = facts.cost.seconds / facts.cost.of_s
    since_s = facts.seconds - facts.steps[0].start_s if facts.steps else 0.0
    return share + (facts.workers_cost_s / (since_s * num_cores(facts)) if since_s > 0.0 else 0.0)


def _pools(facts: Facts) -> dict[Pool, float]:
    """Seconds that findings of one pool can save together."""
    return {
        "data": data_room_s(facts) + passes_s(facts, "epoch start"),
        "copy": part_s(facts, "copy"),
        "compute": compute_s(facts) + (part_s(facts, "other") if on_gpu(facts) else 0.0),
        "loop": part_s(facts, "other") + part_s(facts, "forward", "backward", "optimizer"),
        "validation": passes_s(facts, "validation"),
        "saving": passes_s(facts, "saving"),
        "machine": watched_s(facts),
        # A program that runs out of memory loses all of its time.
        "memory": watched_s(facts),
    }


def _ranked(facts: Facts, found: Sequence[tuple[Rule, Finding]]) -> Sequence[Finding]:
    """Causes first: the program's own before what other programs do, largest saving first. Then the rest."""
    left = _pools(facts)
    least_s = CAUSE_SHARE * watched_s(facts)
    ranked = []
    pools = dict(left)
    for rule, finding in sorted(found, key=lambda one: _weight(one[0], one[1], pools), reverse=True):
        if finding.saves_s is None:
            ranked.append(finding)
            continue
        saves_s = max(0.0, min(finding.saves_s, left[rule.pool]))
        if finding.is_cause:
            left[rule.pool] -= saves_s
        ranked.append(_settled(finding, saves_s, least_s))
    notes = sorted((one for one in ranked if not one.is_cause), key=lambda one: -(one.saves_s or 0.0))
    return (*(one for one in ranked if one.is_cause), *notes)


def _weight(rule: Rule, finding: Finding, pools: Mapping[Pool, float]) -> tuple[bool, bool, float]:
    """A sort key: causes before notes, the program's own before context, larger savings before smaller ones."""
    if finding.saves_s is None:
        seconds = _UNKNOWN_SHARE * pools[rule.pool] if rule.pool in _UNKNOWN_POOLS else 0.0
    else:
        seconds = finding.saves_s * (_NAMED_WORK_FACTOR if rule.names_work else 1.0)
    return finding.is_cause, not rule.is_context, seconds


def _settled(finding: Finding, saves_s: float, least_s: float) -> Finding:
    """The finding, limited to what is left for it to save."""
    assert finding.saves_s is not None
    evidence = tuple(finding.evidence)
    if saves_s < 0.99 * finding.saves_s and finding.is_cause:
        evidence += (
            f"alone it would save {duration_text(finding.saves_s)}; the causes listed above leave "
            f"{duration_text(saves_s)} of that",
        )
    is_cause = finding.is_cause and saves_s >= least_s and saves_s > 0.0
    return replace(finding, saves_s=saves_s, evidence=evidence, is_cause=is_cause)


def _not_measured(facts: Facts) -> Sequence[str]:
    """What the recording reports as missing, and what a reader would otherwise take for measured."""
    missing = list(facts.not_measured)
    places = [place for place, text in enumerate(missing) if text.startswith("the ceiling:")]
    if facts.counted and places:
        missing[places[0]] += f"; {_ESTIMATED}"
    elif facts.counted and resident_s(facts) is None:
        notes = [one.note for one in facts.experiments if one.name == RESIDENT and one.note]
        is_told = any(notes[0] in text for text in missing) if notes else False
        why = f" ({notes[0]})" if notes and not is_told else ""
        missing.append(f"the ceiling{why}: {_ESTIMATED}")
    change = load_change(facts)
    if change is not None and not 1.0 / CHANGED_LOAD <= change <= CHANGED_LOAD:
        missing.append(
            f"a constant load on the machine: an unchanged step took {change:.1f} times as long during the "
            "experiments as before; the ceiling and the gains are scaled to the load of the counted steps and are rough"
        )
    if facts.counted and facts.host is None:
        missing.append("the machine while the program ran: cores, memory, other programs")
    if facts.counted and not facts.stacks:
        missing.append("which lines the time went to: no stacks were taken")
    if facts.counted and facts.files is not None and facts.files.num_opens and experiment_s(facts, "storage") is None:
        missing.append("how fast the storage reads the program's files")
    return tuple(dict.fromkeys(missing))
