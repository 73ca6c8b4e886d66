"""Candidates -> the plan that is fastest on this device, kept in the cache and used by `load`."""
