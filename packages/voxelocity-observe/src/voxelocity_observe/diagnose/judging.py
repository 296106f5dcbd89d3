"""From facts to a diagnosis: the findings in order, largest saving first, and the verdict in one sentence.

Pure: reads no files, queries no hardware, prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

from voxelocity_observe.core.command import signal_name, signal_number
from voxelocity_observe.core.quantities import count_text, duration_text
from voxelocity_observe.diagnose.accounting import (
    CHANGED_LOAD,
    COMPUTING,
    FEW_STEPS,
    RESIDENT,
    ceiling,
    counted_passes,
    data_room_s,
    experiment_s,
    has_loader,
    load_change,
    making_share,
    part_s,
    passes_s,
    resident_s,
    split,
    step_s,
    watched_s,
)
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.result import Diagnosis, Finding
from voxelocity_observe.diagnose.rules import RULES, Pool, Rule
from voxelocity_observe.diagnose.rules.seen import compute_s, num_cores, on_gpu
from voxelocity_observe.diagnose.rules.words import clause, percent

# A smaller saving is lost in the difference between two runs of one program, so it is not a cause.
CAUSE_SHARE = 0.03
_ESTIMATED = "it is estimated from the steps' parts"
# A cause that names the slow work goes before one that would save up to this many times as much by hiding it.
_NAMED_WORK_FACTOR = 1.5
# A gain that any program on such a device has counts as this much of one that mends this program.
_UPGRADE_FACTOR = 0.25
# The share of its pool's time that a cause of unknown cost counts as, so that it does not rank behind trifles.
_UNKNOWN_SHARE = 0.5
_UNKNOWN_POOLS: tuple[Pool, ...] = ("data", "machine", "memory")

# From this share on, waiting that no rule explains is reported, and the network is not said to be the limit.
_UNEXPLAINED_SHARE = 0.1
_PASS_SHARE = 0.01
# A network does the same in each step, so a step of this many medians and this share of the time was held up.
_STAND_STILL = 10.0
_STAND_STILL_SHARE = 0.2


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
    for rule, finding in sorted(found, key=lambda pair: _weight(pair[0], pair[1], pools), reverse=True):
        if finding.saves_s is None:
            ranked.append(finding)
            continue
        saves_s = max(0.0, min(finding.saves_s, left[rule.pool]))
        if finding.is_cause:
            left[rule.pool] -= saves_s
        ranked.append(_settled(finding, saves_s, least_s))
    notes = sorted((note for note in ranked if not note.is_cause), key=lambda note: -(note.saves_s or 0.0))
    return (*(cause for cause in ranked if cause.is_cause), *notes)


def _weight(rule: Rule, finding: Finding, pools: Mapping[Pool, float]) -> tuple[bool, bool, float]:
    """A sort key: causes before notes, the program's own before context, larger savings before smaller ones."""
    if finding.saves_s is None:
        seconds = _UNKNOWN_SHARE * pools[rule.pool] if rule.pool in _UNKNOWN_POOLS else 0.0
    else:
        factor = _NAMED_WORK_FACTOR if rule.names_work else _UPGRADE_FACTOR if rule.is_upgrade else 1.0
        seconds = finding.saves_s * factor
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
        notes = [experiment.note for experiment in facts.experiments if experiment.name == RESIDENT and experiment.note]
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
        missing.append("where in the code the time was spent: no stacks were sampled")
    if facts.counted and facts.files is not None and facts.files.num_opens and experiment_s(facts, "storage") is None:
        missing.append("how fast the storage reads the program's files")
    if facts.counted and facts.files is not None and facts.files.unseen:
        missing.append(f"files that libraries may have opened by themselves: {', '.join(facts.files.unseen)}")
    return tuple(dict.fromkeys(missing))


