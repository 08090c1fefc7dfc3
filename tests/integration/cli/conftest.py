"""Fixtures of the command-line tests."""

from __future__ import annotations

import pytest

from tests.helpers.cli_world import standard


@pytest.fixture
def world(tmp_path):
    """A healthy pipeline on disk."""
    return standard(tmp_path / "root")


@pytest.fixture
def s3_env(s3_server):
    """The environment by which the command finds the S3 server."""
    return {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture
def s3_world(s3_url, s3_options):
    """The same pipeline on S3."""
    return standard(s3_url, options=s3_options)
