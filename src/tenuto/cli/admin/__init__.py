"""Commands for services, workers, access, secrets and diagnostics."""