def verdict(facts: Facts, findings: Sequence[Finding], rules: Sequence[Rule]) -> str:
    """The sentence for these facts and their findings by these rules, causes first."""
    pools: dict[str, Pool] = {rule.code: rule.pool for rule in rules}
    context = {rule.code for rule in rules if rule.is_context}
    causes = [finding for finding in findings if finding.is_cause]
    if not facts.counted:
        return _without_steps(facts, causes, pools)
    if not causes:
        return f"{_no_cause(facts)}{_doubts(facts)}."
    # What other programs do is named after the program's own cause, or alone where there is none.
    own = [finding for finding in causes if finding.code not in context] or causes
    first = _named(facts, own, pools)
    beside = [
        finding for finding in causes if finding is not first and (finding is causes[0] or finding.code in context)
    ]
    machine = f"; the machine also slows it down: {clause(beside[0].title)}" if beside else ""
    if all(pools[finding.code] == "compute" and _is_small(facts, finding) for finding in own):
        return f"{_no_cause(facts)}; a little is left to gain: {clause(own[0].title)}{machine}{_doubts(facts)}."
    return f"{_beginning(facts, first, pools)}{machine}{_doubts(facts)}."


def _named(facts: Facts, causes: Sequence[Finding], pools: Mapping[str, Pool]) -> Finding:
    """The cause that the verdict names: the program's own before the machine's, unless it saves next to nothing."""
    of_program = [finding for finding in causes if pools[finding.code] != "machine" and not _is_small(facts, finding)]
    return of_program[0] if of_program and pools[causes[0].code] == "machine" else causes[0]


def _is_small(facts: Facts, cause: Finding) -> bool:
    return cause.saves_s is not None and cause.saves_s < _UNEXPLAINED_SHARE * watched_s(facts)


def _beginning(facts: Facts, cause: Finding, pools: Mapping[str, Pool]) -> str:
    """The share of the time that a cause concerns, and the cause."""
    whole_s = max(watched_s(facts), 1e-12)
    time = _time(facts)
    shares: dict[Pool, tuple[float, str]] = {
        "copy": (part_s(facts, "copy"), f"of {time} is spent on copying batches to the device"),
        "validation": (passes_s(facts, "validation"), "of the watched time is spent on validation"),
        "saving": (passes_s(facts, "saving"), "of the watched time is spent on saving"),
        "loop": (part_s(facts, "other"), f"of {time} is neither data nor network"),
    }
    pool, told = pools[cause.code], clause(cause.title)
    if pool == "memory":
        return f"This program runs out of memory if it trains for long enough: {told}"
    if pool == "data":
        return _of_data(facts, cause, told)
    if pool == "compute":
        computing = percent(compute_s(facts) / whole_s)
        return f"The network computes for {computing} of {time} and could do so faster: {told}"
    if pool in shares:
        seconds, words = shares[pool]
        return f"{percent(seconds / whole_s)} {words}: {told}"
    saved = "" if cause.saves_s is None else f"; fixing that would save {percent(cause.saves_s / whole_s)} of {time}"
    return f"The machine slows this program down: {told}{saved}"


def _of_data(facts: Facts, cause: Finding, told: str) -> str:
    whole_s = max(watched_s(facts), 1e-12)
    if not has_loader(facts):
        made = making_share(facts) * part_s(facts, "wait", "other")
        share = percent(max(made, cause.saves_s or 0.0) / whole_s)
        return f"The loop spends {share} of {_time(facts)} making its own data, while the network waits: {told}"
    wait, starts = part_s(facts, "wait"), passes_s(facts, "epoch start")
    if starts > wait:
        return f"{percent(starts / whole_s)} of the watched time passes before the first batch of an epoch: {told}"
    if wait < (cause.saves_s or 0.0) * 0.5:
        # Data made while the network runs, or in the loop, shows in parts other than waiting.
        saved = percent((cause.saves_s or 0.0) / whole_s)
        return f"{saved} of {_time(facts)} is spent on making the data: {told}"
    return f"The network spends {percent(wait / whole_s)} of {_time(facts)} waiting for data: {told}"


