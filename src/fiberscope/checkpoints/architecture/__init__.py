"""Architectures as data: roles, wiring, and the strict reading of their configurations."""
