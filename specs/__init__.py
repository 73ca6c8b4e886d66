"""The shipped catalogue of variants: YAML files."""
