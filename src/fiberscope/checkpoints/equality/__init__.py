"""Whether two checkpoints are the same function: alignment, calibrated statistics, verdict."""
