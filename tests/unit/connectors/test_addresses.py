"""A file address means the same path to every connector."""

from __future__ import annotations

import holdfast as hf
from holdfast.connectors.locations import local_path
from holdfast.storage.open import StorageLocation


def test_a_file_address_is_decoded_by_every_connector(tmp_path) -> None:
    """`%20` is a blank; the path is what a store at the same address would use."""
    home = tmp_path / "a b"
    address = f"file://{tmp_path}/a%20b"
    assert local_path(address) == str(home)
    assert hf.sinks.Journal(address, entity="=e", kind="=k").path == str(home)
    assert hf.sources.Journal(address, payload="x long").path == str(home)
    store = StorageLocation(str(tmp_path / "store"))
    writer = hf.sinks.Parquet(address, mode="upsert").open("o", "p", store, None)
    assert writer.inspect(None).where == str(home)
