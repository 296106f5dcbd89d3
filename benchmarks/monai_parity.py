"""Every lowered transform against MONAI's own: writes benchmarks/results/monai_parity.json, from which tables.py makes
the table of docs/monai.md.

python benchmarks/monai_parity.py [--draws N] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from voxelocity.interop.monai.parity_table import cases, row_of
from voxelocity.observe import environment

OUT = Path(__file__).parent / "results" / "monai_parity.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--only", default="", help="transforms whose name contains this; nothing is written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in workers; waiting of torch's own threads for each other counts as CPU time too
    rows = []
    for case, lowering in cases():
        if arguments.only not in case.transform.__name__:
            continue
        row = row_of(case, lowering, num_draws=arguments.draws)
        rows.append(asdict(row))
        print(f"{row.transform:28} {row.largest:.1e} {row.num_label_voxels:6} {row.monai_ms:9.2f} {row.our_ms:9.2f} ms"
              f"  {row.arguments} {row.words}", flush=True)  # fmt: skip
    if not arguments.only:
        record = {
            "command": f"python benchmarks/monai_parity.py --draws {arguments.draws}",
            "date": time.strftime("%Y-%m-%d"),
            "environment": environment(),
            "rows": rows,
        }
        OUT.write_text(json.dumps(record, indent=1) + "\n")
    failed = [row for row in rows if row["words"] or row["largest"] > row["tolerance"] or row["num_label_voxels"]]
    sys.exit(f"not equal to MONAI: {', '.join(row['transform'] for row in failed)}" if failed else 0)


if __name__ == "__main__":
    main()
