"""Step kinds, and the tasks beside the run profiles: deletions, approvals, example data and housekeeping."""
