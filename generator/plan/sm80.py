"""Variant -> plan of the cpu family."""
