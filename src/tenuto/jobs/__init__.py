"""Jobs: the registry, the context given to their code, and the runners that start, stop and observe that code.

Nothing here claims tasks or runs SQL.
"""
