"""flashgen: specialised attention kernels from declarative specs.

``load``, ``attention`` and ``Kernel`` import torch when they are first touched, so that the
command line stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .generator.version import VERSION as __version__

if TYPE_CHECKING:
    from .runtime.attention import attention
    from .runtime.kernel import ForwardResult, Gradients, Kernel, load

__all__ = ["ForwardResult", "Gradients", "Kernel", "__version__", "attention", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .runtime import attention, kernel

    found = attention.attention if name == "attention" else getattr(kernel, name)
    globals()[name] = found  # the next access doesn't come here
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
