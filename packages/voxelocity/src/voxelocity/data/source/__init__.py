"""Which cases exist: one function for every layout of a data set. Reads names of files, never a scan.

`described` and `description` read lists (`dataset.json`), `table` CSV files, `folder` groups undescribed files by names
(`listing`, `sniff`), `splits` makes folds of patients, `remote` mirrors a server by empty files with names and sizes,
`server_listing` reads what a server says it has.
"""

from voxelocity.data.source.folder import FoundCase, FoundCases, group_files
from voxelocity.data.source.listing import conversion_of_file, files_below
from voxelocity.data.source.sniff import DESCRIPTION_NAME, TABLE_NAME, TABLE_SUFFIXES, open_cases

__all__ = [
    "DESCRIPTION_NAME",
    "TABLE_NAME",
    "TABLE_SUFFIXES",
    "FoundCase",
    "FoundCases",
    "conversion_of_file",
    "files_below",
    "group_files",
    "open_cases",
]
