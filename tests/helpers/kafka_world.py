"""Topics, producers and readers for tests with a real broker."""

from __future__ import annotations

import itertools
import os
import time

_NUMBERS = itertools.count()


class KafkaWorld:
    """A broker with what tests do to it again and again."""

    def __init__(self, servers, broker=None):
        self.servers, self.broker = servers, broker

    def admin(self):
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, name, partitions=2, **settings):
        """A new topic; its name is its own, whatever other tests call theirs."""
        whole = f"{name}-{os.getpid()}-{next(_NUMBERS)}"
        self.create(whole, partitions, **settings)
        return whole

    def create(self, name, partitions=2, **settings):
        from confluent_kafka.admin import NewTopic

        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result()
        while name not in admin.list_topics(timeout=5).topics:
            time.sleep(0.05)

    def delete(self, name):
        admin = self.admin()
        admin.delete_topics([name])[name].result()
        while name in admin.list_topics(timeout=5).topics:
            time.sleep(0.05)

    def producer(self, transactional=None):
        from confluent_kafka import Producer

        config = {"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 0}
        if transactional:
            config["transactional.id"] = transactional
        producer = Producer(config)
        if transactional:
            producer.init_transactions(60)
        return producer

    def send(self, topic, messages, producer=None):
        """Messages as values, or as pairs of key and value."""
        own = producer or self.producer()
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            while True:
                try:
                    own.produce(topic, value, key)
                    break
                except BufferError:
                    own.poll(0.1)
        if producer is None:
            own.flush()

    def read(self, topic, isolation="read_committed"):
        """All records of a topic, partition by partition, as the client's messages."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "tests", "isolation.level": isolation,
             "enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 50,
             "auto.offset.reset": "earliest", "log_level": 0}
        )  # fmt: skip
        try:
            parts = sorted(consumer.list_topics(topic, 10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in parts])
            found, open_parts = [], set(parts)
            while open_parts:
                for message in consumer.consume(10_000, 0.1):
                    if message.error() is None:
                        found.append(message)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        open_parts.discard(message.partition())
                    else:
                        raise AssertionError(message.error())
            return found
        finally:
            consumer.close()

    def table(self, topic):
        """The last value of every key, without the keys that are gone."""
        newest = {m.key(): m.value() for m in self.read(topic)}
        return {key: value for key, value in newest.items() if value is not None}

    def group_offsets(self, group):
        """What a consumer group has committed, by topic and partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        admin = self.admin()  # one that is let go answers nothing
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        told = asked[group].result().topic_partitions
        return {(part.topic, part.partition): part.offset for part in told}
