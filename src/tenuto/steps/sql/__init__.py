"""The step kind ``sql``."""
