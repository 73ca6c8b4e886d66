"""flashgen: specialised attention kernels from declarative specs."""

from .generator.version import VERSION as __version__

__all__ = ["__version__"]
