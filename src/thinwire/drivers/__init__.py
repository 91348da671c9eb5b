"""Drivers run programs and transports carry messages; algorithms do not depend on which one is used.

`loopback`, which answers each request of one program with its own data, is in core.
"""
