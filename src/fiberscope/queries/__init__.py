"""Oracles that answer questions about a hidden function, and recovery of attention from them."""
