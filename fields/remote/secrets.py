"""User names, passwords and queries of addresses: kept for requests, and in nothing that is written or said."""

from __future__ import annotations

import re

from datasets.core.errors import SecondhandError
from fields.remote.limits import check_address
from fields.remote.names import CHAIN

#: In these a name before @ is that of a container.
_CONTAINERS = ("abfs", "abfss", "adl", "az", "wasb", "wasbs")
_USER = re.compile(rf"""{"".join(f"(?<!{one})" for one in _CONTAINERS)}(://)[^/\s'"@]+@""")
_SIGNATURE = re.compile(
    r"(?i)x-(amz|goog)-|\w*(sign?|signature|token|expires|key|policy)\b|s[a-z]{1,4}="
)
_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
#: User names and passwords by server, and queries by address, which nothing else of the program knows.
_users: dict[str, str] = {}
_queries: dict[str, str] = {}


def without_secrets(text: str) -> str:
    """An address without user name, password and query, which this process remembers for its requests.

    Raises
    ------
    BadFile : no file is read at such an address.
    SecondhandError : an address without its query has been met with another one, so the two cannot be told apart.
    """
    check_address(text)
    return remembered(text)


def remembered(text: str) -> str:
    """As `without_secrets`, for a value that may also be of no file, such as the address of a cluster."""
    return CHAIN.join(map(_clean, text.split(CHAIN)))


def hidden(text: str) -> str:
    """A sentence without user names, passwords and queries in its addresses."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def _clean(link: str) -> str:
    """One link of a chain without its secrets, which are remembered."""
    scheme, separator, rest = link.partition("://")
    if not separator:
        return link
    scheme = scheme.strip().lower()
    place, slash, path = rest.partition("/")
    user, at, server = place.rpartition("@")
    if at and scheme not in _CONTAINERS:
        _users[f"{scheme}://{server}"] = user
        place = server
    query = ""
    if scheme in ("http", "https"):
        place, mark, after = place.partition("?")
        path, mark, query = path.partition("?") if not mark else (path, mark, after)
        path = path.partition("#")[0]
        if "%" in path:
            from fields.remote.pages import plain_path

            path = plain_path(path)
    plain = f"{scheme}://{place}{slash}{path}"
    if query and _unsigned(_queries.get(plain, query)) != _unsigned(query):
        raise SecondhandError(
            f"{plain}: two addresses differ only after ?, which names no file here. Use addresses without it, or one of "
            "the two"
        )
    if query:
        _queries[plain] = query
    return plain


def _unsigned(query: str) -> set[str]:
    """The words of a query that no signature has, which may name a file."""
    return {word for word in query.split("&") if not _SIGNATURE.match(word)}


def full(link: str) -> str:
    """One link of a chain with its secrets."""
    scheme, separator, rest = link.partition("://")
    server = rest.partition("/")[0]
    user = _users.get(f"{scheme}://{server}") if _users else None
    query = f"?{_queries[link]}" if link in _queries else ""
    return f"{scheme}{separator}{f'{user}@' if user else ''}{rest}{query}"