def _no_cause(facts: Facts) -> str:
    whole_s = max(watched_s(facts), 1e-12)
    wait, computing = part_s(facts, "wait") / whole_s, compute_s(facts) / whole_s
    if wait >= _UNEXPLAINED_SHARE:
        share = f"{percent(wait)} of {_time(facts)}"
        return f"The network spends {share} waiting for data, and the recording does not show why"
    device = "a faster GPU" if on_gpu(facts) else "a faster device"
    return (
        f"Nothing holds this program back: the network computes {percent(computing)} of the time; {device}, a smaller "
        "network or lower precision would help"
    )


def _time(facts: Facts) -> str:
    """What the shares are of: with hardly any validation, the watched time is the training time."""
    between = fsum(interval.seconds for interval in counted_passes(facts))
    return "the watched time" if between > _PASS_SHARE * watched_s(facts) else "the training time"


def _doubts(facts: Facts) -> str:
    """How the program ended and how little was seen, where the reader must know."""
    doubts = ""
    if len(facts.counted) < FEW_STEPS:
        doubts += f"; only {count_text(len(facts.counted), 'step')} could be counted, so repeat the diagnosis with more"
    doubts += _stand_still(facts)
    change = load_change(facts)
    if change is not None and not 1.0 / CHANGED_LOAD <= change <= CHANGED_LOAD:
        doubts += "; the machine's load changed during the measurement, so the gains are rough"
    ending = _ending(facts)
    return f"{doubts}; {ending}" if ending else doubts


def _stand_still(facts: Facts) -> str:
    """A step that computed for as long as many others, as if the program was stopped and resumed."""
    longest_s = max((fsum(step.parts.get(part, 0.0) for part in COMPUTING) for step in facts.counted), default=0.0)
    if longest_s < max(_STAND_STILL * (step_s(facts) or 0.0), _STAND_STILL_SHARE * watched_s(facts)):
        return ""
    return (
        f"; one step computed for {duration_text(longest_s)}, as if the program had been stopped meanwhile; this "
        "blurs all shares, so repeat the diagnosis"
    )


def _without_steps(facts: Facts, causes: Sequence[Finding], pools: Mapping[str, Pool]) -> str:
    """What can be said of a program in which no step was counted."""
    ending = _ending(facts)
    end = f"; {ending}" if ending else ""
    seen = len(facts.steps)
    if seen:
        return (
            f"Only {count_text(seen, 'step')} ran, too few to count after the first ones, which are slower: let the "
            f"program train for longer{end}."
        )
    validated_s = passes_s(facts, "validation")
    if validated_s > 0.0:
        about = [cause for cause in causes if pools[cause.code] == "validation"]
        why = f": {clause(about[0].title)}" if about else ""
        return f"No training step was seen; the network only predicted, for {duration_text(validated_s)}{why}{end}."
    if facts.main.versions and "torch" not in facts.main.versions:
        return f"This program never imported torch, so there is no training to analyze{end}."
    return f"No training step was seen in {duration_text(facts.seconds)}: no torch optimizer made a step{end}."


def _ending(facts: Facts) -> str:
    """How the program ended, if it did not end normally."""
    seconds = duration_text(facts.seconds)
    if facts.ended is not None and facts.ended.reason == "limit":
        # Everything asked for was seen; the watcher may have ended the program.
        return ""
    number = signal_number(facts.status or 0)
    if number:
        return f"the program was ended by {signal_name(number)} after {seconds}"
    if facts.status:
        return f"the program failed after {seconds} with status {facts.status}"
    if facts.ended is None and facts.status is None:
        return f"the program was killed or is still running after {seconds}"
    if facts.ended is not None and facts.ended.reason == "error":
        note = f": {facts.ended.note}" if facts.ended.note else ""
        return f"watching ended with an error after {duration_text(facts.ended.time_s)}{note}"
    return ""
