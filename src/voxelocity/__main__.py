"""`python -m voxelocity` is the command line."""

from voxelocity.cli.main import main

main()
