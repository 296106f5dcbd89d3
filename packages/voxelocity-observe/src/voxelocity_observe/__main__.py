"""The start of the command line: handles Ctrl-C and an unsupported system before anything large is imported."""

from __future__ import annotations

import sys

from voxelocity_observe import unsupported_platform


def main() -> None:
    """Runs `voxelocity`, as installed and as `python -m voxelocity_observe`."""
    if why := unsupported_platform():
        sys.exit(f"voxelocity: {why}")
    # Imports nothing that takes time.
    from voxelocity_observe.cli import interrupt

    with interrupt.end_at_once():
        from voxelocity_observe.cli.main import main as run

        run()


if __name__ == "__main__":
    main()
