"""A variant's key -> a callable Kernel: the face of the compiled passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..generator.errors import ArgumentError
from ..generator.spec import Spec
from ..generator.variant import PASSES, Variant
from . import arguments, ops
from .block_mask import block_mask
from .captures import NO_EXTRAS, Extras, refuse_lost_gradients
from .catalogue import find_for_load
from .devices import device_named
from .passes import PassRunner
from .repeats import repeated


class ForwardResult(NamedTuple):
    """What forward gives.

    Attributes:
        out: (batch, seqlen_q, num_heads, head_dim_v), in the inputs' dtype, contiguous; packed:
            (total_q, num_heads, head_dim_v).
        lse: natural log of each row's softmax denominator, fp32 (fp64 for fp64),
            (batch, num_heads, seqlen_q); packed: (num_heads, total_q). -inf where a row sees no
            key, or the sink alone where there is one.
        rng_state: int64 (2,), the (seed, offset) used, on the device; None without dropout.
    """

    out: torch.Tensor
    lse: torch.Tensor
    rng_state: torch.Tensor | None


class Gradients(NamedTuple):
    """What backward gives: gradients shaped as q, k, v, and of captures and ``sink`` by name."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    captures: dict[str, torch.Tensor]


def load(
    name: str | Path,
    device: torch.device | str | None = None,
    *,
    specs: Sequence[str | Path] = (),
    family: str | None = None,
) -> Kernel:
    """The kernel that ``name`` stands for, its passes loaded, and built where they aren't yet.

    Args:
        name: a key (``d128-bf16-causal``, in a spec or not), a spec's name, a YAML file of one
            variant, or ``file.yaml:NAME``.
        device: where it will run first; the current CUDA device by default, else the CPU.
        specs: folders or files of specs besides the shipped ones and those of FLASHGEN_SPECS.
        family: templates to use instead of the target's own, such as ``sm80`` on sm90; ``sm75``
            on a newer GPU is Turing's kernel as PTX, which the driver compiles.

    Raises:
        ArgumentError: when ``name`` or ``device`` is of no kind that names one.
        SpecError: when ``name`` is unknown or stands for several variants, which it lists.
        PlanError, ToolchainError, CompileError, CacheError: when building or loading fails.
    """
    if not isinstance(name, str | Path):
        raise ArgumentError(
            "load: name: expected a key such as d128-bf16-causal, a spec's name or a YAML file, "
            f"got {type(name).__name__}. `flashgen list` shows them."
        )
    place = device_named(device)
    entry = find_for_load(str(name), (Path(place) for place in specs))
    return Kernel(entry.variant, place, spec=entry.spec, family=family)


