"""Routes of administration: API keys, secrets, audit log, named logs and the web service itself."""
