-- Whose values a preview may not show: decided when it runs. Without a decision (NULL) all values are hidden.
ALTER TABLE tenuto_identity.previews
    ADD COLUMN has_definitions boolean NOT NULL DEFAULT true,
    ADD COLUMN sensitive_attributes text[];
