"""Page and picture of a record, in the record's folder."""

from __future__ import annotations

from pathlib import Path

from voxelocity.monitoring.drawn.page import render_monitor_page
from voxelocity.monitoring.drawn.picture import render_monitor_png
from voxelocity.monitoring.files import PAGE, PICTURE, read_monitor
from voxelocity.monitoring.record import MonitorRecord


def draw_record(record: MonitorRecord, folder: Path) -> Path:
    """The page in the folder, with the picture next to it.

    Raises:
        OutputError: one of them cannot be written.
    """
    render_monitor_png(record, folder / PICTURE)
    return render_monitor_page(record, folder / PAGE)


def draw_again(folder: Path, page: Path | None = None) -> Path:
    """The page of the record in a folder; if `page` is not given, in the folder, with the picture.

    Raises:
        InputError: the folder holds no record.
        OutputError: page or picture cannot be written.
    """
    record = read_monitor(folder)
    return draw_record(record, folder) if page is None else render_monitor_page(record, page)
