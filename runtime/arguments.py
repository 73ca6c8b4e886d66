"""A call's arguments -> checked tensors and scalars that a compiled pass may be given."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NoReturn

import torch

from ..generator.errors import ArgumentError
from ..generator.variant import Variant
from .philox import dropout_threshold, wrap_int64

TORCH_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
ALIGNMENT_BYTES = 16  # GPU kernels copy rows in 16-byte pieces
_MAX_INT64 = (1 << 63) - 1


def shown(value: object) -> str:
    """``value`` as an error names it: a number of hundreds of digits is cut short."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of lse for inputs of ``dtype``: fp32, or fp64 for fp64."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def lse_shape(q_shape: torch.Size) -> tuple[int, ...]:
    """The shape of lse: (batch, num_heads, seqlen_q), or (num_heads, total_q) of packed queries."""
    if len(q_shape) == 4:
        batch, seqlen_q, num_heads, _ = q_shape
        return batch, num_heads, seqlen_q
    total_q, num_heads, _ = q_shape
    return num_heads, total_q


def prepare(
    variant: Variant,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    dropout_p: float,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, float, int]:
    """(rng_state, softmax_scale, dropout_threshold) of a forward call, all of it checked.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    check_inputs(variant, q, k, v)
    scale = scale_of(variant, softmax_scale)
    threshold = threshold_of(variant, dropout_p)
    return rng_state_of(q.device, seed, offset) if threshold else None, scale, threshold


# Of any kind of device, so that a call needs no look at its tensors where it is off everywhere.
autocast_is_on = torch._C._is_any_autocast_enabled


def cast_in_autocast(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, only: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in autocast's dtype where it is on, as torch casts its own attention's.

    What is no tensor of floats stays as it is, for a later check to tell; fp64 too. With ``only``
    nothing is cast where autocast has another dtype.
    """
    if not (isinstance(q, torch.Tensor) and torch.is_autocast_enabled(q.device.type)):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    if only is not None and only is not dtype:
        return q, k, v
    return _in_dtype(q, dtype), _in_dtype(k, dtype), _in_dtype(v, dtype)


