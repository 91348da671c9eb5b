"""Shaped networks of several workers on one Linux machine, and what really passes through them."""
