"""Metrics of Java clients: the tools that ask for them, and producers that push or print them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from tests.api.raw import ask, created, unique
from tests.oracle.tools import CLIENT_METRICS, CONFIGS, PERFORMANCE, Tools
from tests.support.broker import running_broker
from tests.support.scraping import scrape_until, total


def test_client_metrics_tools_print_as_for_kafka(tools: Tools) -> None:
    name, prefix = unique("subscription"), "org.apache.kafka.producer."
    one = ("--entity-type", "client-metrics", "--entity-name", name)
    tools.same(CLIENT_METRICS, "--describe", "--name", name)
    tools.same(CLIENT_METRICS, "--alter", "--name", name, "--metrics", prefix, "--interval", "60000")
    tools.same(CLIENT_METRICS, "--alter", "--name", name, "--match", "client_id=no-such.*,client_software_name=none")
    assert prefix in tools.same(CLIENT_METRICS, "--describe", "--name", name)
    assert name in tools.same(CLIENT_METRICS, "--list", mine=name)
    tools.same(CLIENT_METRICS, "--describe", mine=name)
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", "--entity-type", "client-metrics", mine=name)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "interval.ms=99", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "match=[client_id=(]", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "no.such=1", code=1)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "match")
    tools.same(CLIENT_METRICS, "--delete", "--name", name)
    tools.same(CLIENT_METRICS, "--list", mine=name)


def test_java_producer_pushes_its_metrics(tools: Tools) -> None:
    """With its own settings: it pushes whatever it is asked for."""
    client, topic = unique("java"), unique("topic")
    subscription = ("--name", unique("all"), "--metrics", "*", "--interval", "100", "--match", f"client_id={client}")
    with running_broker(has_metrics=True) as korvet, ThreadPoolExecutor(1) as threads:
        # Too few replicas hold the producer's records up, and it waits for them before it prints its metrics. So it is
        # not closed, and pushes, until its figures were seen.
        created(korvet.port, topic, min_insync_replicas="2")
        assert tools.run(korvet.bootstrap, CLIENT_METRICS, "--alter", *subscription)[0] == 0
        sent = ("--topic", topic, "--num-records", "100", "--record-size", "100", "--throughput", "-1")
        properties = (f"bootstrap.servers={korvet.bootstrap}", f"client.id={client}")
        producing = threads.submit(
            tools.run_as_it_is, PERFORMANCE, *sent, "--print-metrics", "--producer-props", *properties
        )
        figures = scrape_until(
            korvet.metrics_port,
            lambda found: (
                total(found, "kafka_client_producer_record_send_total", client_id=client) >= 100
                and total(found, "kafka_client_producer_record_retry_total", client_id=client) > 0
            ),
            "all records and their retries are told",
        )
        assert total(figures, "kafka_client_producer_record_error_total", client_id=client) == 0
        accept(korvet.port, topic)
        code, output = producing.result()
        assert code == 0, output
        assert "100 records sent" in output
    (info,) = [dict(labels) for name, labels in figures if name == "korvet_client_info"]
    assert (info["client_software_name"], info["client_software_version"]) == ("apache-kafka-java", "4.1.2")


def accept(port: int, topic: str) -> None:
    """Let a topic's records be stored without replicas."""
    one = {"name": "min.insync.replicas", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [one]}
    (answer,) = ask(port, "incremental_alter_configs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == "NONE", answer


def test_java_producer_reports_its_throttle_time(tools: Tools, topic: str) -> None:
    korvet, client = tools.brokers[1], unique("quota")
    one = ("--entity-type", "clients", "--entity-name", client)
    assert tools.run(korvet, CONFIGS, "--alter", *one, "--add-config", "producer_byte_rate=5000")[0] == 0
    sent = ("--topic", topic, "--num-records", "10", "--record-size", "10000", "--throughput", "-1", "--print-metrics")
    code, output = tools.run_as_it_is(
        PERFORMANCE, *sent, "--producer-props", f"bootstrap.servers={korvet}", f"client.id={client}"
    )
    assert code == 0, output
    (longest,) = re.findall(r"^producer-metrics:produce-throttle-time-max:\S+\s*: ([\d.]+)", output, re.MULTILINE)
    assert float(longest) > 0
    assert tools.run(korvet, CONFIGS, "--alter", *one, "--delete-config", "producer_byte_rate")[0] == 0
