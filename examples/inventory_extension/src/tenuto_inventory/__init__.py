"""Stock levels and orders, as an extension of Tenuto."""
