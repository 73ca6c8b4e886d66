"""Layers with the names and signatures of flash_attn.layers."""
