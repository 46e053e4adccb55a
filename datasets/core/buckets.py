"""A file system of fsspec for what speaks the protocol of S3, by botocore, which is safe in threads and after a fork.

botocore finds credentials, region, endpoint and proxy, lists, and repeats what fails. Files are read by signed URLs on
its connections, because its own call takes twice the processor time for a picture.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from fsspec import AbstractFileSystem

#: Times that a file is asked for.
_TRIES = 5


class Buckets(AbstractFileSystem):
    """The files in buckets; ``FSSPEC_S3_ANON`` and the like of the environment give the parameters.

    Parameters
    ----------
    connections : requests at the same time.
    anon : whether requests are not signed, as public buckets want it.
    requester_pays : whether who reads pays for it.
    """

    protocol = ("s3", "s3a")
    cachable = False

    def __init__(
        self, connections: int, anon: bool = False, requester_pays: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        session = botocore.session.get_session()
        # Times are compared as texts, and to read them takes longer than all else of a listing.
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
        signature = UNSIGNED if anon else "s3v4"
        config = Config(max_pool_connections=connections, signature_version=signature)
        self._client = session.create_client("s3", config=config)
        self._http = URLLib3Session(
            session.get_config_variable("ca_bundle") or True,
            get_environ_proxies(self._client.meta.endpoint_url),
            max_pool_connections=connections,
        )
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}

    def pages(self, path: str, **options: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield what a folder holds as the pages of the listing arrive."""
        bucket, _, folder = path.strip("/").partition("/")
        prefix = f"{folder}/" if folder else ""
        ask = self._client.get_paginator("list_objects_v2").paginate
        with _as_errors_of_a_disk(path):
            for page in ask(Bucket=bucket, Prefix=prefix, Delimiter="/", **self._payer, **options):
                yield [
                    {"name": f"{bucket}/{one['Key']}", "type": "file", "size": one["Size"], **one}
                    for one in page.get("Contents", ())
                ] + [
                    {"name": f"{bucket}/{one['Prefix'][:-1]}", "type": "directory", "size": 0}
                    for one in page.get("CommonPrefixes", ())
                ]

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What a folder holds."""
        found = [*chain.from_iterable(self.pages(self._strip_protocol(path)))]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """A file or a folder."""
        name = self._strip_protocol(path).strip("/")
        with suppress(FileNotFoundError):
            if "/" in name:
                about = self._head(name)
                return {"name": name, "type": "file", "size": about["ContentLength"], **about}
        if any(self.pages(name, PaginationConfig={"MaxItems": 1})):
            return {"name": name, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        """Write a file to a path on the disk."""
        with open(lpath, "wb") as file:
            shutil.copyfileobj(self._body(rpath), file, 1 << 20)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Write a file of the disk, whole or not at all."""
        with _as_errors_of_a_disk(rpath), open(lpath, "rb") as file:
            self._client.put_object(Body=file, **self._place(rpath))

    def _body(self, path: str) -> Any:
        for _ in range(_TRIES):
            url = self._client.generate_presigned_url("get_object", self._place(path))
            with suppress(HTTPClientError):
                answer = self._http.send(AWSRequest("GET", url, stream_output=True).prepare())
                if answer.status_code == 200:
                    return answer.raw
            self._head(path)  # says why not, or finds the region of the bucket, or waits
        raise OSError(path)

    def _head(self, path: str) -> dict[str, Any]:
        with _as_errors_of_a_disk(path):
            about: dict[str, Any] = self._client.head_object(**self._place(path))
            return about

    def _place(self, path: str) -> dict[str, str]:
        bucket, _, key = path.partition("/")
        return {"Bucket": bucket, "Key": key, **self._payer}


@contextmanager
def _as_errors_of_a_disk(path: str) -> Iterator[None]:
    """Raise for what a server refuses what a disk would."""
    try:
        yield
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        kind = {403: PermissionError, 404: FileNotFoundError}.get(status, OSError)
        raise kind(path) from error
