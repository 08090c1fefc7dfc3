"""Tokens of sinks: few or thousands of staged files fit into a manifest, and come back as they were."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint import PendingToken
from holdfast.checkpoint.draft import TOKEN_BYTES_MAX
from holdfast.connectors.base import StagedFile, parse_token, token_text
from holdfast.errors import CorruptionError
from holdfast.ids import Epoch, SeededIds

DIRECTORY = ".staging/a-pipeline/totals_out/0198f0d2-7e40-7cc3-9b0c-2f6a1d1a6a55"


def pending(text: str) -> PendingToken:
    return PendingToken(SeededIds(1).checkpoint_id(0), Epoch(1), "out", text, "retracts", "pending")


@pytest.mark.parametrize("count", [0, 1, 127, 128, 640, 4_096])
def test_every_partition_of_a_large_pipeline_fits_into_a_token(count) -> None:
    """4,096 files are below the limit of a manifest; names, rows and bytes are what was staged."""
    ids = SeededIds(count)
    files = [
        StagedFile("out", f"{DIRECTORY}/part-{n:05d}-{ids.token()}.parquet", 10, "", 3)
        for n in range(count)
    ]
    text = token_text(DIRECTORY, files)
    assert len(text) <= TOKEN_BYTES_MAX
    found = parse_token(pending(text))
    assert found.files == sorted(file.path for file in files)
    assert (found.rows, found.bytes, found.packed) == (3 * count, 10 * count, "")


def test_names_that_do_not_pack_are_kept_as_they_are() -> None:
    """Another directory, another length, another alphabet: nothing is guessed."""
    for odd in ("elsewhere/part-1", f"{DIRECTORY}/part", f"{DIRECTORY}/pärt-00001"):
        paths = sorted([odd, *(f"{DIRECTORY}/part-{n:05d}" for n in range(200))])
        text = token_text(DIRECTORY, [StagedFile("out", path, 1, "", 1) for path in paths])
        assert parse_token(pending(text)).files == paths


def test_a_damaged_token_is_an_error_of_its_kind() -> None:
    """Packed names that do not unpack are named by sink and epoch."""
    paths = [f"{DIRECTORY}/part-{n:05d}" for n in range(200)]
    text = token_text(DIRECTORY, [StagedFile("out", path, 1, "", 1) for path in paths])
    value = msgspec.json.decode(text)
    for broken in ("!!", value["packed"][:-5] + "00000"):
        with pytest.raises(CorruptionError) as caught:
            parse_token(pending(msgspec.json.encode({**value, "packed": broken}).decode()))
        assert caught.value.kind == "bad_token"
