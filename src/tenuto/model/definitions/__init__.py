"""Values of definitions: schedules, manifests, steps, policies, and what keeps a definition from running."""
