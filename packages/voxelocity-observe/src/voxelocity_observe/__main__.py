"""The start of the command line: handles Ctrl-C and an unsupported system before anything large is imported."""

from __future__ import annotations

import os
import sys

from voxelocity_observe import unsupported_platform


def main() -> None:
    """Runs `voxelocity`, as installed and as `python -m voxelocity_observe`."""
    _open_closed_streams()
    if why := unsupported_platform():
        sys.exit(f"voxelocity: {why}")
    # Imports nothing that takes time.
    from voxelocity_observe.cli import interrupt

    with interrupt.end_at_once():
        from voxelocity_observe.cli.main import main as run

        run()


def _open_closed_streams() -> None:
    """Gives the null device to each standard stream that is closed.

    Otherwise the next file that is opened takes its number, so that what libraries print ends up in that file, and
    programs that are started from here cannot print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


if __name__ == "__main__":
    main()
