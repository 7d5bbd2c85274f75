"""The audit chain: keys, sealing, checkpoints and verification."""
