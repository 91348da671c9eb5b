"""Configs of experiments: plain values out of TOML files or Python, checked before anything starts."""
