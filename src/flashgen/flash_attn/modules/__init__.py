"""Modules with the names and signatures of flash_attn.modules."""
