"""A variant's key -> a callable Kernel: the face of the compiled passes."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from ..generator.arch import Target
from ..generator.errors import ArgumentError
from ..generator.spec import Spec
from ..generator.variant import PASSES, Variant
from . import arguments, ops
from .catalogue import Catalogue
from .devices import best_device, target_of
from .loader import CompiledPass, load_passes
from .unit import BuildRequest


class ForwardResult(NamedTuple):
    """What forward gives.

    Attributes:
        out: (batch, seqlen_q, num_heads, head_dim_v), in the inputs' dtype, contiguous.
        lse: natural log of each row's softmax denominator, fp32 (fp64 for fp64),
            (batch, num_heads, seqlen_q); -inf where a row sees no key.
        rng_state: int64 (2,), the (seed, offset) used, on the device; None without dropout.
    """

    out: torch.Tensor
    lse: torch.Tensor
    rng_state: torch.Tensor | None


class Gradients(NamedTuple):
    """What backward gives: gradients shaped as q, k, v, and of captured tensors by name."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    captures: dict[str, torch.Tensor]


def load(
    name: str,
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
        family: templates to use instead of the target's own, such as ``sm80`` on sm90.

    Raises:
        SpecError: when ``name`` is unknown or stands for several variants, which it lists.
        PlanError, ToolchainError, CompileError, CacheError: when building or loading fails.
    """
    entry = Catalogue.load(Path(place) for place in specs).find_one(name)
    place = best_device() if device is None else torch.device(device)
    return Kernel(entry.variant, place, spec=entry.spec, family=family)


class Kernel:
    """A compiled attention function; call it, or its passes by name.

    Tensors have the layout (batch, seqlen, heads, head_dim) and any strides. The last dimension
    should be contiguous, and on a GPU rows should start at multiples of 16 bytes: what isn't so
    is copied. Called with tensors of another device, it loads for that one too.

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
        self.variant = variant
        self.key = variant.key
        self.target: Target = target_of(device)
        self.handle = self.key if family is None else f"{self.key}@{family}"
        self._spec = spec
        self._family = family
        self._passes: dict[tuple[torch.device, str], CompiledPass] = {}
        self._lock = threading.Lock()
        default = spec.passes if spec is not None else PASSES
        self._load(_indexed(device), default if passes is None else passes)
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

        The arguments are those of ``forward``.
        """
        if captures:
            self._refuse(captures)
        call = arguments.prepare(self.variant, q, k, v, softmax_scale, dropout_p, seed, offset)
        out, lse = ops.attend(self, q, k, v, *call)
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
            v: (batch, seqlen_k, num_heads_kv, head_dim_v).
            softmax_scale: what scores are multiplied by; default 1 / sqrt(head_dim).
            dropout_p: probability of dropping an element; needs a variant with dropout.
            seed: of dropout: an int or a 0-dim int64 tensor on the device. Without seed and
                offset, torch's default generator of the device gives both.
            offset: tells calls of the same seed apart, in steps of 4; default 0 with a seed.
            captures: tensors that the variant's expressions read.

        Raises:
            ArgumentError: says which argument is wrong and what was expected.
        """
        if captures:
            self._refuse(captures)
        call = arguments.prepare(self.variant, q, k, v, softmax_scale, dropout_p, seed, offset)
        out, lse = self.run_forward(q, k, v, *call)
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
        if captures:
            self._refuse(captures)
        arguments.check_inputs(self.variant, q, k, v)
        threshold = arguments.threshold_of(self.variant, dropout_p)
        out_shape = torch.Size((*q.shape[:3], v.shape[3]))
        arguments.check_like(self.key, "dout", dout, q, out_shape)
        arguments.check_like(self.key, "out", out, q, out_shape)
        stats = torch.empty(0, dtype=arguments.lse_dtype(q.dtype), device=q.device)
        lse_shape = torch.Size((q.shape[0], q.shape[2], q.shape[1]))
        arguments.check_like(self.key, "lse", lse, stats, lse_shape)
        if dlse is not None:
            arguments.check_like(self.key, "dlse", dlse, stats, lse_shape)
        if threshold:
            arguments.check_rng_state(self.key, rng_state, q.device)
        scale = arguments.scale_of(self.variant, softmax_scale)
        grads = self.run_backward(
            dout, q, k, v, out, lse, dlse, rng_state if threshold else None, scale, threshold
        )
        return Gradients(*grads, captures={})

    def _refuse(self, captures: dict[str, Any]) -> NoReturn:
        raise ArgumentError(
            f"{self.key}: expected no captures, as its spec declares none, got "
            f"{', '.join(captures)}. Remove them, or correct the keyword's spelling."
        )

    def run_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        softmax_scale: float,
        dropout_threshold: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of checked arguments: the operator's implementation."""
        batch, seqlen_q, num_heads, _ = q.shape
        out = _empty((batch, seqlen_q, num_heads, v.shape[3]), q.dtype, q.device)
        lse = _empty((batch, num_heads, seqlen_q), arguments.lse_dtype(q.dtype), q.device)
        if out.numel() == 0 or k.shape[1] == 0:
            return out.zero_(), lse.fill_(-math.inf)
        compiled = self._compiled(q.device, "forward")
        sizes = (batch, num_heads, k.shape[2], seqlen_q, k.shape[1])
        workspace = _empty((compiled.workspace(*sizes),), torch.uint8, q.device)
        q, softmax_scale, _ = arguments.positive_scale(q, softmax_scale)
        tensors = [arguments.usable(tensor) for tensor in (q, k, v)]
        scalars = (softmax_scale, dropout_threshold)
        _launch(compiled, q.device, out, lse, *tensors, rng_state, workspace, *scalars)
        return out, lse

    def run_backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dlse: torch.Tensor | None,
        rng_state: torch.Tensor | None,
        softmax_scale: float,
        dropout_threshold: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) of checked arguments: the operator's implementation."""
        device = q.device
        dq, dk, dv = (_empty(tuple(t.shape), t.dtype, device) for t in (q, k, v))
        if dout.numel() == 0 or k.shape[1] == 0:
            return dq.zero_(), dk.zero_(), dv.zero_()
        compiled = self._compiled(device, "backward")
        sizes = (q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1])
        workspace = _empty((compiled.workspace(*sizes),), torch.uint8, device)
        q, softmax_scale, sign = arguments.positive_scale(q, softmax_scale)
        inputs = [arguments.usable(tensor) for tensor in (dout, q, k, v, out)]
        stats = (lse.contiguous(), None if dlse is None else dlse.contiguous())
        scalars = (softmax_scale, dropout_threshold)
        _launch(compiled, device, dq, dk, dv, *inputs, *stats, rng_state, workspace, *scalars)
        return dq if sign == 1 else dq.mul_(sign), dk, dv

    def _compiled(self, device: torch.device, pass_name: str) -> CompiledPass:
        compiled = self._passes.get((device, pass_name))
        if compiled is None:
            compiled = self._load(device, (pass_name,))[pass_name]
        return compiled

    def _load(self, device: torch.device, passes: Sequence[str]) -> dict[str, CompiledPass]:
        """Load ``passes`` for ``device``; those that aren't built yet are built together."""
        with self._lock:
            target = target_of(device)
            requests = [self._request(target, name) for name in passes]
            loaded = dict(zip(passes, load_passes(requests, device=device), strict=True))
            for name, compiled in loaded.items():
                self._passes[device, name] = compiled
            return loaded

    def _request(self, target: Target, pass_name: str) -> BuildRequest:
        pins = () if self._spec is None else self._spec.pins_for(target.name, pass_name)
        return BuildRequest(self.variant, pass_name, target, self._family, pins)


def _indexed(device: torch.device) -> torch.device:
    """``device`` as tensors spell it: with an index on CUDA."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Every result and workspace is allocated here, so that a test can poison them."""
    return torch.empty(shape, dtype=dtype, device=device)


def _launch(compiled: CompiledPass, device: torch.device, *args: Any) -> None:
    """Call with ``device`` current: a kernel is launched on the current device's context."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            compiled.function(*args)
    else:
        compiled.function(*args)
