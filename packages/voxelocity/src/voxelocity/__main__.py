"""`python -m voxelocity`: the same command line as `voxelocity`."""

from __future__ import annotations

from voxelocity_observe.__main__ import main

if __name__ == "__main__":
    main()
