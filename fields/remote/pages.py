"""A file system of fsspec for web servers, whose folders are pages that link to files.

That of fsspec takes each link as it is written: those that sort a page of Apache (``?C=N;O=D``) and those to the page
itself would be files and folders, too.
"""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from fsspec.implementations.http import HTTPFileSystem

from datasets.core.errors import BadFile
from fields.remote.limits import MOST_DEPTH, MOST_PAGE

_LINK = re.compile(
    r"<a\s[^<>]*?\bhref\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)'|([^\s\"'<>]+))", re.IGNORECASE
)
#: What an address would not mean the same without its escape.
_ESCAPED = re.compile(r"[%?#/\\:;\x00-\x1f\x7f]|^\.{0,2}$|^\s|\s$")


def plain_path(path: str) -> str:
    """A path of an address with its letters, where they mean the same: ``red%20fox`` is ``red fox``.

    Examples
    --------
    >>> plain_path("/red%20fox/50%25.jpg")
    '/red fox/50%25.jpg'
    """
    return "/".join(map(_plain, path.split("/"))) if "%" in path else path


def _plain(name: str) -> str:
    try:
        plain = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return name
    return name if _ESCAPED.search(plain) else plain


class Pages(HTTPFileSystem):
    """The files that web servers link to."""

    async def _ls_real(self, url: str, detail: bool = True, **options: Any) -> list[Any]:
        """What a page links to below itself, each once."""
        if urlsplit(url).path.count("/") > 2 * MOST_DEPTH:
            raise BadFile(
                url, f"folders within each other beyond {2 * MOST_DEPTH}: they do not end"
            )
        session = await self.set_session()
        async with session.get(self.encode_url(url), **self.kwargs) as answer:
            text, base = await self._text(answer, url)
        names = {inside for link in _LINK.finditer(text) if (inside := _below(base, link))}
        names -= {f"{name}/" for name in names}  # a folder that is written without its slash, too
        found = [
            {
                "name": _folder(url.partition("?")[0]) + name,
                "size": None,
                "type": "directory" if name.endswith("/") else "file",
            }
            for name in sorted(names)
        ]
        return found if detail else [one["name"] for one in found]

    async def _text(self, answer: Any, url: str) -> tuple[str, str]:
        """The text of a page, "" for a file, and the address of its folder."""
        self._raise_not_found_for_status(answer, url)
        kind = answer.headers.get("Content-Type", "text/html").partition(";")[0]
        if kind.strip().lower() not in ("text/html", "application/xhtml+xml"):
            return "", url
        content = b""
        async for part in answer.content.iter_chunked(1 << 16):
            content += part
            if len(content) > MOST_PAGE:
                raise BadFile(
                    url,
                    f"a page of links of more than {MOST_PAGE >> 20} MiB: divide it into folders",
                )
        return content.decode(answer.charset or "utf-8", "replace"), _folder(
            str(answer.url.with_query(None))
        )


def _folder(url: str) -> str:
    return url if url.endswith("/") else f"{url}/"


def _below(base: str, link: re.Match[str]) -> str:
    """The part of what a link leads to that is below a page; "" if it is the page itself or elsewhere."""
    text = html.unescape(next(filter(None, link.groups()), "")).strip()
    try:
        to, of = urlsplit(urljoin(base, text.partition("#")[0])), urlsplit(base)
    except ValueError:
        return ""
    inside, folder = plain_path(to.path), plain_path(of.path)
    if (
        to.scheme not in ("http", "https")
        or to.netloc.rpartition("@")[2] != of.netloc.rpartition("@")[2]
    ):
        return ""
    if not inside.startswith(folder) or inside == folder or "//" in inside[len(folder) :]:
        return ""
    is_folder = inside.endswith("/")
    return inside[len(folder) :] + (f"?{to.query}" if to.query and not is_folder else "")
