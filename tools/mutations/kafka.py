"""Mutations of Kafka as a source and a sink: each loses rows, doubles them, or hides it."""

from __future__ import annotations

from mutate import Mutation

UNIT = "tests/unit/connectors/kafka/"
PUBLISH = UNIT + "test_publisher.py::"
SOURCE = UNIT + "test_source.py::"
MESSAGES = UNIT + "test_messages.py::"
FOLDER = "connectors/kafka/"


def _m(test: str, file: str, old: str, new: str, times: int = 1) -> Mutation:
    return Mutation(test, FOLDER + file, old, new, times)


MUTATIONS = [
    # What is published
    _m(
        PUBLISH + "test_an_epoch_is_published_once_however_often_it_is_asked_for",
        "publisher.py",
        "self._marker is not None and self._marker.published(epoch)",
        "self._marker is not None and epoch < 0",
    ),
    _m(
        PUBLISH + "test_an_open_transaction_of_another_sink_is_waited_for",
        "marker.py",
        "                if key in ends and passed >= ends[key]:",
        "                if key in ends:",
    ),
    _m(
        PUBLISH + "test_a_marker_knows_what_was_published_or_says_that_it_does_not",
        "marker.py",
        "        if any(first <= epoch <= last for first, last in self.epochs):",
        "        if epoch <= self.epoch:",
    ),
    _m(
        PUBLISH + "test_a_topic_of_markers_that_would_lose_them_is_refused",
        "marker.py",
        '        if policy != "compact":',
        "        if not policy:",
    ),
    _m(
        MESSAGES + "test_upserts_turn_one_table_into_the_other_wherever_rows_were_staged",
        "messages.py",
        'return ("removed", "added") if',
        'return ("added", "removed") if',
    ),
    # What is read
    _m(
        SOURCE + "test_epochs_are_bounded_and_hold_every_committed_record_once",
        "fetch.py",
        '"isolation.level": "read_committed"',
        '"isolation.level": "read_uncommitted"',
    ),
    _m(
        SOURCE + "test_a_topic_that_was_made_again_is_refused_at_the_start_and_in_mid_run",
        "source.py",
        "            if now.get(topic) != ident:",
        "            if topic not in now:",
    ),
    _m(
        SOURCE + "test_new_partitions_and_topics_are_read_from_their_first_record",
        "source.py",
        '        first = self._admin.offsets(new, "earliest")',
        '        first = self._admin.offsets(new, "latest")',
    ),
    _m(
        SOURCE + "test_a_rate_limits_what_a_second_takes",
        "source.py",
        "min(saved + grown, self._source.rate_max)",
        "saved + grown",
    ),
    _m(
        SOURCE + "test_no_permission_and_a_wrong_password_are_told_at_once",
        "client.py",
        '        "_AUTHENTICATION",\n        "_SSL",\n',
        "",
    ),
    _m(
        UNIT + "test_options.py::test_a_secret_in_plain_text_is_refused_without_being_repeated",
        "options.py",
        "        if name in SECRETS and not is_reference(value):",
        "        if name not in SECRETS and not is_reference(value):",
    ),
]
