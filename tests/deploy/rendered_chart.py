"""Renders the Helm chart with the real helm, and finds its parts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "tenuto"
NAMESPACE = "jobs"
RELEASE = "acme"

Document = dict[str, Any]

EVERYTHING: Document = {
    "settings": {"retention_days": 30, "sweep_seconds": 2.5, "http_allowed_hosts": ["a.example", "b.example"]},
    "workers": {
        "default": {"queues": ["default"]},
        "mail": {
            "queues": ["mail", "re.ports"],
            "slots": 20,
            "graceSeconds": 600,
            "settings": {"worker_lease_seconds": 15, "log_level": "debug"},
            "autoscaling": {"enabled": True, "minReplicas": 0},
        },
        "celery": {
            "queues": ["remote"],
            "executor": {
                "name": "celery",
                "address": {"secretName": "broker-login"},
                "from": [{"podSelector": {"matchLabels": {"app": "celery"}}}],
            },
        },
    },
    "migration": {"database": {"secretName": "owner-login"}},
    "web": {
        "readonlyDatabase": {"secretName": "replica-login"},
        "hosts": ["tenuto.example.org"],
        "proxies": ["10.0.0.0/8"],
        "settings": {"web_path": "/ops", "metrics_public": True},
        "ingress": {"enabled": True, "tlsSecretName": "tenuto-tls"},
    },
    "networkPolicy": {"databaseTo": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True, "disabled": ["TenutoRepairs"]},
        "dashboard": {"enabled": True},
    },
}
"""Values that make the chart create everything it can."""


def find_helm() -> str:
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed; its package has a build for Linux on x86-64 only")
    return found


def run_helm(*arguments: str, values: Document | None = None) -> subprocess.CompletedProcess[str]:
    given = ["--values", "-"] if values is not None else []
    return subprocess.run(
        [find_helm(), *arguments, *given], input=json.dumps(values), capture_output=True, text=True, timeout=60
    )


def render(values: Document | None = None) -> list[Document]:
    """Return the documents of the chart, hooks included."""
    done = run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, values=values or {})
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refuse(values: Document) -> str:
    """Return the error with which the chart refuses the values."""
    done = run_helm("template", RELEASE, str(CHART), values=values)
    assert done.returncode != 0
    return done.stderr


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    """Return the documents of a kind by name, without the name of the release."""
    prefix = f"{RELEASE}-tenuto"
    found = [document for document in documents if document["kind"] == kind]
    return {document["metadata"]["name"].removeprefix(prefix).removeprefix("-"): document for document in found}


def pods(documents: list[Document]) -> dict[str, Document]:
    """Return the pod templates of deployments and jobs by name."""
    owners = of_kind(documents, "Deployment") | of_kind(documents, "Job")
    return {name: owner["spec"]["template"] for name, owner in owners.items()}


def container(pod: Document) -> Document:
    (found,) = pod["spec"]["containers"]
    result: Document = found
    return result


def environment(pod: Document) -> dict[str, str]:
    """Return the variables of a pod that have a value."""
    return {each["name"]: each["value"] for each in container(pod)["env"] if "value" in each}


def matches(selector: Document, labels: Document) -> bool:
    wanted = selector.get("matchLabels", selector)
    return bool(wanted) and wanted.items() <= labels.items()


def queries(documents: list[Document]) -> Iterator[str]:
    """Yield the queries of the autoscaling."""
    for scaled in of_kind(documents, "ScaledObject").values():
        for trigger in scaled["spec"]["triggers"]:
            yield trigger["metadata"]["query"]
