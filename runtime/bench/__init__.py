"""Cells and peers -> records of speed, memory and host time, their tables and plots."""
