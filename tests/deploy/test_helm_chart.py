"""The Helm chart is valid, secure, consistent in itself and with the other files of deploy/; no cluster is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tenuto.settings import Settings, WorkerSettings, load_settings, load_worker_settings
from tenuto.version import __version__
from tenuto.worker.executors.cluster import parse_callback
from tests.cli.conftest import Service, Shell
from tests.deploy.custom_resources import CUSTOM_SCHEMAS
from tests.deploy.promql_selectors import metric_uses
from tests.deploy.rendered_chart import (
    CHART,
    DEPLOY,
    EVERYTHING,
    NAMESPACE,
    RELEASE,
    Document,
    container,
    environment,
    matches,
    of_kind,
    pods,
    queries,
    refuse,
    render,
    run_helm,
)
from tests.deploy.test_deployment import DOCKERFILE, TENUTO_SERVICES, VARIABLES, parse_command, read_unit
from tests.deploy.test_monitoring import check_metric_uses, dashboard_queries, rule_queries, without_extensions
from tests.docs.chart_schema import CHART_SETTINGS, SECRET_SETTINGS
from tests.support.waiting import eventually_blocking

FORCED_STOP_SECONDS = 5
OLDEST_KUBERNETES = "1.30"


@pytest.fixture(scope="module")
def everything() -> list[Document]:
    return render(EVERYTHING)


@pytest.fixture(scope="module")
def defaults() -> list[Document]:
    return render()


# --- validity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_chart_passes_helm_lint_and_its_documents_the_schemas_of_kubernetes(values: Document) -> None:
    linted = run_helm("lint", "--strict", str(CHART), values=values)
    assert linted.returncode == 0, linted.stdout
    documents = render(values)
    for document in documents:
        if document["kind"] in CUSTOM_SCHEMAS:
            jsonschema.validate(document, CUSTOM_SCHEMAS[document["kind"]])
            continue
        for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"].startswith(f">={OLDEST_KUBERNETES}.")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


def test_chart_schema_check_refuses_a_misspelt_field(everything: list[Document]) -> None:
    scaled = json.loads(json.dumps(of_kind(everything, "ScaledObject")["worker-mail"]))
    scaled["spec"]["maxReplicas"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplicas"):
        jsonschema.validate(scaled, CUSTOM_SCHEMAS["ScaledObject"])
    deployment = json.loads(json.dumps(of_kind(everything, "Deployment")["web"]))
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(deployment, OLDEST_KUBERNETES, strict=True)


def test_chart_creates_everything_that_an_installation_needs(
    defaults: list[Document], everything: list[Document]
) -> None:
    assert of_kind(defaults, "Deployment").keys() == {"scheduler", "web", "worker-default"}
    assert of_kind(everything, "Deployment").keys() == {
        "scheduler",
        "web",
        "worker-default",
        "worker-mail",
        "worker-celery",
    }
    optional = {"Ingress", "ServiceMonitor", "PrometheusRule", "ScaledObject", "ConfigMap"}
    assert {document["kind"] for document in defaults}.isdisjoint(optional)
    assert {document["kind"] for document in everything} - optional == {document["kind"] for document in defaults}
    assert not of_kind(everything, "Secret"), "secrets are referred to, never created"
    only_mail = render({"workers": {"default": None, "mail": {"queues": ["mail"]}}})
    assert of_kind(only_mail, "Deployment").keys() == {"scheduler", "web", "worker-mail"}
    assert of_kind(only_mail, "PodDisruptionBudget").keys() == {"scheduler", "web", "worker-mail"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"retention_dayz": 3}}, "retention_dayz"),
        ({"settings": {"retention_days": 0}}, "retention_days"),
        ({"settings": {"database": "postgresql://a:b@c/d"}}, "database"),
        ({"settings": {"master_key": "c2VjcmV0"}}, "master_key"),
        ({"settings": {"metrics_port": 1}}, "metrics_port"),
        ({"scheduler": {"settings": {"worker_lease_seconds": 3}}}, "worker_lease_seconds"),
        ({"workers": {"mail": {"slots": 3}}}, "queues"),
        ({"workers": {"mail": {"queues": []}}}, "queues"),
        ({"workers": {"Mail": {"queues": ["mail"]}}}, "Mail"),
        ({"workers": {"mail": {"queues": ["mail"], "slots": 100_000}}}, "slots"),
        ({"replicas": 3}, "replicas"),
        ({"settings": {"worker_executor_address": "redis://:secret@broker/0"}}, "worker_executor_address"),
        ({"workerDefaults": {"settings": {"worker_executor_address": "redis://x"}}}, "worker_executor_address"),
        ({"workers": {"gpu": {"queues": ["gpu"], "executor": {"name": "spark"}}}}, "executor"),
        ({"workers": {"gpu": {"queues": ["gpu"], "executor": {"name": "ray"}}}}, "executor.address.secretName"),
        ({"web": {"ingress": {"enabled": True}}}, "web.hosts"),
    ],
)
def test_chart_refuses_values_that_are_wrong(values: Document, named: str) -> None:
    assert named in refuse(values)


def test_chart_values_allow_every_setting_that_no_other_value_sets() -> None:
    names = {*Settings.model_fields, *(f"worker_{name}" for name in WorkerSettings.model_fields)}
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    allowed = schema["definitions"]["workerSettings"]["properties"].keys()
    assert allowed == names - SECRET_SETTINGS - CHART_SETTINGS
    assert names >= SECRET_SETTINGS | CHART_SETTINGS


# --- environment and secrets ----------------------------------------------------------------------------------------


def test_chart_sets_only_existing_variables_to_valid_values(
    everything: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pod in pods(everything).items():
        variables = [each["name"] for each in container(pod)["env"]]
        assert len(set(variables)) == len(variables), name
        assert set(variables) - {"POD_IP"} <= VARIABLES, name
        with monkeypatch.context() as patched:
            for variable, value in environment(pod).items():
                patched.setenv(variable, value)
            settings = load_settings()
            assert (settings.retention_days, settings.sweep_seconds) == (30, 2.5)
            assert settings.http_allowed_hosts == ("a.example", "b.example")
            assert settings.log_format == "json"
            if name == "worker-mail":
                worker = load_worker_settings()
                assert (worker.queues, worker.slots, worker.grace_seconds) == (("mail", "re.ports"), 20, 600)
                assert (worker.lease_seconds, settings.log_level) == (15, "debug")
            if name == "web":
                assert (settings.web_hosts, settings.web_proxies) == (("tenuto.example.org",), ("10.0.0.0/8",))
                assert (settings.web_path, settings.web_behind_proxy) == ("/ops", True)


def test_chart_takes_the_database_and_the_master_key_from_secrets(
    defaults: list[Document], everything: list[Document]
) -> None:
    for name, pod in pods(everything).items():
        (database,) = [each for each in container(pod)["env"] if each["name"] == "TENUTO_DATABASE"]
        secret = "owner-login" if name == "migration" else "tenuto-database"
        assert database["valueFrom"] == {"secretKeyRef": {"name": secret, "key": "url"}}
        replica = [each["valueFrom"] for each in container(pod)["env"] if each["name"] == "TENUTO_DATABASE_READONLY"]
        expected = {"secretKeyRef": {"name": "replica-login", "key": "url"}}
        assert replica == ([expected] if name == "web" else []), "only the web service reads from a replica"
        (volume,) = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "master-key"]
        assert (volume["secretName"], volume["defaultMode"]) == ("tenuto-master-key", 0o440)
        assert volume["items"] == [{"key": "master.key", "path": "master.key"}]
        (mount,) = [each for each in container(pod)["volumeMounts"] if each["name"] == "master-key"]
        assert environment(pod)["TENUTO_MASTER_KEY_FILE"] == f"{mount['mountPath']}/master.key"
        assert mount["readOnly"]
        assert pod["spec"]["securityContext"]["fsGroup"] == 10001, "the group may read the key"
    assert "://" not in json.dumps([environment(pod) for pod in pods(defaults).values()])
    for pod in pods(render({"masterKey": {"secretName": ""}})).values():
        assert "TENUTO_MASTER_KEY_FILE" not in environment(pod)
        assert {each["name"] for each in pod["spec"]["volumes"]} == {"home", "tmp"}


def test_chart_pods_have_the_variables_of_the_compose_services(defaults: list[Document]) -> None:
    in_image = set(re.findall(r"(TENUTO_\w+)=", DOCKERFILE.partition("\nENV ")[2].partition("\n")[0]))
    own = {"TENUTO_METRICS_HOST", "TENUTO_METRICS_PORT", "TENUTO_METRICS_PUBLIC"}
    own |= {"TENUTO_WORKER_QUEUES", "TENUTO_WORKER_SLOTS", "TENUTO_WORKER_GRACE_SECONDS"}
    for name, service in TENUTO_SERVICES.items():
        pod = pods(defaults)[{"worker": "worker-default", "migrate": "migration"}.get(name, name)]
        variables = {each["name"] for each in container(pod)["env"]}
        assert variables - own == service["environment"].keys() | in_image, name
        assert container(pod)["args"] == service["command"]
        parse_command(container(pod)["args"])


def test_chart_gives_a_worker_set_its_cluster_and_lets_the_processes_of_the_cluster_call_back(
    everything: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pods(everything)["worker-celery"]
    variables = {each["name"]: each for each in container(pod)["env"]}
    address = variables["TENUTO_WORKER_EXECUTOR_ADDRESS"]
    assert address["valueFrom"] == {"secretKeyRef": {"name": "broker-login", "key": "address"}}
    assert variables["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert list(variables).index("POD_IP") < list(variables).index("TENUTO_WORKER_EXECUTOR_CALLBACK")
    (port,) = [each["containerPort"] for each in container(pod)["ports"] if each["name"] == "callback"]
    for pod_address in ("10.1.2.3", "2001:db8::7"):  # Kubernetes replaces $(POD_IP)
        for name, value in environment(pod).items():
            monkeypatch.setenv(name, value.replace("$(POD_IP)", pod_address))
        settings = load_worker_settings()
        assert settings.executor == "celery"
        assert settings.executor_callback is not None
        assert parse_callback(settings.executor_callback) == (pod_address, port)
    metrics, callback = of_kind(everything, "NetworkPolicy")["worker-celery"]["spec"]["ingress"]
    assert [each["port"] for each in metrics["ports"]] == ["metrics"]
    assert callback == {
        "ports": [{"port": "callback", "protocol": "TCP"}],
        "from": [{"podSelector": {"matchLabels": {"app": "celery"}}}],
    }
    for name in ("worker-default", "worker-mail"):
        assert "TENUTO_WORKER_EXECUTOR" not in environment(pods(everything)[name])
        assert "POD_IP" not in {each["name"] for each in container(pods(everything)[name])["env"]}
    for_all = {"queues": ["gpu"], "executor": {"name": "ray", "address": {"secretName": "ray"}}}
    (_, callback) = of_kind(render({"workers": {"gpu": for_all}}), "NetworkPolicy")["worker-gpu"]["spec"]["ingress"]
    assert callback["from"] == [{"namespaceSelector": {}}], "pods of the Kubernetes cluster, and nothing outside"


# --- security -------------------------------------------------------------------------------------------------------


def test_chart_pods_are_as_restricted_as_the_compose_services(everything: list[Document]) -> None:
    for name, pod in pods(everything).items():
        spec, context = pod["spec"], container(pod)["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert f"--uid {spec['securityContext']['runAsUser']} " in DOCKERFILE
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"] is TENUTO_SERVICES["worker"]["read_only"] is True
        assert context["capabilities"]["drop"] == TENUTO_SERVICES["worker"]["cap_drop"] == ["ALL"]
        assert context["allowPrivilegeEscalation"] is False, "no-new-privileges"
        assert not context["privileged"]
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        writable = {each["mountPath"] for each in container(pod)["volumeMounts"] if not each.get("readOnly")}
        assert writable == {"/tmp", environment(pod)["TENUTO_HOME"]}
        assert f"TENUTO_HOME={environment(pod)['TENUTO_HOME']}" in DOCKERFILE
        assert container(pod)["resources"]["limits"]["memory"]
        if name.startswith("worker"):
            assert spec["shareProcessNamespace"] is TENUTO_SERVICES["worker"]["init"] is True
    assert of_kind(everything, "ServiceAccount")[""]["automountServiceAccountToken"] is False


def test_chart_network_policies_select_every_pod_once_and_name_existing_ports(everything: list[Document]) -> None:
    policies = of_kind(everything, "NetworkPolicy")
    for name, pod in pods(everything).items():
        (policy,) = [
            each for each in policies.values() if matches(each["spec"]["podSelector"], pod["metadata"]["labels"])
        ]
        assert policy is policies[name]
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        ports = {port["name"] for port in container(pod).get("ports", [])}
        allowed = {port["port"] for rule in policy["spec"].get("ingress", []) for port in rule["ports"]}
        assert allowed == ports
        egress = policy["spec"]["egress"]
        assert {"port": 53, "protocol": "UDP"} in egress[0]["ports"]
        assert egress[1] == {
            "ports": [{"port": 5432, "protocol": "TCP"}],
            "to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}],
        }
        assert len(egress) == (3 if name.startswith("worker") else 2), "only the code of jobs reaches further"
    reachable = policies["worker-mail"]["spec"]["egress"][2]["to"]
    assert "169.254.0.0/16" in reachable[0]["ipBlock"]["except"]
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")


# --- probes, termination and disruption -----------------------------------------------------------------------------


def test_chart_gives_pods_the_time_of_the_drain_as_compose_and_systemd_do(
    defaults: list[Document], everything: list[Document]
) -> None:
    chart = {
        name.removesuffix("-default"): pod["spec"]["terminationGracePeriodSeconds"]
        - container(pod).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        for name, pod in pods(defaults).items()
        if name != "migration"
    }
    compose = {
        name: int(service["stop_grace_period"].removesuffix("s"))
        for name, service in TENUTO_SERVICES.items()
        if name != "migrate"
    }
    units = {
        unit.stem.removeprefix("tenuto-").removesuffix("@"): int(read_unit(unit)["Service"]["TimeoutStopSec"])
        for unit in (DEPLOY / "systemd").glob("*.service")
    }
    assert chart == compose == units
    stop_seconds = chart["worker"] - WorkerSettings.model_fields["grace_seconds"].default
    assert stop_seconds > FORCED_STOP_SECONDS + 5, "the worker stops code and writes its last outcomes"
    for name, pod in pods(everything).items():
        if name.startswith("worker"):
            grace = float(environment(pod)["TENUTO_WORKER_GRACE_SECONDS"])
            assert pod["spec"]["terminationGracePeriodSeconds"] == grace + stop_seconds


def test_chart_budgets_select_the_pods_of_one_deployment_and_never_block_a_drain(everything: list[Document]) -> None:
    budgets = of_kind(everything, "PodDisruptionBudget")
    deployments = of_kind(everything, "Deployment")
    assert budgets.keys() == deployments.keys()
    for name, budget in budgets.items():
        selected = [
            other
            for other, deployment in deployments.items()
            if matches(budget["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"])
        ]
        assert selected == [name]
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]


def test_chart_migrates_in_a_hook_before_the_release_changes(everything: list[Document]) -> None:
    job = of_kind(everything, "Job")["migration"]
    assert container(job["spec"]["template"])["args"] == ["migrate"]
    hook = job["metadata"]["annotations"]
    assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "before-hook-creation" in hook["helm.sh/hook-delete-policy"]
    policy = of_kind(everything, "NetworkPolicy")["migration"]["metadata"]["annotations"]
    assert policy["helm.sh/hook"] == hook["helm.sh/hook"]
    assert int(policy["helm.sh/hook-weight"]) < int(hook["helm.sh/hook-weight"])
    assert "serviceAccountName" not in job["spec"]["template"]["spec"], "the hook runs before the account exists"
    others = [document for document in everything if document["metadata"]["name"].endswith(("migration",))]
    assert {document["kind"] for document in others} == {"Job", "NetworkPolicy"}


# --- services, monitoring and autoscaling ---------------------------------------------------------------------------


def test_chart_services_and_monitors_select_the_pods_that_have_their_ports(everything: list[Document]) -> None:
    services = of_kind(everything, "Service")
    selected = {
        name: {
            pod_name
            for pod_name, pod in pods(everything).items()
            if matches(service["spec"]["selector"], pod["metadata"]["labels"])
        }
        for name, service in services.items()
    }
    assert selected == {"web": {"web"}, "metrics": {"scheduler", "worker-default", "worker-mail", "worker-celery"}}
    for name, service in services.items():
        for pod_name in selected[name]:
            ports = {port["name"] for port in container(pods(everything)[pod_name])["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    monitor = of_kind(everything, "ServiceMonitor")[""]["spec"]
    monitored = [each for each in services.values() if matches(monitor["selector"], each["metadata"]["labels"])]
    assert monitored == [services["metrics"]]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in services["metrics"]["spec"]["ports"]}
    (rule,) = of_kind(everything, "Ingress")["web"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend["name"]) == ("tenuto.example.org", services["web"]["metadata"]["name"])
    assert backend["port"]["name"] in {port["name"] for port in services["web"]["spec"]["ports"]}


def test_chart_contains_the_alert_rules_and_the_dashboard_of_deploy_monitoring(everything: list[Document]) -> None:
    source = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))
    for group in source["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] != "TenutoRepairs"]
    assert of_kind(everything, "PrometheusRule")[""]["spec"] == source
    text = of_kind(everything, "ConfigMap")["dashboard"]["data"]["tenuto.json"]
    assert text == (DEPLOY / "monitoring" / "dashboard.json").read_text(encoding="utf-8")


def test_chart_packages_the_files_of_deploy_monitoring(tmp_path: Path) -> None:
    packaged = run_helm("package", str(CHART), "--destination", str(tmp_path))
    assert packaged.returncode == 0, packaged.stderr
    (archive,) = tmp_path.glob("*.tgz")
    shown = run_helm("template", RELEASE, str(archive), values=EVERYTHING)
    assert "alert: TenutoDatabaseDown" in shown.stdout


def test_chart_scales_the_workers_of_a_queue_by_depth_and_oldest_wait(everything: list[Document]) -> None:
    (scaled,) = of_kind(everything, "ScaledObject").values()
    deployment = of_kind(everything, "Deployment")["worker-mail"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "an upgrade must not undo the autoscaling"
    depth, wait = scaled["spec"]["triggers"]
    assert (depth["metricType"], depth["metadata"]["threshold"]) == ("AverageValue", "20")
    assert (wait["metricType"], wait["metadata"]["threshold"]) == ("Value", "60")
    uses = [{use.name for use in metric_uses(each["metadata"]["query"])} for each in (depth, wait)]
    shared = {"tenuto_build_info"}
    assert uses == [{"tenuto_queue_waiting", "tenuto_leases"} | shared, {"tenuto_queue_oldest_seconds"} | shared]
    for trigger in (depth, wait):  # without scraped processes there is no value, and the fallback applies
        assert "vector(" not in trigger["metadata"]["query"]
        assert trigger["metadata"]["ignoreNullValues"] == "false"
    service = of_kind(everything, "Service")["metrics"]["metadata"]["name"]
    for query in queries(everything):
        for use in metric_uses(query):
            assert (use.equal["namespace"], use.equal["job"]) == (NAMESPACE, service)
        (pattern,) = set(re.findall(r'queue=~"([^"]*)"', query))
        pattern = json.loads(f'"{pattern}"')
        assert all(re.fullmatch(pattern, queue) for queue in ("mail", "re.ports"))
        assert not any(re.fullmatch(pattern, queue) for queue in ("default", "rexports", "mails"))


# --- the same processes, outside a cluster --------------------------------------------------------------------------

JOBS = '''
"""Jobs that leave every kind of trace in the metrics."""

import asyncio
from pathlib import Path

from tenuto import PermanentFailure, Tenuto

app = Tenuto()


@app.job
async def wait_for(folder: str) -> None:
    Path(folder, "started").touch()
    while not Path(folder, "finish").exists():
        await asyncio.sleep(0.05)


@app.job
async def fail() -> None:
    raise PermanentFailure("as expected")


@app.job(queue="unserved")
async def wait() -> None: ...
'''


def test_chart_processes_answer_their_probes_and_report_every_metric_that_is_used(
    shell: Shell, empty_url: str, everything: list[Document]
) -> None:
    rendered = {name: pod for name, pod in pods(everything).items() if name != "worker-mail"}
    (shell.folder / "tasks.py").write_text(JOBS, encoding="utf-8")
    key_file = shell.folder / "master.key"
    key_file.write_text("q4Sf0vXlzJz3mXH0S2n4k7cVh0m0H2n8d5Qb8V6r1wY=\n", encoding="ascii")
    key_file.chmod(0o440)
    here = {
        "TENUTO_DATABASE": empty_url,
        "TENUTO_HOME": shell.environment["TENUTO_HOME"],
        "TENUTO_MASTER_KEY_FILE": str(key_file),
        "TENUTO_METRICS_HOST": "127.0.0.1",
        "TENUTO_METRICS_PORT": "0",
    }

    def variables_of(pod: Document) -> dict[str, str]:
        names = {each["name"] for each in container(pod)["env"]}
        return environment(pod) | {name: value for name, value in here.items() if name in names}

    def start(name: str) -> Service:
        elsewhere = {"0.0.0.0": "127.0.0.1", "8321": "0"}
        arguments = [elsewhere.get(argument, argument) for argument in container(rendered[name])["args"]]
        within = replace(shell, environment=shell.environment | variables_of(rendered[name]))
        return within.start_service(*arguments)

    migrated = shell(*container(rendered["migration"])["args"], **variables_of(rendered["migration"]))
    assert migrated.code == 0, migrated.err
    services = {name: start(name) for name in ("scheduler", "worker-default", "web")}
    addresses = {
        name: f"http://{json.loads(services[name].wait_for_line('metrics endpoint listening'))['address']}"
        for name in ("scheduler", "worker-default")
    }
    addresses["web"] = json.loads(services["web"].wait_for_line("web service started"))["address"].removesuffix("/ops")
    for name in services:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            request = container(rendered[name])[probe]["httpGet"]
            headers = {each["name"]: each["value"] for each in request["httpHeaders"]}
            assert request["port"] in {port["name"] for port in container(rendered[name])["ports"]}
            eventually_blocking(lambda a=addresses[name], r=request, h=headers: _is_ok(f"{a}{r['path']}", h))  # type: ignore[misc]

    assert shell("run", "wait_for", "--input", json.dumps({"folder": str(shell.folder)}), **here).code == 0
    assert shell("run", "wait", **here).code == 0
    assert shell("run", "fail", "--wait", "--timeout", "60", **here).code == 1
    eventually_blocking((shell.folder / "started").exists)
    (endpoint,) = of_kind(everything, "ServiceMonitor")[""]["spec"]["endpoints"]

    def read_metrics(name: str) -> str:
        return httpx2.get(f"{addresses[name]}{endpoint['path']}").text

    def has_all_traces() -> bool:
        text = read_metrics("worker-default")
        traces = ('tenuto_leases{lease="live",queue="default"} 1.0', 'queue_waiting{queue="unserved"} 1.0')
        return all(trace in text for trace in (*traces, 'recent_attempts{reason="error",status="failed"}'))

    eventually_blocking(has_all_traces, timeout=60)
    families = {
        family.name: family
        for name in ("worker-default", "scheduler")
        for family in text_string_to_metric_families(read_metrics(name))
    }
    check_metric_uses(without_extensions([*queries(everything), *rule_queries(), *dashboard_queries()]), families)
    (shell.folder / "finish").touch()
    assert [service.stop() for service in services.values()] == [0, 0, 0]


def _is_ok(address: str, headers: Mapping[str, Any]) -> bool:
    return httpx2.get(address, headers=headers).status_code == 200
