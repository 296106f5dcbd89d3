"""Every trial of the crafted inputs in `tests/shared/crafted_kinds.py`, as a table of kinds and outcomes.

    python benchmarks/crafted_inputs.py [--kind WORDS] [--share 1.0]

Writes `benchmarks/results/crafted_inputs.json`. Status 1 if any outcome is wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

# Where pytest looks for what tests share, too.
sys.path.extend(map(str, [Path(__file__).parents[3] / "tests", *Path(__file__).parents[3].glob("packages/*/tests")]))

from harness import head, parser_of, write_record
from shared.crafted import OUTCOMES, RIGHT, table, try_kind
from shared.crafted_kinds import KINDS


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--kind", default="", help="only kinds whose names hold these words")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials of each kind")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            if options.kind not in kind.name:
                continue
            counts[kind.name], lines = try_kind(kind, Path(folder), max(1, round(options.share * kind.num_trials)))
            wrong += lines
            print(f"{kind.name}: {dict(counts[kind.name])}", flush=True)
    print(table(counts))
    print("\n".join(wrong))
    if not options.kind and options.share == 1.0:
        kinds = {name: {outcome: found[outcome] for outcome in OUTCOMES} for name, found in counts.items()}
        total = sum(counts.values(), Counter[str]())
        record = {"num_trials": total.total(), "outcomes": {name: total[name] for name in OUTCOMES}, "kinds": kinds}
        print(write_record({**head("crafted_inputs"), **record}, "crafted_inputs", out=options.out))
    sys.exit(any(outcome not in RIGHT for found in counts.values() for outcome in found))


if __name__ == "__main__":
    main()
