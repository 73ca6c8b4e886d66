"""A call's variant, options and tensors -> its kernel, built on first use, and its result.

Calls that are alike (the same shapes, dtypes, devices and options) share a Plan, so that only the
first of them chooses, checks and looks up anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.nn.functional import pad

from ..generator.variant import PASSES, Variant, parse_key
from . import arguments, bodies, ops
from .captures import NO_EXTRAS, Signature, refuse_lost_gradients, signature_of
from .catalogue import find_for_load
from .kernel import Kernel
from .repeats import repeated

Found: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # out, lse, rng_state
NOTHING: Mapping[str, Any] = {}
_MAX_PLANS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What calls that are alike share.

    Attributes:
        kernel: of their variant, for their device.
        softmax_scale: checked.
        dropout_threshold: 0 without dropout.
        pads: whether their heads are smaller than the kernel's.
        head_dim_v: of their values.
        signature: of the variant where tensors besides q, k, v are to be checked at each call;
            None where there are none, or the options say all of them.
        numbers: the variant's run-time params, without a signature.
        heads_first: q, k, v and out are (batch, heads, seqlen, head_dim).
        mask_layout: (sizes, strides) in which the kernel reads a mask; None where that isn't known.
        repeats: whether `again` may have a result.
    """

    kernel: Kernel
    softmax_scale: float
    dropout_threshold: int
    pads: bool
    head_dim_v: int
    signature: Signature | None
    numbers: tuple[int | float, ...]
    heads_first: bool
    mask_layout: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    repeats: bool = False

    def again(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
        """``out`` alone, of a call that is nothing but q, k and v; None where that is not known."""
        if not self.repeats:
            return None
        return repeated(self.kernel, q, k, v, self.softmax_scale, 0.0, self.heads_first)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        given: Mapping[str, Any] = NOTHING,
        tensors: tuple[torch.Tensor, ...] = (),
    ) -> Found:
        """(out, lse, rng_state) of a call that the plan is for.

        Args:
            q: any head size up to the kernel's; k and v too.
            k: likewise.
            v: likewise.
            given: the variant's keyword arguments, where there is a signature.
            tensors: those of them that are tensors, where there is none.
        """
        numbers = self.numbers
        if self.pads:
            q, k, v = pad_heads(self.kernel.variant, q, k, v)
        threshold = self.dropout_threshold
        rng_state = arguments.rng_state_of(q.device, None, None) if threshold else None
        if self.signature is not None:
            extras = self.signature.bind(q, k, given)
            tensors, numbers = extras.tensors, extras.numbers
            if torch.is_grad_enabled():
                refuse_lost_gradients(self.signature, extras)
        scalars = (self.softmax_scale, threshold)
        out, lse = ops.attend(
            self.kernel, q, k, v, rng_state, *scalars, tensors, numbers, self.heads_first
        )
        return out[..., : self.head_dim_v] if self.pads else out, lse, rng_state


_plans: dict[tuple[Any, ...], Plan] = {}


def known_plan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]
) -> Plan | None:
    """The plan of earlier calls like this one; None if there were none, or in a trace.

    Args:
        q: of any kind; what isn't a tensor has no plan.
        k: likewise.
        v: likewise.
        options: all that decides the variant and the numbers of the call besides the tensors.
    """
    if torch.compiler.is_compiling() or type(q) not in ops.PLAIN_TENSORS:
        return None
    try:
        return _plans.get(_plan_key(q, k, v, options))
    except (AttributeError, TypeError):  # no tensors, or options of no kind to remember
        return None


def _plan_key(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]
) -> tuple[Any, ...]:
    return (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
        q.layout, k.layout, v.layout, torch.is_grad_enabled(), options,
        *map(type, options),  # 1 is not True: only one of them may be what an option wants
    )  # fmt: skip


