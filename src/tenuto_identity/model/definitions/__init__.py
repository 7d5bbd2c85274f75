"""Definitions in the form of definition files: systems, metaverse types, sync rules and templates."""