def _in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.dtype in (dtype, torch.float64):
        return tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def check_inputs(variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise an ArgumentError unless q, k and v suit ``variant`` and each other."""
    dtype = TORCH_DTYPES[variant.dtype]
    try:
        if variant.layout == "dense":
            batch, _, num_heads, head_dim = q.shape
            batch_k, seqlen_k, num_heads_kv, head_dim_k = k.shape
            v_shape = (batch, seqlen_k, num_heads_kv, variant.head_dim_v)
            fits = batch == batch_k and v.shape == v_shape
        else:
            _, num_heads, head_dim = q.shape
            total_k, num_heads_kv, head_dim_k = k.shape
            fits = v.shape == (total_k, num_heads_kv, variant.head_dim_v)
        if (
            fits
            and q.dtype is k.dtype is v.dtype is dtype
            and head_dim == head_dim_k == variant.head_dim
            and (num_heads == 0 if num_heads_kv == 0 else num_heads % num_heads_kv == 0)
            and q.device == k.device == v.device
            and q.layout == k.layout == v.layout == torch.strided
        ):
            return
    except (AttributeError, ValueError):
        pass  # no tensor, or of another rank: told below
    _explain_inputs(variant, q, k, v)


def _explain_inputs(variant: Variant, q: object, k: object, v: object) -> NoReturn:
    """Say what is wrong with q, k or v."""
    key, dtype = variant.key, TORCH_DTYPES[variant.dtype]
    sizes = {"q": variant.head_dim, "k": variant.head_dim, "v": variant.head_dim_v}
    packed = variant.layout == "varlen"
    layout = "(total, heads, head_dim)" if packed else "(batch, seqlen, heads, head_dim)"
    rank = 3 if packed else 4
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        where = f"{key}: {name}"
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{where}: expected a torch.Tensor, got {type(tensor).__name__}.")
        if tensor.layout != torch.strided:
            raise ArgumentError(
                f"{where}: expected a dense tensor, got {tensor.layout}. Call to_dense()."
            )
        if tensor.dim() != rank:
            remedy = "Pack the sequences" if packed else "Add the missing ones with unsqueeze"
            raise ArgumentError(
                f"{where}: expected {rank} dimensions {layout}, got shape "
                f"{tuple(tensor.shape)}. {remedy}."
            )
        if tensor.dtype != dtype:
            raise ArgumentError(
                f"{where}: expected dtype {dtype}, got {tensor.dtype}. Convert it, or load the "
                "variant of its dtype."
            )
        if tensor.shape[-1] != sizes[name]:
            raise ArgumentError(
                f"{where}: expected head_dim {sizes[name]}, got {tensor.shape[-1]}. Load the "
                "variant of that size, or call flashgen.attention, which pads sizes that are no "
                "multiple of 8."
            )
    assert isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor)
    assert isinstance(v, torch.Tensor)
    _explain_pairing(key, layout, q, k, v)


def _explain_pairing(
    key: str, layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> NoReturn:
    """Say what does not go together of q, k and v, which are right alone."""
    packed = q.dim() == 3
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ArgumentError(
                f"{key}: {name}: expected device {q.device} as q, got {tensor.device}. Move it."
            )
        if not packed and tensor.shape[0] != q.shape[0]:
            raise ArgumentError(
                f"{key}: {name}: expected batch {q.shape[0]} as q, got {tensor.shape[0]}. The "
                f"layout is {layout}."
            )
    for dim, what in ((-3, "total_k" if packed else "seqlen_k"), (-2, "num_heads_kv")):
        if v.shape[dim] != k.shape[dim]:
            raise ArgumentError(
                f"{key}: v: expected {what} {k.shape[dim]} as k, got {v.shape[dim]}. The layout "
                f"is {layout}."
            )
    raise ArgumentError(
        f"{key}: q: expected num_heads to be a multiple of num_heads_kv {k.shape[-2]}, got "
        f"{q.shape[-2]}. The layout is {layout}."
    )


def check_like(
    key: str, name: str, tensor: object, like: torch.Tensor, shape: tuple[int, ...]
) -> None:
    """Raise an ArgumentError unless ``tensor`` has ``shape`` and the dtype, device of ``like``."""
    where = f"{key}: {name}"
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{where}: expected a torch.Tensor, got {type(tensor).__name__}.")
    if tensor.shape != shape:
        raise ArgumentError(
            f"{where}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}. Pass what "
            "forward gave, or its gradient."
        )
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ArgumentError(
            f"{where}: expected {like.dtype} on {like.device}, got {tensor.dtype} on "
            f"{tensor.device}. Pass what forward gave, or its gradient."
        )


def scale_of(variant: Variant, softmax_scale: float | None) -> float:
    """``softmax_scale`` as a float; 1 / sqrt(head_dim) by default.

    Raises:
        ArgumentError: when it is no finite number.
    """
    if softmax_scale is None:
        return 1 / math.sqrt(variant.head_dim)
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, int | float):
        raise ArgumentError(
            f"{variant.key}: softmax_scale: expected a float or None, got "
            f"{type(softmax_scale).__name__}. A tensor would need a sync: pass its .item()."
        )
    accumulator = lse_dtype(TORCH_DTYPES[variant.dtype])
    largest = torch.finfo(accumulator).max / 2  # kernels multiply it by log2(e)
    if not -largest <= softmax_scale <= largest:
        raise ArgumentError(
            f"{variant.key}: softmax_scale: expected a finite number of {accumulator}, got "
            f"{shown(softmax_scale)}. Leave it out for 1 / sqrt(head_dim)."
        )
    return float(softmax_scale)


def threshold_of(variant: Variant, dropout_p: float) -> int:
    """The integer threshold of ``dropout_p``; 0 without dropout.

    Raises:
        ArgumentError: when it is no probability, the variant has no dropout, or it would round
            to 0 or 1.
    """
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float):
        raise ArgumentError(
            f"{variant.key}: dropout_p: expected a float, got {type(dropout_p).__name__}."
        )
    if dropout_p == 0:
        return 0
    if not variant.dropout and 0 < dropout_p <= 1:
        raise ArgumentError(
            f"{variant.key}: dropout_p: expected 0, as this variant has no dropout, got "
            f"{dropout_p}. Load its variant with dropout."
        )
    return dropout_threshold(dropout_p, variant.dropout_bits or 8)


def rng_state_of(
    device: torch.device, seed: int | torch.Tensor | None, offset: int | torch.Tensor | None
) -> torch.Tensor:
    """The pair (seed, offset) as int64 (2,) on ``device``.

    Without a seed, both come from torch's default generator of the device, on the device: no
    sync, and a captured CUDA graph draws anew at each replay. A seed alone has offset 0.

    Args:
        device: of the call's tensors.
        seed: an int in [-2^63, 2^64) or a 0-dim int64 tensor on ``device``.
        offset: likewise.

    Raises:
        ArgumentError: when one is neither.
    """
    if seed is None and offset is None:
        return torch.randint(0, _MAX_INT64, (2,), dtype=torch.int64, device=device)
    words = [_word("seed", seed, device), _word("offset", 0 if offset is None else offset, device)]
    if device.type == "cpu" and all(isinstance(word, int) for word in words):
        return torch.tensor(words, dtype=torch.int64)
    state = torch.empty(2, dtype=torch.int64, device=device)
    for slot, word in zip(state.unbind(), words, strict=True):
        # fills are launches with the value in their arguments: no copy from the host, no sync
        if word is None:
            slot.random_()
        elif isinstance(word, int):
            slot.fill_(word)
        else:
            slot.copy_(word)
    return state


def _word(
    name: str, value: int | torch.Tensor | None, device: torch.device
) -> int | torch.Tensor | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and value.dtype == torch.int64 and value.device == device:
            return value
        raise ArgumentError(
            f"{name}: expected a 0-dim torch.int64 tensor on {device}, got shape "
            f"{tuple(value.shape)}, {value.dtype} on {value.device}. Or pass an int."
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(
            f"{name}: expected an int or a 0-dim torch.int64 tensor, got {type(value).__name__}."
        )
    if not -(1 << 63) <= value < (1 << 64):
        raise ArgumentError(f"{name}: expected an int in [-2**63, 2**64), got {shown(value)}.")
    return wrap_int64(value)


def check_rng_state(key: str, state: object, device: torch.device) -> None:
    """Raise an ArgumentError unless ``state`` is an int64 (2,) tensor on ``device``."""
    if not isinstance(state, torch.Tensor):
        raise ArgumentError(
            f"{key}: rng_state: expected the tensor that forward gave, got "
            f"{type(state).__name__}. With dropout, backward needs the same state."
        )
    if state.shape != (2,) or state.dtype != torch.int64 or state.device != device:
        raise ArgumentError(
            f"{key}: rng_state: expected torch.int64 of shape (2,) on {device}, got "
            f"{state.dtype} of shape {tuple(state.shape)} on {state.device}."
        )


def positive_scale(q: torch.Tensor, softmax_scale: float) -> tuple[torch.Tensor, float, int]:
    """(q * sign, a positive scale, sign) with the same scores; dq is to be multiplied by sign.

    Kernels take the largest unscaled score of a row as the shift of its exponents, which a scale
    of 0 or below would make the smallest. Where it is positive, as ever, nothing is copied.
    """
    if softmax_scale > 0:
        return q, softmax_scale, 1
    sign = -1 if softmax_scale < 0 else 0
    return q * sign, -softmax_scale or 1.0, sign


def usable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself where a kernel can read it, else a contiguous copy.

    A kernel needs a contiguous last dimension and, on a GPU, rows that start at multiples of
    16 bytes and have memory of their own (sm90's tensor maps know no stride of 0 between rows).
    Every other stride is taken as it is.
    """
    is_cuda = tensor.is_cuda
    if (
        tensor.is_contiguous()
        or _readable(tensor.shape, tensor.stride(), tensor.element_size() if is_cuda else 0)
    ) and not (is_cuda and tensor.data_ptr() % ALIGNMENT_BYTES):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=4096)
def _readable(shape: tuple[int, ...], strides: tuple[int, ...], element_bytes: int) -> bool:
    """Whether a kernel takes these strides; ``element_bytes`` is 0 on the CPU."""
    if strides[-1] != 1 and shape[-1] > 1:
        return False
    if not element_bytes:
        return True
    if shape[-3] > 1 and strides[-3] == 0:
        return False
    step = ALIGNMENT_BYTES // element_bytes
    rows = zip(shape[:-1], strides[:-1], strict=True)
    return all(size <= 1 or stride % step == 0 for size, stride in rows)
