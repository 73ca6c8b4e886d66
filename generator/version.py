"""The version, in the one place that pyproject.toml and the banners read it from."""

VERSION = "0.1.0"
