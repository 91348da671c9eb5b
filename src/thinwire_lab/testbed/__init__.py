"""Shaped networks of several workers on one Linux machine, and counts of their traffic."""
