"""What an address says by its text alone: of archives, their members, and keys of buckets."""

from __future__ import annotations

from datasets.core.address import absolute

#: Between an archive's member and the archive.
CHAIN = "::"
#: The scheme of what an archive, or a table, holds, by its ending.
ARCHIVES = {
    ".zip": "zip",
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"), "tar"),
    ".parquet": "parquet",
}


def member(address: str) -> str:
    """The part of an address that names the file, without the archive in which it is."""
    return address.partition(CHAIN)[0]


def is_held(address: str) -> bool:
    """Whether a file is in an archive, whose table of contents is read once; to ask a server takes a request each."""
    return address.startswith(("zip://", "tar://"))


def contents(path: str) -> str:
    """The folder of what an archive holds; any other path as it is.

    Examples
    --------
    >>> contents("/data/all.zip"), contents("s3://bucket/a.tar.gz"), contents("/data/a.wav")
    ('zip://::/data/all.zip', 'tar://::s3://bucket/a.tar.gz', '/data/a.wav')
    """
    name = path.lower()
    scheme = next((ARCHIVES[ending] for ending in ARCHIVES if name.endswith(ending)), "")
    return f"{scheme}://{CHAIN}{absolute(path)}" if scheme and CHAIN not in path else path


def is_nameless(address: str) -> bool:
    """Whether a folder of an address has no name, as a key of a bucket may have; a path leaves such folders out."""
    return "//" in member(address).partition("://")[2]
