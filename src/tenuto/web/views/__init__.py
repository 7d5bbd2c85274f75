"""Views: one module per page. Each loads a model by operations and renders it."""
