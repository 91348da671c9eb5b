"""Configs of experiments: plain values from TOML files or Python, checked before anything starts."""
