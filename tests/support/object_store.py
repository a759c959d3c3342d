"""S3 on this machine: moto's server with one bucket, and Hadoop's S3A to reach it from Spark."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.kafka import ROOT, KafkaUnavailable, fetch_dependencies
from tests.support.ports import free_port
from tests.support.tools import cannot_run, find_tool

WITHIN_S = 150.0
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
AWS_BUNDLE = "software.amazon.awssdk:bundle"
"""All of Amazon's library, 650 MB, which hadoop-aws asks for."""
POM = Path(__file__).with_name("s3a-pom.xml")
JARS = ROOT / ".cache" / "hadoop-3.5.0-s3a-jars"
_SETTINGS = "spark.hadoop.fs.s3a.bucket"


class ObjectStoreFailed(AssertionError):
    """The server did not start, or made no bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A bucket and its server, which keeps objects in memory and asks for no credentials."""

    endpoint: str
    bucket: str

    @property
    def url(self) -> str:
        return f"s3a://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a user of obstore."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    @property
    def settings(self) -> dict[str, str]:
        """Spark's settings for this bucket; those for others stay as they are."""
        own = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": "key",
            "secret.key": "secret",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        return {f"{_SETTINGS}.{self.bucket}.{name}": value for name, value in own.items()}


def s3a_jars() -> str:
    """The jars of Hadoop's S3A for the setting spark.jars."""
    find_tool("mvn")
    try:
        return ",".join(sorted(str(path) for path in fetch_dependencies(POM, JARS).glob("*.jar")))
    except KafkaUnavailable as error:
        cannot_run(str(error))


@contextmanager
def running_object_store(directory: Path, server: str = "moto.server") -> Iterator[ObjectStore]:
    """Run a server with an empty bucket until the block ends; its log gets into ``directory``.

    :param server: the module that is moto's server.
    """
    port = free_port()
    store = ObjectStore(endpoint=f"http://127.0.0.1:{port}", bucket=f"bucket-{secrets.token_hex(4)}")
    command = [sys.executable, "-m", server, "-H", "127.0.0.1", "-p", str(port)]
    with open(directory / "object-store.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _make_bucket(store, process, directory / "object-store.log")
        yield store
    finally:
        process.kill()
        process.wait()


def _make_bucket(store: ObjectStore, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            urlopen(Request(f"{store.endpoint}/{store.bucket}", method="PUT"), timeout=WITHIN_S).close()
            return
        except HTTPError:
            raise
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ObjectStoreFailed(f"moto's server does not answer: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
