"""The worker: claims tasks, has an executor run them, and writes every outcome."""
