"""Definitions in files: systems, metaverse types, sync rules and templates, applied with the schedules of the files."""
