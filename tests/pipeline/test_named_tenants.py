"""Spark chooses its tenant by the name of the server: the own source and sink, and the stock connector."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

from tests.kafka.secured import HOST, PASSWORD, USER, Connect, add_tenant, running_fleet, seeing, write_hosts
from tests.pipeline.named_driver import READERS
from tests.support.kafka import ROOT
from tests.support.tenants import connected, make_topic

TENANTS = ("acme", "globex", "nobodys")
"""Two tenants, and the name of none."""
TOPIC = "orders"
WITHIN_S = 200.0
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def options(way: Connect) -> dict[str, str]:
    """A way as Spark's options."""
    told = {
        "bootstrap.servers": way.bootstrap,
        "security.protocol": way.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(way.ca),
        "sasl.mechanism": str(way.mechanism),
        "sasl.jaas.config": f'{_MODULE} required username="{way.user}" password="{way.password}";',
    }
    return {f"kafka.{name}": value for name, value in told.items()}


def test_spark_chooses_its_tenant_by_the_name_of_the_server(spark_jars: str, tmp_path: Path) -> None:
    """The topic and the user have the same names in both tenants. librdkafka and Java ask the system for addresses."""
    hosts, told = tmp_path / "hosts", tmp_path / "told.json"
    write_hosts(hosts, TENANTS)
    before = seeing(hosts)
    with running_fleet(tmp_path, {}) as fleet:
        context = ssl.create_default_context(cafile=str(fleet.authority.cert))
        for tenant in TENANTS[:2]:
            add_tenant(fleet.broker, tenant)
            host = HOST.format(node=0, namespace=tenant)
            with connected(fleet.broker.ports[-1], host, context) as client:
                assert client.log_in(USER, PASSWORD)["error_code"] == "NONE"
                assert make_topic(client, TOPIC, 2) == "NONE"
        ways = json.dumps({tenant: options(fleet.named_way(tenant)) for tenant in TENANTS})
        command = [*before, sys.executable, "-m", "tests.pipeline.named_driver", spark_jars, TOPIC, ways, str(told)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert ran.returncode == 0, ran.stderr[-4000:]
        assert "Traceback" not in fleet.broker.log
    found = json.loads(told.read_text())
    for tenant in TENANTS[:2]:
        assert found[tenant] == {reader: [f"of {tenant}"] for reader in READERS}
    assert "login" in found[TENANTS[2]]
