"""Metrics, readiness, probes and the event feed."""