class Kernel(PassRunner):
    """A compiled attention function; call it, or its passes by name.

    Tensors have the layout (batch, seqlen, heads, head_dim) and any strides. The last dimension
    should be contiguous, and on a GPU rows should start at multiples of 16 bytes: what isn't so
    is copied. With ``layout: varlen`` they are packed, (total, heads, head_dim), and
    ``cu_seqlens_q`` and ``cu_seqlens_k`` (int32 or int64, (sequences + 1)) say where each sequence
    starts; rows behind the last give 0. Called with tensors of another device, it loads for that
    one too.

    Keyword arguments that a variant has by its spec, and then needs: captures and run-time params
    by their names; ``sink`` (num_heads), a float; ``alibi_slopes`` fp32, (num_heads) or (batch,
    num_heads); ``window_left`` and ``window_right``, ints >= 0 or None for no bound; ``softcap``, a
    positive float; ``block_mask`` bool, (batch or 1, num_heads or 1, blocks of queries, blocks of
    keys).

    Attributes:
        variant: the function.
        key: its name.
        target: what the device it was loaded for runs.
    """

    def __init__(
        self,
        variant: Variant,
        device: torch.device,
        *,
        spec: Spec | None = None,
        family: str | None = None,
        passes: Sequence[str] | None = None,
    ) -> None:
        """Load ``passes`` (default: those of ``spec``, else both) for ``device``."""
        default = spec.passes if spec is not None else PASSES
        wanted = default if passes is None else passes
        super().__init__(variant, device, spec, family, wanted)
        ops.register(self)

    def __repr__(self) -> str:
        return f"Kernel({self.handle!r}, target={self.target.name!r})"

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
        seed: int | torch.Tensor | None = None,
        offset: int | torch.Tensor | None = None,
        return_lse: bool = False,
        **captures: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """``out``, or ``(out, lse)`` with ``return_lse``; differentiable in both.

        The arguments are those of ``forward``. Captures with a gradient, and a learned sink, get
        theirs. Under autocast of the variant's dtype q, k and v are cast to it.
        """
        if not (captures or self._takes_more or return_lse or torch.compiler.is_compiling()):
            out = repeated(self, q, k, v, softmax_scale, dropout_p)
            if out is not None:
                return out
        if arguments.autocast_is_on():
            dtype = arguments.TORCH_DTYPES[self.variant.dtype]
            q, k, v = arguments.cast_in_autocast(q, k, v, only=dtype)
        call = arguments.prepare(self.variant, q, k, v, softmax_scale, dropout_p, seed, offset)
        extras = self._extras(q, k, captures)
        if extras.tensors and torch.is_grad_enabled():
            refuse_lost_gradients(self._signature, extras)
        out, lse = ops.attend(self, q, k, v, *call, extras.tensors, extras.numbers)
        return (out, lse) if return_lse else out

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
        seed: int | torch.Tensor | None = None,
        offset: int | torch.Tensor | None = None,
        **captures: Any,
    ) -> ForwardResult:
        """Attention of q, k, v, with all that ``backward`` needs; not recorded by autograd.

        Args:
            q: (batch, seqlen_q, num_heads, head_dim), in the variant's dtype.
            k: (batch, seqlen_k, num_heads_kv, head_dim); num_heads_kv divides num_heads.
            v: (batch, seqlen_k, num_heads_kv, head_dim_v). With ``layout: varlen`` the three have
                no batch, and total_q and total_k tokens.
            softmax_scale: what scores are multiplied by; default 1 / sqrt(head_dim).
            dropout_p: probability of dropping an element; needs a variant with dropout.
            seed: of dropout: an int or a 0-dim int64 tensor on the device. Without seed and
                offset, torch's default generator of the device gives both.
            offset: tells calls of the same seed apart, in steps of 4; default 0 with a seed.
            captures: the keyword arguments that the variant has by its spec.

        Raises:
            ArgumentError: says which argument is wrong and what was expected.
        """
        call = arguments.prepare(self.variant, q, k, v, softmax_scale, dropout_p, seed, offset)
        extras = self._extras(q, k, captures)
        out, lse = self.run_forward(q, k, v, *call, extras.tensors, extras.numbers)
        return ForwardResult(out, lse, call[0])

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        dlse: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        dropout_p: float = 0.0,
        rng_state: torch.Tensor | None = None,
        **captures: Any,
    ) -> Gradients:
        """Gradients of q, k, v from those of out and lse.

        Args:
            dout: gradient of out.
            q: as given to ``forward``; k, v, softmax_scale and dropout_p too.
            k: likewise.
            v: likewise.
            out: from ``forward``.
            lse: from ``forward``.
            dlse: gradient of lse; None for zero.
            softmax_scale: as given to ``forward``.
            dropout_p: as given to ``forward``.
            rng_state: from ``forward``; needed with dropout.
            captures: as given to ``forward``.

        Raises:
            ArgumentError: says which argument is wrong and what was expected.
        """
        arguments.check_inputs(self.variant, q, k, v)
        extras = self._extras(q, k, captures)
        threshold = arguments.threshold_of(self.variant, dropout_p)
        out_shape = (*q.shape[:-1], v.shape[-1])
        arguments.check_like(self.key, "dout", dout, q, out_shape)
        arguments.check_like(self.key, "out", out, q, out_shape)
        stats = torch.empty(0, dtype=arguments.lse_dtype(q.dtype), device=q.device)
        lse_shape = arguments.lse_shape(q.shape)
        arguments.check_like(self.key, "lse", lse, stats, lse_shape)
        if dlse is not None:
            arguments.check_like(self.key, "dlse", dlse, stats, lse_shape)
        if threshold:
            arguments.check_rng_state(self.key, rng_state, q.device)
        else:
            rng_state = None
        dq, dk, dv, *more = self.run_backward(
            dout, q, k, v, out, lse, dlse, rng_state,
            arguments.scale_of(self.variant, softmax_scale), threshold,
            extras.tensors, extras.numbers,
        )  # fmt: skip
        named = dict(zip(self._signature.gradients, more, strict=True))
        if "sink" in named:
            named["sink"] = named["sink"].to(captures["sink"].dtype)
        return Gradients(dq, dk, dv, named)

    def block_mask(
        self,
        seqlen_q: int,
        seqlen_k: int,
        *,
        batch: int = 1,
        num_heads: int = 1,
        num_heads_kv: int | None = None,
        block: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        **captures: Any,
    ) -> torch.Tensor:
        """Which blocks of queries and keys the mask leaves anything of: what ``block_mask`` takes.

        For a mask that intervals can't see through, give a variant the same mask and
        ``block_mask``, and pass it this map: blocks that are empty are then never loaded. A map
        of one batch and head serves all of them when the mask is the same for all.

        Args:
            seqlen_q: queries of a sequence.
            seqlen_k: keys of a sequence.
            batch: of the map.
            num_heads: of the map.
            num_heads_kv: heads of keys and values; default num_heads.
            block: (queries, keys) of a block; default that of the variant, else (128, 128).
            device: default, that of a captured tensor, else the CPU.
            captures: what the mask reads, without ``block_mask``.

        Returns:
            bool (batch, num_heads, ceil(seqlen_q / block[0]), ceil(seqlen_k / block[1])).

        Raises:
            ArgumentError: when the variant has no mask, or lacks a capture that it reads.
        """
        sizes = (batch, num_heads, num_heads_kv or num_heads, seqlen_q, seqlen_k)
        return block_mask(self.variant, sizes, block, device, captures)

    def _extras(self, q: torch.Tensor, k: torch.Tensor, captures: dict[str, Any]) -> Extras:
        if not captures and not self._takes_more:
            return NO_EXTRAS
        return self._signature.bind(q, k, captures)
