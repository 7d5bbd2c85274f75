"""Commands for schedules, manifests and definition files."""
