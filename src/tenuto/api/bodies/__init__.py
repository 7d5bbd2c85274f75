"""Bodies of requests and responses: strict JSON, definitions, and models that several routes share."""
