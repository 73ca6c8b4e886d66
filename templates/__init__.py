"""The kernel templates by family, and the plain headers that rendered sources include."""
