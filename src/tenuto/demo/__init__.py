"""Example data for a first look at the dashboard: ``tenuto up --demo``."""
