"""Tables of the pages on MONAI: chains, curves, transforms."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tables_of.comparisons import in_short
from tables_of.results import load, markdown_table, of_records, source_line
from voxelocity_observe.core.quantities import factor_text, figure_text


def chain_lines() -> list[str]:
    """Chains of transforms: the best of either package for each, and all comparisons in short."""
    return [line for record in load("bench_monai.json") for line in [*_best(record), "", *in_short(record)]][:-1]


def _best(record: dict[str, Any]) -> list[str]:
    """The quickest way that was measured under each package, for each chain."""
    best: dict[str, dict[str, tuple[float, str]]] = defaultdict(dict)
    for comparison in record["comparisons"]:
        way, chain = _split(comparison["title"])
        for side in comparison["sides"]:
            if comparison["unit"] == "patches/s" and side["n"]:
                package, _, how = side["name"].partition(", ")
                found = (side["median"], f"{way}, {how}" if how else way)
                best[chain][package] = max(found, best[chain].get(package, found))
    return markdown_table(
        ("chain", "Voxelocity's best, patches/s", "MONAI's best, patches/s", "ratio of the medians"),
        (
            (chain, *(f"{figure_text(rate)} ({way})" for rate, way in (of_chain["Voxelocity"], of_chain["MONAI"])),
             factor_text(of_chain["Voxelocity"][0] / of_chain["MONAI"][0]))
            for chain, of_chain in best.items() if {"Voxelocity", "MONAI"} <= of_chain.keys()
        ),
    )  # fmt: skip


def _split(title: str) -> tuple[str, str]:
    """How patches come, and the chain; a call among the former has commas of its own."""
    head, _, tail = title.rpartition(")") if "compile(" in title else ("", "", title)
    way, _, chain = tail.partition(", ")
    return (f"{head}){way}" if head else way), chain


@of_records("monai_curves.json")
def curve_lines(record: dict[str, Any]) -> list[str]:
    """Largest differences of losses, and the two samples of final losses."""
    lines = markdown_table(
        ("data set", "loader", "optimizer", "steps", "largest difference of a loss", "of the held-out loss"),
        (
            (row["data_set"], row["loader"], row["optimizer"], row["num_steps"],
             f"{row['largest_difference']:.1e}", f"{row['held_out_difference']:.1e}")
            for row in record["curves"]
        ),
    )  # fmt: skip
    found = record["noise"]
    low, high = found["difference_of_means"]
    is_within = "within" if found["is_equivalent"] else "**not within**"
    return [*lines, "", f"Shares of MONAI's loss; expected below {record['tolerance']:g}.", "",
              f"With `RandGaussianNoised`, drawn by the engine: final losses of {found['n'][0]} seeds against "
              f"{found['n'][1]} others under MONAI. Two-sided Mann-Whitney p = {found['mann_whitney_p']:.2f}, "
              f"two-sample Kolmogorov-Smirnov p = {found['kolmogorov_smirnov_p']:.2f}. The difference of the means "
              f"is {low:+.2%} to {high:+.2%} of MONAI's ({found['confidence']:.0%} interval), {is_within} the "
              f"{found['margin']:.0%} set before.", "", source_line(record)]  # fmt: skip


@of_records("monai_parity.json")
def parity_lines(record: dict[str, Any]) -> list[str]:
    """How each random transform compares with MONAI's."""
    return [*_parity_table(record), "", source_line(record)]


def _parity_table(record: dict[str, Any]) -> list[str]:
    return markdown_table(
        ("transform", "arguments tried", "draws", "keys", "largest difference / largest value",
         "label voxels that differ", "tolerance", "MONAI, CPU ms", "ours, CPU ms"),
        (
            (f"`{row['transform']}`", f"`{row['arguments'].replace('|', '&#124;')}`" if row["arguments"] else "",
             row["num_draws"], ", ".join(row["keys"]), _gap(row),
             "not touched" if row["num_label_voxels"] is None else row["num_label_voxels"], _promise(row),
             figure_text(row["monai_ms"]), figure_text(row["our_ms"]))
            for row in record["rows"]
        ),
    )  # fmt: skip


def _gap(row: dict[str, Any]) -> str:
    """The difference, and in words what else differs."""
    if row["smallest_p"] is not None:
        found = f"not compared; smallest p of {row['num_draws']}: {row['smallest_p']:.2g}"
    else:
        found = f"{row['largest']:.1e}" if row["largest"] else "0"
    return "; ".join([found, row["words"]] if row["words"] else [found])


def _promise(row: dict[str, Any]) -> str:
    """What a case is held to."""
    if row["smallest_p"] is not None:
        return "equal in distribution"
    return f"{row['tolerance']:.0e}" if row["tolerance"] else "equal"
