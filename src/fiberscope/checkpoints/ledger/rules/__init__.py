"""Symmetry rules, each local to points, segments, attentions or MLPs."""
