"""The pipeline over TLS and a login: an archive and a replay by ``--command-config``, Spark's reader and writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from korvet.cli import run
from korvet.pipeline.failures import failure
from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.delta import delta_rows
from tests.support.tenants import create_tenant, korvet

PASSWORD = "right"
TOPIC = "secured"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KorvetServer, Path]]:
    """A broker that serves logins over TLS alone, and the settings of its user."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority.make(directory)
    pair = authority.server()
    listener = ListenerSettings(
        port=0, security=Security.SASL_TLS, sasl=("SCRAM-SHA-512",), tls_cert=str(pair.cert), tls_key=str(pair.key)
    )
    chosen = replace(listener, name="tenants", namespace_from=NamespaceFrom.PRINCIPAL)
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:spark",
    }
    with running_broker(listeners=[listener, chosen], broker=rights) as broker:
        password, file = directory / "password", directory / "client.properties"
        password.write_text(PASSWORD)
        added = ["users", "add", "spark", "--data-dir", str(broker.data_dir), "--password-file", str(password)]
        assert run(added) == 0
        file.write_text(
            f"bootstrap.servers={broker.bootstrap}\nsecurity.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={authority.cert}\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="spark" password="{PASSWORD}";\n'
        )
        yield broker, file


def options(file: Path) -> dict[str, str]:
    """The settings of a file as Spark's options."""
    lines = (line.partition("=") for line in file.read_text().splitlines())
    return {f"kafka.{name}": value for name, _, value in lines}


def test_archive_replay_reader_and_writer_log_in_over_tls(
    spark: SparkSession, broker: tuple[KorvetServer, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, file = broker
    config, lake = ["--command-config", str(file)], str(tmp_path / "lake")
    assert run(["topics", "create", TOPIC, f"{TOPIC}-copy", *config]) == 0
    written = spark.range(20).selectExpr("concat('value ', id) as value")
    written.write.format("korvet").options(**options(file)).option("topic", TOPIC).mode("append").save()
    try:
        archived = run(["pipeline", "archive", "--lake", lake, "--topic", TOPIC, *config])
        assert archived == 0, capfd.readouterr().err
        assert len(delta_rows(spark, f"{lake}/{TOPIC}/raw")) == 20
        replayed = run(["pipeline", "replay", "--lake", lake, "--topic", TOPIC, "--to", f"{TOPIC}-copy", *config])
        assert replayed == 0, capfd.readouterr().err
    finally:
        structlog.reset_defaults()
    copied = spark.read.format("korvet").options(**options(file)).option("subscribe", f"{TOPIC}-copy").load()
    assert copied.count() == 20


def test_archive_and_reader_see_what_their_tenant_wrote_alone(
    spark: SparkSession, broker: tuple[KorvetServer, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The topic and the user have the same names in both tenants."""
    server, file = broker
    for number, tenant in enumerate(("acme", "globex"), 1):
        create_tenant(server, tenant, "--super-users", "User:spark", users=())
        korvet(server, "users", "add", "spark", "--namespace", tenant, stdin=PASSWORD)
        own = tmp_path / f"{tenant}.properties"
        text = file.read_text().replace(server.bootstrap, f"127.0.0.1:{server.ports[1]}")
        own.write_text(text.replace('username="spark"', f'username="spark@{tenant}"'))
        config, lake = ["--command-config", str(own)], str(tmp_path / tenant)
        assert run(["topics", "create", TOPIC, *config]) == 0
        written = spark.range(number).selectExpr(f"'{tenant}' as value")
        written.write.format("korvet").options(**options(own)).option("topic", TOPIC).mode("append").save()
        try:
            archived = run(["pipeline", "archive", "--lake", lake, "--topic", TOPIC, *config])
        finally:
            structlog.reset_defaults()
        assert archived == 0, capfd.readouterr().err
        read = spark.read.format("korvet").options(**options(own)).option("subscribe", TOPIC).load()
        for rows in (read.collect(), delta_rows(spark, f"{lake}/{TOPIC}/raw")):
            assert [row.value for row in rows] == [tenant.encode()] * number


def test_wrong_password_is_reported_in_one_sentence_and_not_shown(
    spark: SparkSession, broker: tuple[KorvetServer, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "client.properties"
    wrong.write_text(broker[1].read_text().replace(f'"{PASSWORD}"', '"hidden"'))
    capfd.readouterr()
    try:
        code = run(["pipeline", "archive", "--lake", str(tmp_path), "--topic", TOPIC, "--command-config", str(wrong)])
    finally:
        structlog.reset_defaults()
    shown = capfd.readouterr()
    assert code == 1
    assert "login" in shown.err and "hidden" not in shown.out + shown.err
    reading = spark.read.format("korvet").options(**options(wrong)).option("subscribe", TOPIC)
    with pytest.raises(Exception) as caught:
        reading.load().count()
    told = str(failure(caught.value))
    assert "login" in told and "hidden" not in told
