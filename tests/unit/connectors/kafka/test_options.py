"""Options and secrets: references stay references, values appear nowhere."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.connectors.kafka.options import check_options, java_options, resolved
from holdfast.errors import InvalidInputError

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "me",
    "sasl.password": "env:KAFKA_PASSWORD",
    "ssl.ca.location": "/etc/ca.pem",
}


def test_a_secret_in_plain_text_is_refused_without_being_repeated():
    """The error names the option and the way on, and does not hold the value."""
    with pytest.raises(InvalidInputError, match="plain text") as caught:
        check_options({"sasl.password": "hunter2"}, "kafka")
    assert "hunter2" not in str(caught.value)
    assert caught.value.kind == "secret_in_plain_text"


def test_references_are_read_when_a_client_is_made(monkeypatch, tmp_path):
    """env: from the environment, file: from a file, without its last newline."""
    monkeypatch.setenv("KAFKA_PASSWORD", "one")
    (tmp_path / "secret").write_text("two\n")
    given = {"sasl.password": "env:KAFKA_PASSWORD", "ssl.key.password": f"file:{tmp_path}/secret"}
    assert resolved(given) == {"sasl.password": "one", "ssl.key.password": "two"}


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there"])
def test_a_secret_that_is_not_there_is_an_error_with_its_reference(reference, monkeypatch):
    """The reference is told, since it is no secret."""
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(InvalidInputError, match=r"/not/there|NOT_THERE") as caught:
        resolved({"sasl.password": reference})
    assert caught.value.kind == "secret_missing"


def test_the_java_client_gets_the_same_login(monkeypatch):
    """User and password become a login module, quotes and backslashes escaped."""
    monkeypatch.setenv("KAFKA_PASSWORD", 'a"b\\c')
    found = java_options(SASL)
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
    }


@pytest.mark.parametrize("name", ["group.id", "isolation.level", "transactional.id"])
def test_options_that_would_break_exactly_once_are_refused(name):
    """What Holdfast sets itself cannot be set by options."""
    with pytest.raises(InvalidInputError, match=name) as caught:
        hf.sources.Kafka("a:1", "t", options={name: "x"})
    assert caught.value.kind == "kafka_option"


def test_no_secret_reaches_what_is_stored_or_printed(monkeypatch):
    """Neither fingerprint nor representation of source and sink hold a value."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    source = hf.sources.Kafka("a:1", "t", options=SASL)
    sink = hf.sinks.Kafka("a:1", "t", options=SASL)
    told = repr((vars(source), vars(sink), source.schema_text, dict(sink.params)))
    assert "hunter2" not in told
    assert "env:KAFKA_PASSWORD" not in source.schema_text + str(dict(sink.params))


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": None},
        {"topics": "a", "pattern": "b"},
        {"pattern": "("},
        {"topics": "a", "format": "xml"},
        {"topics": "a", "format": "json"},
        {"topics": "a", "schema": "x int"},
        {"topics": "a", "start": "tomorrow"},
        {"topics": "a", "rows_max": 0},
        {"topics": "a", "rate_max": -1},
        {"topics": "a", "reader": "java"},
        {"topics": "a", "metadata": ["size"]},
        {"topics": "a", "format": "json", "schema": "offset int", "metadata": ["offset"]},
        {"topics": "a", "format": "json", "schema": "x int", "changes": "weights"},
        {"topics": "a", "format": "json", "schema": "x int", "changes": "all"},
        {"topics": "a", "format": "json", "schema": "x int", "key": "a int, b int"},
    ],
    ids=str,
)
def test_a_source_that_could_never_work_is_refused_at_once(wrong):
    """Before any broker is asked."""
    with pytest.raises(InvalidInputError):
        hf.sources.Kafka("a:1", **wrong)


@pytest.mark.parametrize(
    "wrong", [{"mode": "append"}, {"mode": "upsert"}, {"topic": ""}, {"markers": "t"}], ids=str
)
def test_a_sink_that_could_never_work_is_refused_at_once(wrong):
    """Before any broker is asked."""
    with pytest.raises(InvalidInputError):
        hf.sinks.Kafka("a:1", **{"topic": "t", **wrong})
