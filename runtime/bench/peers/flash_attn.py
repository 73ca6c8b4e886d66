"""FlashAttention 2, 3 and 4, where their packages are installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from ...samples import Inputs
from ..cells import Cell
from .base import Attend, Refusal


class _Package:
    """A module with ``flash_attn_func``, and what its versions have in common.

    Attributes:
        name: what --peers calls it.
        modules: names to import, the first that is there.
        capability: the least compute capability.
        forward_only: those of the modules that have no backward.
    """

    name: str
    modules: Sequence[str]
    capability: tuple[int, int] = (8, 0)
    forward_only: Sequence[str] = ()

    def absent(self, device: torch.device) -> str | None:
        """The import's own words, or what the device lacks."""
        if device.type != "cuda":
            return "for CUDA devices only"
        if torch.cuda.get_device_capability(device) < self.capability:
            return f"for compute capability {'.'.join(map(str, self.capability))} and up"
        try:
            self._module()
        except Exception as error:  # a package built for another torch fails in many ways
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """``flash_attn_func`` with the options of the cell."""
        options = self._options(cell, data.arguments, dropout_p)
        module = self._module()
        function = module.flash_attn_func

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            found = function(q, k, v, **options)
            out: torch.Tensor = found[0] if isinstance(found, tuple) else found
            return out

        return Attend(call, forward_only=module.__name__ in self.forward_only)

    def _module(self) -> ModuleType:
        for index, name in enumerate(self.modules):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError:
                if index == len(self.modules) - 1:
                    raise
        raise AssertionError("modules is never empty")

    def _options(
        self, cell: Cell, arguments: Mapping[str, Any], dropout_p: float
    ) -> dict[str, Any]:
        variant = cell.variant
        if variant.causal == "top_left" and cell.shape.seqlen_q != cell.shape.seqlen_k:
            raise Refusal("causal is bottom-right aligned")
        if variant.body is not None or variant.block_mask is not None or variant.sink:
            raise Refusal("no mask, score or sink of one's own")
        options: dict[str, Any] = {"causal": bool(variant.causal)}
        if variant.deterministic:
            options["deterministic"] = True
        window = variant.window
        if window is not None:
            left, right = window.left, window.right
            if window.runtime:
                left, right = arguments["window_left"], arguments["window_right"]
            options["window_size"] = self._window(left, right)
        if variant.softcap is not None:
            cap = variant.softcap
            options["softcap"] = arguments["softcap"] if isinstance(cap, str) else float(cap)
        if variant.alibi or dropout_p:
            raise Refusal("no alibi and no dropout")
        return options

    def _window(self, left: int | None, right: int | None) -> tuple[int | None, int | None]:
        return (-1 if left is None else left, -1 if right is None else right)


class FlashAttention2(_Package):
    """The package ``flash_attn``."""

    name = "fa2"
    modules = ("flash_attn",)

    def _options(
        self, cell: Cell, arguments: Mapping[str, Any], dropout_p: float
    ) -> dict[str, Any]:
        more: dict[str, Any] = {"dropout_p": dropout_p} if dropout_p else {}
        if cell.variant.alibi:
            more["alibi_slopes"] = arguments["alibi_slopes"]
        plain = replace(cell, variant=replace(cell.variant, alibi=False))
        return super()._options(plain, arguments, 0.0) | more


class FlashAttention3(_Package):
    """FlashAttention 3: ``flash_attn_interface``, or the package ``fa3-fwd``."""

    name = "fa3"
    modules = ("flash_attn_interface", "fa3_fwd_interface")
    capability = (9, 0)
    forward_only = ("fa3_fwd_interface",)


class FlashAttention4(_Package):
    """FlashAttention 4, written in CuTe's Python."""

    name = "fa4"
    modules = ("flash_attn.cute",)
    capability = (9, 0)

    def _window(self, left: int | None, right: int | None) -> tuple[int | None, int | None]:
        return left, right
