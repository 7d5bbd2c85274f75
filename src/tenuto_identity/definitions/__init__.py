"""Definitions in files: the lists ``systems``, ``metaverse``, ``sync_rules`` and ``templates``, planned and applied with
the schedules of the same files."""