def call_variant(
    variant: Variant,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    dropout_p: float,
    given: Mapping[str, Any],
    *,
    mark: str = "",
    heads_first: bool = False,
    options: tuple[Any, ...] | None = None,
    tensors_known: bool = False,
) -> Found:
    """(out, lse, rng_state) by the kernel of ``variant``; differentiable in out and lse.

    Args:
        variant: of presets, with the head sizes of q and v rounded up to what kernels are made for.
        q: as ``Kernel.forward`` takes it, but of any head size up to the variant's; k and v too.
        k: likewise.
        v: likewise.
        softmax_scale: default 1 / sqrt of the head size that q has.
        dropout_p: as ``Kernel.forward`` takes it.
        given: the keyword arguments that the variant has by its spec.
        mark: what the key has behind the presets; of `bodies.mark_of`.
        heads_first: q, k, v and the result are (batch, heads, seqlen, head_dim).
        options: as `known_plan` takes them, to find this call's plan again; None to forget it.
        tensors_known: whether ``options`` say all about the tensors that are given.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    if softmax_scale is None:
        softmax_scale = 1 / math.sqrt(q.shape[-1])
    key, asked, head_dim_v = variant.key + mark, (q, k, v), v.shape[-1]
    pads = variant.head_dim != q.shape[-1] or variant.head_dim_v != head_dim_v
    if pads:
        q, k, v = pad_heads(variant, q, k, v)
    seq_q, seq_k, seq_v = (t.transpose(1, 2) if heads_first else t for t in (q, k, v))
    arguments.check_inputs(variant, seq_q, seq_k, seq_v)
    scale = arguments.scale_of(variant, softmax_scale)
    threshold = arguments.threshold_of(variant, dropout_p)
    signature, extras = None, NO_EXTRAS
    if given:
        signature = _signature(key)
        extras = signature.bind(seq_q, seq_k, given)
        if torch.is_grad_enabled():
            refuse_lost_gradients(signature, extras)
    if torch.compiler.is_compiling() or type(q) not in ops.PLAIN_TENSORS:
        rng_state = arguments.rng_state_of(q.device, None, None) if threshold else None
        rest = (rng_state, scale, threshold, extras.tensors, extras.numbers, heads_first)
        out, lse = ops.traced(_handle(key, str(q.device)), q, k, v, *rest)
        return out[..., :head_dim_v] if pads else out, lse, rng_state
    kernel = find_kernel(key, q.device, passes_needed())  # builds: so after every check
    if tensors_known or not extras.tensors:
        signature = None
    plan = Plan(
        kernel, scale, threshold, pads, head_dim_v, signature, extras.numbers, heads_first,
        _mask_layout(extras.tensors) if tensors_known else None,
        not (pads or threshold or given),
    )  # fmt: skip
    if options is not None:
        remember(plan, *asked, options)
    return plan(*asked, given, extras.tensors)


def remember(
    plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: tuple[Any, ...]
) -> None:
    """Let `known_plan` find ``plan`` for calls like this one."""
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    try:
        _plans[_plan_key(q, k, v, options)] = plan
    except TypeError:  # options of no kind to remember, such as a list
        return


def forget() -> None:
    """Let the next call of each kind look everything up anew, as in a fresh process."""
    _plans.clear()
    find_kernel.cache_clear()


def _mask_layout(
    tensors: Sequence[torch.Tensor],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Of the one tensor of a call, if it is read and no more."""
    if len(tensors) != 1 or tensors[0].requires_grad:
        return None
    return tuple(tensors[0].shape), tensors[0].stride()


def passes_needed() -> tuple[str, ...]:
    """Both passes where a gradient may be asked for: nothing waits for one that isn't."""
    return PASSES if torch.is_grad_enabled() else PASSES[:1]


@cache
def find_kernel(key: str, device: torch.device, passes: tuple[str, ...]) -> Kernel:
    """The kernel of ``key``, with ``passes`` built and loaded for ``device``."""
    return make_kernel(key, device, passes)


def make_kernel(
    key: str, device: torch.device, passes: tuple[str, ...], family: str | None = None
) -> Kernel:
    """`find_kernel`, anew."""
    variant, spec = bodies.variant_of(key), None
    if variant is None:
        entry = find_for_load(key, ())
        variant, spec = entry.variant, entry.spec
    return Kernel(variant, device, spec=spec, family=family, passes=passes)


def find_signature(key: str) -> Signature:
    """How calls of the variant of ``key`` are made."""
    return signature_of(bodies.variant_of(key) or parse_key(key))


def find_handle(key: str, device: str) -> str:
    """The handle of the kernel of ``key``, built and loaded for ``device``."""
    return find_kernel(key, torch.device(device), PASSES).handle


def _signature(key: str) -> Signature:
    """`find_signature`; a constant to torch.compile."""
    if torch.compiler.is_compiling():
        from .constants import constant_signature

        return constant_signature(key)
    return find_signature(key)


def _handle(key: str, device: str) -> str:
    """`find_handle`; a constant to torch.compile."""
    if torch.compiler.is_compiling():
        from .constants import constant_handle

        return constant_handle(key, device)
    return find_handle(key, device)


def pad_heads(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v with zeros up to the head sizes of ``variant``."""
    more, more_v = variant.head_dim - q.shape[-1], variant.head_dim_v - v.shape[-1]
    if more:
        q, k = pad(q, (0, more)), pad(k, (0, more))
    return q, k, pad(v, (0, more_v)) if more_v else v
