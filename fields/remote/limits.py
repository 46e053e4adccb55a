"""The limits of addresses: which are read, and how many folders and bytes of pages; of bytes of files, `datasets.core.limits`.

An archive or a page of links may come from a stranger. All that follows what they name asks here.
"""

from __future__ import annotations

import re

from datasets.core.errors import BadFile, quoted

#: Schemes of the servers that are read; and of what holds files, whose members are named before ``::``. fsspec knows
#: others that read any file of this machine, or put variables of the environment into an address.
SCHEMES = (
    "s3", "s3a", "https", "http", "hf", "gs", "gcs", "az", "abfs", "abfss", "sftp",
)  # fmt: skip
HOLDERS = ("zip", "tar", "parquet")
#: Archives within archives.
_NESTED = 3
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)\s*://")

#: Folders within folders, and all folders below one, of a server.
MOST_DEPTH, MOST_FOLDERS = 32, 100_000
#: Bytes of a page that links to files.
MOST_PAGE = 64 << 20
#: Answers of servers that have too much to do, or are being restarted: they may serve the next time.
PASSING = (408, 425, 429, 500, 502, 503, 504)


def check_address(address: str) -> None:
    """Raise BadFile for an address with a scheme that is not read, in any of the links of its chain."""
    *holders, last = address.split("::")
    if len(holders) > _NESTED:
        raise BadFile(address, f"more than {_NESTED} archives within each other: unpack them")
    for link in holders:
        scheme = scheme_of(link)
        if scheme not in HOLDERS:
            raise BadFile(
                address,
                f"{quoted(scheme or link)} is no archive or table that holds files. Before :: stands a member: "
                f"{', '.join(f'{one}://' for one in HOLDERS)}",
            )
    scheme = scheme_of(last)
    if scheme in HOLDERS and not holders:  # the part of a name that is in an archive
        return
    if scheme and scheme not in SCHEMES:
        raise BadFile(
            address,
            f"{scheme}:// is not read. Files are on a disk, or their address begins with "
            f"{', '.join(f'{one}://' for one in SCHEMES)}",
        )


def scheme_of(link: str) -> str:
    """The scheme of one link of a chain, in small letters; "" for a path on a disk."""
    found = _SCHEME.match(link)
    return found[1].lower() if found else ""
