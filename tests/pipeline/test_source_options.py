"""The options of the source, as Spark's Kafka source takes and refuses them, and the Java client's names.

The cases are those of Spark's KafkaSourceProviderSuite, KafkaMicroBatchSourceSuite, KafkaRelationSuite and
JsonUtilsSuite.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pytest

from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.source import KorvetDataSource
from korvet.pipeline.source.offsets import AtOffsets, AtTime, AtTimes, Everywhere, from_json, to_json
from korvet.pipeline.source.options import (
    Assigned,
    Matching,
    ReadOptions,
    Subscribed,
    batch_options,
    include_headers,
    stream_options,
)

BROKER = {"kafka.bootstrap.servers": "broker:9092"}
ONE_TOPIC = {**BROKER, "subscribe": "t"}
Parser = Callable[[Mapping[str, str]], ReadOptions]
both = pytest.mark.parametrize("parse", [batch_options, stream_options])


@both
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "One of the options subscribe, subscribePattern, assign"),
        ({"subscribe": "t", "subscribePattern": "t.*"}, "Only one of the options"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "Only one of the options"),
        ({"assign": ""}, "'assign': expected e.g."),
        ({"assign": "t"}, "'assign': expected e.g."),
        ({"assign": "[0]"}, "'assign': expected e.g."),
        ({"assign": "{}"}, "No partitions to read"),
        ({"subscribe": ""}, "No topics to read"),
        ({"subscribe": " , "}, "No topics to read"),
        ({"subscribePattern": " "}, "'subscribePattern' is empty"),
        ({"subscribePattern": "("}, "no regular expression"),
    ],
)
def test_options_name_the_topics_in_exactly_one_way(parse: Parser, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        parse(BROKER | options)


def test_options_name_the_partitions_to_read() -> None:
    assert batch_options({**BROKER, "subscribe": " b, a ,b,"}).choice == Subscribed(topics=("b", "a"))
    assigned = batch_options({**BROKER, "assign": '{"a":[0,1],"b":[2]}'}).choice
    assert assigned == Assigned(partitions=frozenset({("a", 0), ("a", 1), ("b", 2)}))
    matching = batch_options({**BROKER, "subscribePattern": " a.* "}).choice
    assert isinstance(matching, Matching) and matching.pattern.pattern == "a.*"


@both
@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer", "value.deserializer"],
)
def test_source_refuses_the_client_settings_that_spark_refuses(parse: Parser, name: str) -> None:
    with pytest.raises(PipelineError, match=f"Kafka option '{name}' is not supported"):
        parse(ONE_TOPIC | {f"kafka.{name}": "x"})


@both
def test_options_must_name_a_broker(parse: Parser) -> None:
    with pytest.raises(PipelineError, match=r"Option 'kafka\.bootstrap\.servers' must be specified"):
        parse({"subscribe": "t"})


@both
@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("minPartitions", "a", "expected a whole number"),
        ("minPartitions", "0", "must be positive"),
        ("minPartitions", "-1", "must be positive"),
        ("maxRecordsPerPartition", "0", "must be positive"),
        ("maxOffsetsPerTrigger", "0", "must be positive"),
        ("failOnDataLoss", "perhaps", "expected true or false"),
        ("includeHeaders", "1", "expected true or false"),
        ("startingTimestamp", "now", "expected a whole number"),
        ("startingOffsetsByTimestamp", "{", "expected e.g."),
        ("startingOffsetsByTimestampStrategy", "first", "expected error or latest"),
        ("startingOffsets", '{"t":0}', "expected e.g."),
        ("startingOffsets", '{"t":{"a":0}}', "expected e.g."),
        ("startingOffsets", '{"t":{"0":"1"}}', "expected e.g."),
        ("maxTriggerDelay", "soon", "expected a duration"),
        ("kafka.isolation.level", "dirty", "expected read_committed or read_uncommitted"),
        ("kafka.request.timeout.ms", "long", "expected a whole number"),
    ],
)
def test_options_with_unreadable_values_are_refused(parse: Parser, name: str, value: str, complaint: str) -> None:
    options = {**ONE_TOPIC, "startingTimestamp": "0"} if name.endswith("Strategy") else ONE_TOPIC
    with pytest.raises(PipelineError, match=complaint):
        parse(options | {name: value})


def test_batch_that_ends_before_it_begins_is_refused() -> None:
    for name, value, complaint in (
        ("startingOffsets", "latest", "starting offset can't be latest"),
        ("startingOffsets", '{"t":{"0":1,"1":-1}}', "starting offset can't be latest .* t-1"),
        ("endingOffsets", "earliest", "ending offset can't be earliest"),
        ("endingOffsets", '{"t":{"0":-2}}', "ending offset can't be earliest .* t-0"),
    ):
        with pytest.raises(PipelineError, match=complaint):
            batch_options(ONE_TOPIC | {name: value})
    with pytest.raises(PipelineError, match="greater than the ending offset of t-0"):
        batch_options(ONE_TOPIC | {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'})
    with pytest.raises(PipelineError, match="greater than the ending timestamp of t-0"):
        times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":4}}'}
        batch_options(ONE_TOPIC | times)
    with pytest.raises(PipelineError, match="must name the same partitions; only one of them has t-1"):
        batch_options(ONE_TOPIC | {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":6,"1":7}}'})
    same = batch_options(ONE_TOPIC | {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":-1}}'})
    assert same.ending == AtOffsets(offsets={("t", 0): -1})


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_stream_refuses_an_end(name: str) -> None:
    with pytest.raises(PipelineError, match="a streaming query has no end"):
        stream_options(ONE_TOPIC | {name: "0"})


def test_queries_begin_and_end_at_defaults() -> None:
    assert batch_options(ONE_TOPIC).starting == Everywhere(offset=-2)
    assert batch_options(ONE_TOPIC).ending == Everywhere(offset=-1)
    assert stream_options(ONE_TOPIC).starting == Everywhere(offset=-1)


def test_names_and_values_of_offsets_ignore_case() -> None:
    # KafkaSourceProviderSuite: get offsets from case insensitive parameters.
    assert stream_options(ONE_TOPIC | {"STARTINGOFFSETS": "EarLiEst"}).starting == Everywhere(offset=-2)
    assert stream_options(ONE_TOPIC | {"startingoffsets": " latest "}).starting == Everywhere(offset=-1)
    offsets = stream_options(ONE_TOPIC | {"startingOffsets": '{"Topic-A":{"0":23}}'}).starting
    assert offsets == AtOffsets(offsets={("Topic-A", 0): 23})


def test_one_time_overrides_times_and_times_override_offsets() -> None:
    options = {**ONE_TOPIC, "startingOffsets": "earliest"}
    options |= {"startingOffsetsByTimestamp": '{"t":{"0":7}}'}
    assert batch_options(options).starting == AtTimes(timestamps_ms={("t", 0): 7}, else_latest=False)
    options |= {"startingTimestamp": "8", "startingOffsetsByTimestampStrategy": "Latest"}
    assert batch_options(options).starting == AtTime(timestamp_ms=8, else_latest=True)
    assert batch_options(ONE_TOPIC | {"endingTimestamp": "9"}).ending == AtTime(timestamp_ms=9, else_latest=True)


def test_options_limit_a_trigger() -> None:
    with pytest.raises(PipelineError, match=r"minOffsetsPerTrigger \(9\) is higher than maxOffsetsPerTrigger \(8\)"):
        stream_options(ONE_TOPIC | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"})
    found = stream_options(ONE_TOPIC | {"minOffsetsPerTrigger": "7", "maxTriggerDelay": "2m"})
    assert (found.min_offsets_per_trigger, found.max_trigger_delay_s) == (7, 120)
    assert stream_options(ONE_TOPIC).max_trigger_delay_s == 900


def test_source_reads_uncommitted_records_by_default() -> None:
    assert not batch_options(ONE_TOPIC).read_committed
    assert batch_options(ONE_TOPIC | {"kafka.isolation.level": "read_committed"}).read_committed


def test_source_leaves_out_headers_by_default() -> None:
    assert not include_headers(ONE_TOPIC)
    assert include_headers(ONE_TOPIC | {"INCLUDEHEADERS": "True"})


def test_source_uses_the_given_group_name() -> None:
    assert batch_options(ONE_TOPIC).client["group.id"] == "korvet-executor"
    assert batch_options(ONE_TOPIC | {"groupIdPrefix": "mine"}).client["group.id"] == "mine-executor"
    assert batch_options(ONE_TOPIC | {"groupIdPrefix": "mine", "kafka.group.id": "g"}).client["group.id"] == "g"


def test_checkpoint_has_sorted_offsets() -> None:
    # JsonUtilsSuite: parsing partitionOffsets.
    offsets = {("b", 10): 3, ("b", 9): -1, ("a", 0): 23}
    assert list(to_json(offsets)) == ["a", "b"] and list(to_json(offsets)["b"]) == ["9", "10"]
    assert from_json(to_json(offsets)) == offsets


def test_java_settings_become_librdkafkas() -> None:
    options = {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="a b" password="c\\"\\\\d\'";',
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.password": "unused",
        "kafka.ssl.keystore.location": "/me.p12",
        "kafka.ssl.keystore.type": "pkcs12",
        "kafka.ssl.keystore.password": "secret",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.fetch.max.wait.ms": "3",
        "kafka.max.partition.fetch.bytes": "4096",
        "kafka.receive.buffer.bytes": "65536",
        "kafka.request.timeout.ms": "900000",
        "kafka.max.poll.records": "5",
        "kafka.fetch.queue.backoff.ms": "7",
        "subscribe": "t",
    }
    assert client_settings(options) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "a b",
        "sasl.password": "c\"\\d'",
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.location": "/me.p12",
        "ssl.keystore.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.wait.max.ms": "3",
        "fetch.message.max.bytes": "4096",
        "socket.receive.buffer.bytes": "65536",
        "request.timeout.ms": "900000",
        "socket.timeout.ms": "300000",
        "fetch.queue.backoff.ms": "7",
    }


def test_pem_keystore_holds_certificates_and_key() -> None:
    found = client_settings({**BROKER, "kafka.ssl.keystore.location": "/me.pem", "kafka.ssl.keystore.type": "PEM"})
    assert (found["ssl.certificate.location"], found["ssl.key.location"]) == ("/me.pem", "/me.pem")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("ssl.truststore.location", "/trust.jks", "read as PEM here"),
        ("ssl.keystore.location", "/me.jks", "read as PKCS12 or PEM here"),
        ("sasl.jaas.config", "com.sun.security.auth.module.Krb5LoginModule required;", "only PlainLoginModule"),
        ("sasl.login.callback.handler.class", "x.Y", "a Java class cannot be used here"),
    ],
)
def test_java_settings_that_librdkafka_cannot_follow_are_refused(name: str, value: str, complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        client_settings({**BROKER, f"kafka.{name}": value})


def test_source_refuses_another_schema() -> None:
    source = KorvetDataSource(ONE_TOPIC)
    with pytest.raises(PipelineError, match="is fixed"):
        source.reader(source.schema().add("more", "string"))


def test_readers_pickle_as_spark_does_it() -> None:
    source = KorvetDataSource(ONE_TOPIC | {"maxOffsetsPerTrigger": "5"})
    reader = source.streamReader(source.schema())
    assert pickle.loads(pickle.dumps(reader)).getDefaultReadLimit() == reader.getDefaultReadLimit()
