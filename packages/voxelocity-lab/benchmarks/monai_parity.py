"""Every lowered transform against MONAI's own: writes benchmarks/results/monai_parity.json, from which tables.py makes
the table of docs/monai.md.

python benchmarks/monai_parity.py [--draws N] [--only NAME]
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch

from harness import head, parser_of, write_record
from parity.table import ParityRow, cases, row_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--only", default="", help="transforms whose name contains this; nothing is written")
    arguments = parser.parse_args()
    # With one thread MONAI's smoothing of an elastic field sums in another order than with two or more, and its own
    # labels differ by about one voxel in 100,000. Times are those of one thread all the same.
    torch.set_num_threads(max(2, torch.get_num_threads()))
    record, rows = head("monai_parity", f"--draws {arguments.draws}"), list[ParityRow]()
    for case, lowering in cases():
        if arguments.only not in case.transform.__name__:
            continue
        row = row_of(case, lowering, num_draws=arguments.draws)
        rows.append(row)
        noise = "" if row.smallest_p is None else f" p >= {row.smallest_p:.2g}"
        times = f"{row.monai_ms:9.2f} {row.our_ms:9.2f} ms"
        print(f"{row.transform:32} {row.largest:.1e} {row.num_label_voxels or 0:6} {times}{noise}  {row.arguments} "
              f"{row.words}", flush=True)  # fmt: skip
    if not arguments.only:
        write_record(record | {"rows": [asdict(row) for row in rows]}, "monai_parity")
    failed = [f"{row.transform}({row.arguments})" for row in rows if not row.is_equal]
    sys.exit(f"not equal to MONAI: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
