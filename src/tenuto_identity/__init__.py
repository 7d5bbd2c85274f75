"""Identity synchronisation: connected systems, sync rules, runs. An extension of Tenuto without privileges.

Packages, from the lowest: ``model`` (pure values and decisions), ``connectors`` (readers and writers of external
stores), ``store`` (the only SQL), ``runs`` (processors: read a page, decide, write a page), ``definitions`` (lists of
definition files), ``operations`` (use cases), ``api``, ``cli`` and ``pages`` (interfaces), ``extension`` (the entry
point). Tenuto itself never imports this package.
"""
