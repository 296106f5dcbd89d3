"""What a command did before its own work, for the timeline of `voxelocity monitor`."""

from __future__ import annotations


def start_up_is_over() -> None:
    """Records the time since the process began, imports included, as a phase."""
    from voxelocity_observe.core.clock import process_age_s, system_clock
    from voxelocity_observe.spans import report_ended_span

    age_s = process_age_s()
    report_ended_span("start-up", start_s=system_clock() - age_s, seconds=age_s, color="silver")
