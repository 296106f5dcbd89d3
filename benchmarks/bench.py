"""One scenario of `voxelocity bench`, its record kept with the others in `benchmarks/results/`.

    python benchmarks/bench.py transforms

The same as `voxelocity bench transforms -o benchmarks/results`; `--quick` and the other options are passed on.
"""

from __future__ import annotations

import sys

from harness import RESULTS
from voxelocity.cli.main import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_kept = any(argument in ("-o", "--out", "--quick") for argument in arguments)
    sys.argv = ["voxelocity", "bench", *arguments, *([] if is_kept else ["-o", str(RESULTS)])]
    main()
