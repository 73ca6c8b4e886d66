"""Hosts that call attention -> flashgen's kernels: one module for each host."""
