"""flashgen: specialised attention kernels from declarative specs.

What ``__all__`` names beside the version imports torch when it is first touched, so that the
command line stays quick.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .generator.version import VERSION as __version__

IMPORTED_NS = time.time_ns()  # modules are what their files were then

if TYPE_CHECKING:
    from .runtime.attention import attention
    from .runtime.kernel import ForwardResult, Gradients, Kernel, load
    from .runtime.sdpa import scaled_dot_product_attention

__all__ = [
    "ForwardResult",
    "Gradients",
    "Kernel",
    "__version__",
    "attention",
    "load",
    "scaled_dot_product_attention",
]


def __getattr__(name: str) -> Any:
    if name == "flash_attn":  # `import flashgen` alone is enough for flashgen.flash_attn.install()
        return import_module(f"{__name__}.flash_attn")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .runtime import attention, kernel, sdpa

    places = {"attention": attention, "scaled_dot_product_attention": sdpa}
    found = getattr(places.get(name, kernel), name)
    globals()[name] = found  # the next access doesn't come here
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
