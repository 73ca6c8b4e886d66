"""Eight small models of transformers, made from configs, and their runs by an implementation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers
from transformers import masking_utils

VOCABULARY = 101
PADDINGS = ("none", "left", "right", "packed")
_LIKE_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
_LIKE_BERT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": VOCABULARY}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
CONFIGS = {
    "gpt2": ("GPT2", "LMHeadModel", _GPT2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "bert": ("Bert", "ForMaskedLM", _LIKE_BERT | {"vocab_size": VOCABULARY}),
    "llama": ("Llama", "ForCausalLM", _LIKE_LLAMA),
    "vit": ("ViT", "ForImageClassification", _LIKE_BERT | {"image_size": 32, "patch_size": 8}),
    "mistral": ("Mistral", "ForCausalLM", _LIKE_LLAMA | {"sliding_window": 8}),
    "gemma2": (
        "Gemma2",
        "ForCausalLM",
        _LIKE_LLAMA
        | {"sliding_window": 8, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    ),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        _T5 | {"vocab_size": VOCABULARY, "dropout_rate": 0.0, "decoder_start_token_id": 0},
    ),
    "gpt_oss": (
        "GptOss",
        "ForCausalLM",
        _LIKE_LLAMA | {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
# before 5.0 these two choose among attentions of their own
LATER = ("bert", "t5") if int(transformers.__version__.partition(".")[0]) < 5 else ()
MODELS = tuple(name for name in CONFIGS if name not in LATER)
GENERATIVE = tuple(name for name in MODELS if name not in ("bert", "vit"))


def make(name: str, attn_pdrop: float = 0.0, **changes) -> torch.nn.Module:
    """The model with weights of its own, the same each time."""
    prefix, suffix, fields = CONFIGS[name]
    if name == "gpt2":
        changes["attn_pdrop"] = attn_pdrop
    config = getattr(transformers, f"{prefix}Config")(**fields | changes)
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}{suffix}")(config)


@dataclass(frozen=True)
class Batch:
    """Inputs of a model, and which of its outputs are of real tokens."""

    inputs: dict[str, object]
    real: torch.Tensor


def batch(name: str, padding: str = "none", tokens: int = 21) -> Batch:
    gen = torch.Generator().manual_seed(1)
    if name == "vit":
        images = torch.randn(2, 3, 32, 32, generator=gen)
        return Batch({"pixel_values": images}, torch.ones(2))
    ids = torch.randint(1, VOCABULARY, (2, tokens), generator=gen)
    mask = torch.ones_like(ids)
    inputs: dict[str, object] = {"input_ids": ids}
    if padding in ("left", "right"):
        mask[1, slice(None, 6) if padding == "left" else slice(-6, None)] = 0
        inputs["attention_mask"] = mask
    if padding == "packed":
        places = torch.cat([torch.arange(8), torch.arange(tokens - 8)])
        inputs |= {"position_ids": places.expand(2, -1), "use_cache": False}
    if name == "t5":
        inputs["decoder_input_ids"] = ids[:, :11]
        return Batch(inputs, torch.ones(2, 11))
    return Batch(inputs, mask.float())


def exact_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
    softcap=None, s_aux=None, position_bias=None, **_,
):  # fmt: skip
    """Attention by explicit operations in the inputs' dtype; eager's softmax is fp32 in places."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if position_bias is None else scores + position_bias
    if attention_mask is None and (module.is_causal if is_causal is None else is_causal):
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        # rows that see nothing are left as they are: no loss reads them
        seen = attention_mask | ~attention_mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~seen, float("-inf"))
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[-2]]
    return (weights @ value).transpose(1, 2).contiguous(), None


def register_exact() -> None:
    """Make "exact" an implementation of attention."""
    transformers.AttentionInterface.register("exact", exact_attention)
    transformers.AttentionMaskInterface.register("exact", masking_utils.sdpa_mask)


@dataclass(frozen=True)
class Run:
    """Outputs at real tokens, and the gradients of all parameters by name."""

    out: torch.Tensor
    gradients: dict[str, torch.Tensor]


def run(model: torch.nn.Module, implementation: str, data: Batch) -> Run:
    """A training step's forward and backward; the loss covers real tokens only."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    inputs = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in data.inputs.items()
    }  # fmt: skip
    out = model(**inputs).logits
    out = out * data.real.reshape(*data.real.shape, 1).to(out.dtype)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    (out * weights).mean().backward()
    gradients = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }  # fmt: skip
    return Run(out.detach(), gradients)
