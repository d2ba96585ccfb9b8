"""Fingerprints of checkpoints: invariants with their rounding errors, to index many models."""

from fiberscope.checkpoints.fingerprint.fingerprint import (
    Fingerprint,
    Invariant,
    Likeness,
    Resemblance,
    fingerprint,
    fingerprint_of,
    resemblance,
)

__all__ = [
    "Fingerprint",
    "Invariant",
    "Likeness",
    "Resemblance",
    "fingerprint",
    "fingerprint_of",
    "resemblance",
]
