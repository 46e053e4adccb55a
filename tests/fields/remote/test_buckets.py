"""What a bucket refuses, and what its server does wrong, is said by what it is; nothing else is the file's fault."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets.core.address import local
from datasets.core.errors import BadFile, Unavailable
from datasets.core.store import CacheError
from datasets.sources.base import ReadOptions, read_source
from fields.remote import address, asking
from tests.fields.remote.buckets import Bucket
from tests.fields.remote.servers import Answer, Server, packed_tar, zipped

CONTENT = bytes(range(100))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server that says what it shall, as a bucket would; one request, and no pauses."""
    one = Server()
    for name, value in {
        "AWS_ENDPOINT_URL": one.url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "SECONDHAND_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(asking, "_PAUSES", (0.0,) * 5)
    yield one
    one.close()


def refusal(status: int, code: str) -> Answer:
    return status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode(), {}


@pytest.mark.parametrize(
    ("status", "code", "passes", "words"),
    [
        (400, "ExpiredToken", True, "token of the credentials has expired"),
        (403, "RequestExpired", True, "token of the credentials has expired"),
        (403, "InvalidAccessKeyId", True, "does not know the credentials"),
        (403, "SignatureDoesNotMatch", True, "does not know the credentials"),
        (404, "NoSuchBucket", True, "no bucket 'bucket'"),
        (403, "RequestTimeTooSkewed", True, "clock of this machine"),
        (400, "AuthorizationHeaderMalformed", True, "AWS_DEFAULT_REGION"),
        (403, "AccessDenied", False, "access is denied"),
        (403, "InvalidObjectState", False, "Glacier"),
        (404, "NoSuchKey", False, "no such file"),
        (418, "Teapot", True, "answers 418"),
        (503, "SlowDown", True, "answers 503"),
    ],
)
def test_a_refusal_is_named_by_its_cause(
    s3: Server, status: int, code: str, passes: bool, words: str
) -> None:
    """Where nothing about the file is known, a later run asks again."""
    s3.answers = lambda path: refusal(status, code)
    with pytest.raises(BadFile, match=words) as error:
        local("s3://bucket/a.jpg")
    assert isinstance(error.value, Unavailable) == passes
    assert error.value.path == "s3://bucket/a.jpg"
    s3.answers = lambda path: (200, CONTENT, {"ETag": '"1"'})
    address.ask_again("s3://bucket/a.jpg")
    assert Path(local("s3://bucket/a.jpg")).read_bytes() == CONTENT


def test_a_bucket_that_stumbles_is_asked_again(s3: Server) -> None:
    """It refuses to send the file twice, or what it sends breaks off twice."""
    sent: Counter[str] = Counter()

    def answers(path: str) -> Answer:
        name, _, signed = path.partition("?")
        sent[name] += bool(signed)
        if "busy" in name and signed and sent[name] < 3:
            return refusal(503, "SlowDown")
        if "cut" in name and signed and sent[name] < 3:
            return 200, CONTENT[:50], {"Content-Length": "100", "ETag": '"1"'}
        return 200, CONTENT, {"ETag": '"1"'}

    s3.answers = answers
    for name in ("busy", "cut"):
        assert Path(local(f"s3://bucket/{name}.jpg")).read_bytes() == CONTENT
        assert sent[f"/bucket/{name}.jpg"] == 3


@pytest.mark.parametrize("place", ["bucket", "server", "zip", "tar"])
def test_a_full_disk_is_no_fault_of_a_file(s3: Server, tmp_path: Path, place: str) -> None:
    """A limit of the size of files, which the system reports as it does a full disk; afterwards the file is read."""
    s3.answers = lambda path: (200, bytes(3 << 20), {"ETag": '"1"'})
    name = {
        "bucket": lambda: "s3://bucket/a.wav",
        "server": lambda: f"{s3.url}/a.wav",
        "zip": lambda: zipped(tmp_path / "a.zip", 3 << 20),
        "tar": lambda: packed_tar(tmp_path / "a.tgz", 3 << 20),
    }[place]()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CacheError, match=r"cannot be written.*Free disk space"):
            local(name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*tmp_path.glob("cache/tmp/*.part")]
    assert Path(local(name)).stat().st_size == 3 << 20


@pytest.mark.parametrize(
    "keys",
    [
        ["fox//1.jpg", "fox//2.jpg", "fox/3.jpg", "deer/1.jpg", "deer/2.jpg"],
        ["/fox/1.jpg", "/fox/2.jpg", "fox/3.jpg", "fox/4.jpg", "deer/1.jpg", "deer/2.jpg"],
        ["fox/1.jpg", "fox//night//2.jpg", "deer/1.jpg", "deer/2.jpg"],
    ],
)
def test_keys_with_a_folder_without_a_name_are_read_or_listed(
    bucket: Bucket, keys: list[str]
) -> None:
    root = f"nameless{len(keys)}{keys[0].count('/')}"
    for key in keys:
        bucket.put(f"{root}/{key}", key.encode())
    rows = read_source(f"s3://photos/{root}", ReadOptions())
    read = [Path(local(path)).read_text() for path in rows.frame["path"]]
    assert [key.partition("/")[0] for key in read] == [*rows.frame["label"]]
    assert sorted(read) == sorted(key for key in keys if "//" not in f"/{key}")
    listed = [one.path.removeprefix(f"s3://photos/{root}/") for one in rows.rejected]
    assert sorted(listed) == sorted({*keys} - {*read})
    for key in listed:
        assert Path(local(f"s3://photos/{root}/{key}")).read_text() == key  # as the reason says
