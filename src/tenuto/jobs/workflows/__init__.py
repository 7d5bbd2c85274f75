"""Durable steps: what chains and workflows share, and the run of a workflow."""
