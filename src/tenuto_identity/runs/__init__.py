"""Runs: processors that read a page, decide with the model and write the page in one fenced transaction.

``lifecycle`` begins and ends a run and gives its processor pages; ``import_run``, ``sync_run`` and ``export_run`` are
the processors; ``configuration`` holds the definitions that a run began with; ``step_kinds`` makes them steps.
"""
