"""Rows of versioned definitions: schedules and manifests."""
