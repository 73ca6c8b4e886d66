"""transformers' mask functions -> a mask that says what it is and holds no elements.

transformers describes a mask by nested functions of (batch, head, query, key) before it evaluates
them. What these are made of (causal order, a window, padding, documents) is what kernels take, so
the (batch, 1, queries, keys) tensor is only made for a mask of another kind, or for a reader that
is not flashgen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

MaskFunction = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class MaskParts:
    """What a mask is made of; all of it applies together.

    With d = (key + kv_offset) - (query + q_offset), a query sees a key where -left <= d <= right.

    Attributes:
        left: None for no bound.
        right: None for no bound; 0 is causal.
        documents: int32 (batch, keys), the number of each token's document; None for one.
        keep: bool (batch, keys), False for padding; None without.
        shift: q_offset - kv_offset.
    """

    left: int | None = None
    right: int | None = None
    documents: torch.Tensor | None = None
    keep: torch.Tensor | None = None
    shift: int = 0


class LazyMask(torch.Tensor):
    """A boolean mask (batch, 1, queries, keys) whose elements are made when they are read.

    Attributes:
        parts: what it is made of.
    """

    parts: MaskParts
    _dense: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: type[LazyMask],
        shape: tuple[int, ...],
        device: torch.device,
        parts: MaskParts,
    ) -> LazyMask:
        """A mask of ``parts``."""
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        made.parts, made._dense = parts, None
        return made

    def dense(self) -> torch.Tensor:
        """Its elements, bool (batch, 1, queries, keys); kept once made."""
        if self._dense is None:
            self._dense = _elements(self.parts, tuple(self.shape), self.device)
        return self._dense

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, {self.parts!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on the elements; a mask that is merely passed on stays as it is."""
        if func is torch.ops.aten.detach.default:
            (mask,) = args
            return LazyMask(tuple(mask.shape), mask.device, mask.parts)
        args, kwargs = torch.utils._pytree.tree_map_only(LazyMask, cls.dense, (args, kwargs or {}))
        return func(*args, **kwargs)


def _elements(parts: MaskParts, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """What a mask of ``parts`` holds; not by transformers' vmap, which can't run in a dispatch."""
    _, _, queries, keys = shape
    places = torch.arange(queries, device=device) + parts.shift
    distance = torch.arange(keys, device=device) - places[:, None]
    seen = torch.ones(shape, dtype=torch.bool, device=device)
    if parts.left is not None:
        seen &= distance >= -parts.left
    if parts.right is not None:
        seen &= distance <= parts.right
    if parts.documents is not None:  # as many queries as keys
        seen &= (parts.documents[:, :, None] == parts.documents[:, None, :])[:, None]
    if parts.keep is not None:
        seen &= parts.keep[:, None, None]
    return seen


def parts_of(mask_function: MaskFunction) -> MaskParts | None:
    """What a mask function of transformers.masking_utils is made of; None if of anything else."""
    module, name = getattr(mask_function, "__module__", ""), _outer_name(mask_function)
    if module != "transformers.masking_utils":
        return None
    if name == "causal_mask_function":
        return MaskParts(right=0)
    if name == "bidirectional_mask_function":
        return MaskParts()
    free = _closure(mask_function)
    if name == "and_masks":
        return _all_of(free["mask_functions"])
    if name == "sliding_window_overlay":
        return MaskParts(left=free["sliding_window"] - 1)
    if name == "sliding_window_bidirectional_overlay":
        return MaskParts(left=free["sliding_window"], right=free["sliding_window"])
    return None


def _all_of(functions: tuple[MaskFunction, ...]) -> MaskParts | None:
    """The conjunction of ``functions``."""
    documents = None
    found = []
    for function in functions:
        name = _outer_name(function)
        if name == "packed_sequence_mask_function":
            documents = _closure(function)["packed_sequence_mask"]
        elif name == "remap_positions_for_packed_sequence":
            # tokens of one document have positions that follow each other, so that the order and
            # distance of two positions is that of their places; across documents nothing is seen
            if not any(_outer_name(f) == "packed_sequence_mask_function" for f in functions):
                return None
            found.append(parts_of(_closure(function)["mask_function"]))
        else:
            found.append(parts_of(function))
    whole = MaskParts(documents=None if documents is None else documents.to(torch.int32))
    for parts in found:
        if parts is None or (parts.documents is not None and whole.documents is not None):
            return None
        whole = replace(
            whole,
            left=_nearer(whole.left, parts.left),
            right=_nearer(whole.right, parts.right),
            documents=parts.documents if whole.documents is None else whole.documents,
        )
    return whole


def _nearer(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _outer_name(function: MaskFunction) -> str:
    """The module-level function that ``function`` is, or was made by."""
    return str(getattr(function, "__qualname__", "")).partition(".")[0]


def _closure(function: Any) -> dict[str, Any]:
    """The variables of its maker that ``function`` holds, by name."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))
