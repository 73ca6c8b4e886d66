"""Toolchain, build, cache, loading and the PyTorch face of the compiled kernels."""
