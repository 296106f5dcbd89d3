"""Which cases exist: one function for every layout of a data set. Reads names of files, never a scan."""

from voxelocity.data.source.sniff import TABLE_SUFFIXES, open_cases

__all__ = ["TABLE_SUFFIXES", "open_cases"]
