"""Operations on definitions: schedules, manifests, and plans of definition files."""
