"""The step kind ``http.call``."""
