"""Rows of access control: API keys, audit log, idempotency keys and secrets."""
