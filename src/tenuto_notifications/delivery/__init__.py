"""Delivery of messages by tasks."""
