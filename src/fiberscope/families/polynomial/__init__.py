"""Polynomial networks: dimensions, symmetries, canonical forms, identifiability, recovery."""
