"""Runs: processors that read a page, decide with the model and write the page in one fenced transaction.

``run_lifecycle`` begins and ends a run and gives its processor pages; ``imports``, ``sync_run`` and ``export_run`` are
the processors; ``definition_snapshot`` holds the definitions that a run began with.
"""
