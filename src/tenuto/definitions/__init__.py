"""Versioned definitions of schedules and manifests: from code, from files, and changed by operators."""
