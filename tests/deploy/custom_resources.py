"""The parts of custom resources that the Helm chart uses, as their documentation describes them.

Fields that are not listed are refused: a misspelt name would be ignored by the cluster.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _resource(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = _object({"name": TEXT}, {"labels": LABELS, "annotations": LABELS})
    return _object(
        {"apiVersion": {"const": api_version}, "kind": {"const": kind}, "metadata": metadata, "spec": spec},
    )


_PROMETHEUS_TRIGGER = _object(
    {
        "type": {"const": "prometheus"},
        "metadata": _object(
            {"serverAddress": TEXT, "query": TEXT, "threshold": TEXT},  # KEDA takes numbers as text
            {"activationThreshold": TEXT, "ignoreNullValues": {"enum": ["true", "false"]}},
        ),
    },
    {"name": TEXT, "metricType": {"enum": ["AverageValue", "Value"]}},
)

SCALED_OBJECT = _resource(
    "keda.sh/v1alpha1",
    "ScaledObject",
    _object(
        {"scaleTargetRef": _object({"name": TEXT}), "triggers": _list(_PROMETHEUS_TRIGGER)},
        {
            "minReplicaCount": COUNT,
            "maxReplicaCount": COUNT,
            "pollingInterval": COUNT,
            "cooldownPeriod": COUNT,
            "fallback": _object({"failureThreshold": COUNT, "replicas": COUNT}),
            "advanced": _object(
                {
                    "horizontalPodAutoscalerConfig": _object(
                        {"behavior": _object({"scaleDown": _object({"stabilizationWindowSeconds": COUNT})})}
                    )
                }
            ),
        },
    ),
)

SERVICE_MONITOR = _resource(
    "monitoring.coreos.com/v1",
    "ServiceMonitor",
    _object(
        {
            "selector": _object({"matchLabels": LABELS}),
            "endpoints": _list(_object({"port": TEXT}, {"path": TEXT, "interval": DURATION})),
        }
    ),
)

_RULE = _object({"alert": TEXT, "expr": TEXT}, {"for": DURATION, "labels": LABELS, "annotations": LABELS})

PROMETHEUS_RULE = _resource(
    "monitoring.coreos.com/v1",
    "PrometheusRule",
    _object({"groups": _list(_object({"name": TEXT, "rules": _list(_RULE)}, {"interval": DURATION}))}),
)

CUSTOM_SCHEMAS = {
    schema["properties"]["kind"]["const"]: schema for schema in (SCALED_OBJECT, SERVICE_MONITOR, PROMETHEUS_RULE)
}
