"""Variants of a spec -> an error where its fields make no sense together, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from .arch import TARGETS
from .spec_fields import SpecFields
from .variant import GPU_DTYPES, Variant
from .yaml_source import Document

_OF_DENSE = {"seqlen_q": "total_q", "seqlen_k": "total_k"}
_OF_VARLEN = {total: seqlen for seqlen, total in _OF_DENSE.items()}


def check_sense(
    document: Document, fields: SpecFields, variants: Sequence[Variant], arch: Sequence[str]
) -> None:
    """Refuse combinations that no call could mean.

    Raises:
        SpecError: at the field to change, with the reason.
    """
    layouts: set[str] = {variant.layout for variant in variants}
    _check_dims(document, fields, layouts)
    _check_dtypes(document, fields, arch)
    if "varlen" in layouts and variants[0].block_mask is not None:
        raise document.error(
            document.key_mark(("block_mask",)),
            "block_mask: expected layout: dense, got varlen: the blocks are counted from the "
            "start of seqlen_q and seqlen_k, which packed sequences have one each of. Write a "
            "mask over a capture of total_k.",
        )


def _check_dims(document: Document, fields: SpecFields, layouts: set[str]) -> None:
    for name, capture in fields.captures.items():
        for index, dim in enumerate(capture.dims):
            mark = document.value_mark(("captures", name, "dims", index))
            where = f"captures.{name}.dims[{index}]"
            if dim in _OF_DENSE and "varlen" in layouts:
                raise document.error(
                    mark,
                    f"{where}: expected {_OF_DENSE[str(dim)]} with layout: varlen, got {dim}: "
                    "packed sequences have a length each. Write the packed tensor's size.",
                )
            if dim in _OF_VARLEN and "dense" in layouts:
                raise document.error(
                    mark,
                    f"{where}: expected {_OF_VARLEN[str(dim)]} with layout: dense, got {dim}, "
                    "which only packed sequences have. Write the other, or layout: varlen.",
                )


def _check_dtypes(document: Document, fields: SpecFields, arch: Sequence[str]) -> None:
    if not arch or "cpu" in arch:
        return
    several = isinstance(fields.dtype, list)
    targets = [TARGETS[name] for name in arch if name in TARGETS]  # not native
    runs = [
        d for d in GPU_DTYPES if len(targets) < len(arch) or any(d in t.dtypes for t in targets)
    ]
    for index, dtype in enumerate(
        fields.dtype if isinstance(fields.dtype, list) else [fields.dtype]
    ):
        if dtype not in runs:
            others = [t.name for t in TARGETS.values() if dtype in t.dtypes]
            raise document.error(
                document.value_mark(("dtype", index) if several else ("dtype",)),
                f"dtype: expected one of {', '.join(runs)} for {', '.join(arch)}, got {dtype}, "
                f"which runs on {', '.join(others)} only. Add {' or '.join(others)} to arch, or "
                "change the dtype.",
            )
    for name, capture in fields.captures.items():
        if capture.dtype == "fp64":
            raise document.error(
                document.value_mark(("captures", name, "dtype")),
                f"captures.{name}.dtype: expected fp32 or narrower for {', '.join(arch)}, got "
                "fp64: GPU kernels compute scores in fp32. Write fp32, or add cpu to arch.",
            )
