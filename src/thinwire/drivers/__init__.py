"""Drivers carry programs; algorithms never know which one. `loopback`, a world of one, is in core."""
