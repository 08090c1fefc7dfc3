"""One object store over real HTTP for the storage tests: the session's server on loopback."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast.storage import Storage, open_storage

_numbers = itertools.count()


@dataclass(frozen=True)
class S3:
    """A server that speaks S3, and the options that lead to it."""

    endpoint: str
    options: dict[str, Any]

    def open(self, bucket: str, prefix: str = "root", **changes: Any) -> Storage:
        return open_storage(f"s3://{bucket}/{prefix}", options={**self.options, **changes})

    def request(self, method: str, path: str, data: bytes = b"") -> int:
        """A raw request, as another program would make it."""
        from urllib.request import Request, urlopen

        with urlopen(Request(f"{self.endpoint}/{path}", method=method, data=data)) as reply:
            return reply.status


@pytest.fixture(scope="session")
def s3(s3_server, s3_options):
    """The server of the session, with a client that gives up soon."""
    options = {
        **s3_options,
        "client_options": {"allow_http": True, "timeout": "10s"},
        "retry_config": {"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
    }
    return S3(s3_server, options)


@pytest.fixture
def bucket(s3):
    """A bucket of one test."""
    name = f"bucket-{next(_numbers)}"
    s3.request("PUT", name)
    return name
