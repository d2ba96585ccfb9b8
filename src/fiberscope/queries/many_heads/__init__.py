"""Many attention heads from queries: in ball arithmetic, and in floating point."""
