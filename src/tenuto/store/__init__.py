"""SQL of Tenuto: convert rows to model values and back. No decisions and no polling loops."""
