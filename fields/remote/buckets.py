"""A file system of fsspec for what speaks the protocol of S3, by botocore, which is safe in threads and after a fork.

botocore finds credentials, region, endpoint and proxy, lists, and repeats what fails. Files are read by signed URLs on
its connections, because its own call takes twice the processor time for a picture; `fields.remote.asking` repeats that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from types import MappingProxyType
from typing import Any

import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
)
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback

from datasets.core.errors import BadFile, Unavailable, quoted
from fields.remote.limits import PASSING

_EXPIRED = "the token of the credentials has expired: renew it, for example by aws sso login"
_UNKNOWN = "the server does not know the credentials in the environment, or they are wrong"
_REGION = "the bucket is in another region: set AWS_DEFAULT_REGION to its own"
#: What is wrong if a server answers so: nothing about the file is.
_REASONS = {
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId",
                     "UnrecognizedClientException", "AuthFailure", "InvalidSecurity", "NotSignedUp"), _UNKNOWN),
    **dict.fromkeys(("PermanentRedirect", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
                     "IllegalLocationConstraintException", "TemporaryRedirect", "InvalidRegion", "301"), _REGION),
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "AccountProblem": "the account of the credentials has a problem: ask its provider",
    "AllAccessDisabled": "the bucket is closed to all",
}  # fmt: skip
#: Those of the file itself.
_OF_FILES = {
    "InvalidObjectState": "the file is archived (Glacier): restore it in the bucket first",
    "InvalidBucketName": "no bucket can have such a name",
    "KeyTooLongError": "no file can have such a long name",
}
#: Bytes of the answer that says why a request is refused, and of a block of a file.
_ANSWER, _BLOCK = 1 << 16, 1 << 20
_CODE = re.compile(rb"<Code>\s*(\w+)\s*</Code>")


class Answer(OSError):
    """A server's answer that it cannot serve now; the address may be asked for again.

    Attributes
    ----------
    status : of HTTP.
    """

    def __init__(self, path: str, status: int) -> None:
        super().__init__(path)
        self.status = status


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
        yield from self._pages(bucket, f"{folder}/" if folder else "", options)

    def _pages(
        self, bucket: str, prefix: str, options: dict[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        path, nameless = f"{bucket}/{prefix}".rstrip("/"), list[str]()
        ask = self._client.get_paginator("list_objects_v2").paginate
        with _as_errors_of_a_disk(path):
            for page in ask(Bucket=bucket, Prefix=prefix, Delimiter="/", **self._payer, **options):
                folders = [one["Prefix"] for one in page.get("CommonPrefixes", ())]
                nameless += [one for one in folders if one.endswith("//") or one == "/"]
                yield [
                    {"name": f"{bucket}/{one['Key']}", "type": "file", "size": one["Size"], **one}
                    for one in page.get("Contents", ())
                ] + [
                    {"name": f"{bucket}/{one[:-1]}", "type": "directory", "size": 0}
                    for one in folders
                    if one not in nameless
                ]
        for one in nameless:  # a folder without a name: its files are those of this one
            yield from self._pages(bucket, one, options)

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

    def get_file(
        self, rpath: str, lpath: str, callback: Callback = DEFAULT_CALLBACK, **options: Any
    ) -> None:
        """Write a file to a path on the disk."""
        body = self._body(rpath)
        try:
            with open(lpath, "wb") as file:
                while block := body.read(_BLOCK):
                    callback.relative_update(len(block))
                    file.write(block)
        except BaseException:
            body.close()  # the rest of the file may be long
            raise

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Write a file of the disk, whole or not at all."""
        with _as_errors_of_a_disk(rpath), open(lpath, "rb") as file:
            self._client.put_object(Body=file, **self._place(rpath))

    def _body(self, path: str) -> Any:
        for looked in (False, True):
            answer = self._get(path)
            if answer.status_code == 200:
                return answer.raw
            if answer.status_code in PASSING:
                answer.raw.close()
                raise Answer(path, answer.status_code)
            error = _refusal(path, answer.status_code, _code(answer))
            if looked:
                raise error
            self._head(path)  # says why not, or finds the region of the bucket
        raise AssertionError

    def _get(self, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> Any:
        with _as_errors_of_a_disk(path):
            url = self._client.generate_presigned_url("get_object", self._place(path))
        try:
            request = AWSRequest("GET", url, headers=dict(headers), stream_output=True)
            return self._http.send(request.prepare())
        except HTTPClientError as error:
            raise ConnectionError(path) from error

    def _head(self, path: str) -> dict[str, Any]:
        try:
            about: dict[str, Any] = self._client.head_object(**self._place(path))
            return about
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status not in (301, 400, 403):
                raise _refusal(path, status, error.response["Error"]["Code"]) from None
            answer = self._get(path, {"Range": "bytes=0-0"})  # that to HEAD has no text
            code = _code(answer) or error.response["Error"]["Code"]
            raise _refusal(path, status, code) from None
        except BotoCoreError as error:
            raise _failure(path, error) from error

    def _place(self, path: str) -> dict[str, str]:
        bucket, _, key = path.partition("/")
        return {"Bucket": bucket, "Key": key, **self._payer}


def _code(answer: Any) -> str:
    """The code of an error that a server has answered with; "" if it has none."""
    with answer.raw as body:
        found = _CODE.search(body.read(_ANSWER))
    return found[1].decode() if found else ""


@contextmanager
def _as_errors_of_a_disk(path: str) -> Iterator[None]:
    """Raise for what a server refuses what a disk would, or what is wrong with the bucket or the credentials."""
    try:
        yield
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        raise _refusal(path, status, error.response["Error"]["Code"]) from None
    except BotoCoreError as error:
        raise _failure(path, error) from error


def _refusal(path: str, status: int, code: str) -> Exception:
    """What a refusal of a server means."""
    address, bucket = f"s3://{path}", path.partition("/")[0]
    if code == "NoSuchBucket":
        return Unavailable(
            address,
            f"there is no bucket {quoted(bucket)}. Are its name and AWS_ENDPOINT_URL right?",
        )
    if code in _REASONS:
        return Unavailable(address, _REASONS[code])
    if code in _OF_FILES:
        return BadFile(address, _OF_FILES[code])
    if status in (401, 403):
        return PermissionError(path)
    if status == 404:
        return FileNotFoundError(path)
    said = f"{status} {code}" if code and code != str(status) else str(status)
    return Unavailable(address, f"its bucket answers {said}")


def _failure(path: str, error: BotoCoreError) -> Exception:
    """What it means that a request cannot be made, or has no answer, after the driver has tried again."""
    name = type(error).__name__
    if isinstance(error, NoCredentialsError):
        return Unavailable(f"s3://{path}", "no credentials in the environment")
    if isinstance(error, ParamValidationError):
        return BadFile(f"s3://{path}", "no bucket or file can have such a name")
    if any(word in name for word in ("Credential", "Token", "SSO", "Profile")):
        return Unavailable(f"s3://{path}", f"the credentials cannot be used ({name}): renew them")
    if isinstance(error, HTTPClientError):
        return Unavailable(
            f"s3://{path}", f"its server cannot be reached ({name}). Try again later"
        )
    return Unavailable(f"s3://{path}", f"the bucket cannot be asked ({name})")
