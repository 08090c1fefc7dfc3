"""Shared by source and sink: options of Kafka clients, and secrets that stay references.

Options have the names of librdkafka (`security.protocol`, `sasl.username`, `ssl.ca.location`).
What Spark's connector needs is translated for the Java client.

Invariants:
- A secret is given as `env:NAME` or `file:PATH`, and read when a client is made. Only the reference
  is kept: no fingerprint, manifest, log or error can hold the value.
- A secret that stands there in plain text is refused, and the error does not repeat it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.arguments import value_map
from holdfast.errors import InvalidInputError

SECRETS = frozenset(
    {
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.jaas.config",
    }
)
_OWN = {
    "bootstrap.servers": "servers",
    "group.id": "group",
    "isolation.level": "nothing: only committed records are read",
    "enable.auto.commit": "nothing: offsets are committed after the checkpoint",
    "transactional.id": "nothing: it is made of store, pipeline and sink",
    "enable.idempotence": "nothing: the producer is transactional",
}
_JAVA = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "client.id": "client.id",
    "fetch.max.bytes": "fetch.max.bytes",
}


def check_options(options: Mapping[str, str] | None, owner: str) -> dict[str, str]:
    """Options as texts; refuses secrets in plain text, and what Holdfast sets itself."""
    found = value_map(options, "options")
    for name, value in found.items():
        if name in _OWN:
            raise InvalidInputError(
                "this option belongs to Holdfast",
                kind="kafka_option",
                owner=owner,
                option=name,
                remedy=f"leave it out and give {_OWN[name]}",
            )
        if name in SECRETS and not is_reference(value):
            raise InvalidInputError(
                "a secret stands in plain text",
                kind="secret_in_plain_text",
                owner=owner,
                option=name,
                remedy=f'give a reference: {{"{name}": "env:KAFKA_PASSWORD"}} or "file:/run/…"',
            )
    return {name: _text(value) for name, value in found.items()}


def check_servers(servers: object, owner: str) -> str:
    """The addresses of brokers, as one text."""
    if isinstance(servers, (list, tuple)) and all(isinstance(one, str) for one in servers):
        servers = ",".join(servers)
    if isinstance(servers, str) and servers and "@" not in servers and "://" not in servers:
        return servers
    raise InvalidInputError(
        "brokers are named by host and port",
        kind="invalid_argument",
        owner=owner,
        argument="servers",
        remedy='write it like servers="broker-1:9092,broker-2:9092"',
    )


def is_reference(value: object) -> bool:
    """Whether a text says where a secret is, and not what it is."""
    return isinstance(value, str) and value.startswith(("env:", "file:"))


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Options for a client, with the secrets that references name."""
    return {
        name: _secret(name, value) if is_reference(value) else value
        for name, value in options.items()
    }


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """The same for the Java client of Spark's connector."""
    known = resolved(options)
    found = {_JAVA[name]: value for name, value in known.items() if name in _JAVA}
    if "sasl.username" in known:
        plain = found.get("sasl.mechanism", "PLAIN") == "PLAIN"
        module = "plain.PlainLoginModule" if plain else "scram.ScramLoginModule"
        user, password = (_quoted(known.get(f"sasl.{n}", "")) for n in ("username", "password"))
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={user} password={password};"
        )
    if "sasl.jaas.config" in known:
        found["sasl.jaas.config"] = known["sasl.jaas.config"]
    if "ssl.ca.location" in known:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = known["ssl.ca.location"]
    if "ssl.certificate.location" in known and "ssl.key.location" in known:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _read(known["ssl.certificate.location"])
        found["ssl.keystore.key"] = _read(known["ssl.key.location"])
        if "ssl.key.password" in known:
            found["ssl.key.password"] = known["ssl.key.password"]
    if known.get("enable.ssl.certificate.verification") == "false":
        found["ssl.endpoint.identification.algorithm"] = ""
    if known.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def without_java(options: Mapping[str, str]) -> dict[str, str]:
    """Options that librdkafka has: all but `sasl.jaas.config`, which is the Java client's."""
    return {name: value for name, value in options.items() if name != "sasl.jaas.config"}


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _secret(name: str, reference: str) -> str:
    kind, _, place = reference.partition(":")
    if kind == "file":
        return _read(place).rstrip("\n")
    value = os.environ.get(place)
    if value is None:
        raise InvalidInputError(
            "a secret is not there",
            kind="secret_missing",
            option=name,
            reference=reference,
            remedy="set the variable for this process, or correct its name",
        )
    return value


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InvalidInputError(
            "a file with a secret or a certificate cannot be read",
            kind="secret_missing",
            reference=f"file:{path}",
            reason=type(error).__name__,
            remedy="correct its path, or who may read it",
        ) from error
