"""Writing models for CTranslate2, an engine that decodes in C++ and in 8-bit integers.

The folder has these files::

    model.bin, config.json   the weights, and the special tokens
    *vocabulary.json         the token of each id
    tokenizer/               the tokenizer; or source_tokenizer/ and target_tokenizer/

Before the folder is written, the log-probabilities that CTranslate2 computes with it are compared to the model's, which
never generates padding either, but excludes it after the softmax and not before it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqgen.extend import (
    ConfigError,
    Dictionary,
    LoadedModel,
    MultiheadAttention,
    T5Model,
    TargetLanguage,
    TransformerModel,
    new_folder,
)

DTYPE = torch.float32
"""The dtype in which ``seqgen-convert`` loads the model."""
TOLERANCE = 1e-3
"""The largest difference of a log-probability, above which nothing is written."""

PAD_SCORE = -1e4
"""Bias of padding in the output layer: CTranslate2 could generate it, seqgen never does."""

_ACTIVATIONS = {
    **{"relu": "RELU", "gated-relu": "RELU", "tanh": "Tanh", "gelu": "GELU"},
    **dict.fromkeys(("swish", "silu", "gated-silu"), "SWISH"),
    **dict.fromkeys(("gelu_accurate", "gelu_fast", "gelu_new", "gated-gelu"), "GELUTanh"),
}
"""CTranslate2's names of activations, by those of ``TransformerConfig`` and ``T5Config``."""

_LENGTHS, _STEPS = (6, 1, 9), 8
"""The random sentences of the comparison: lengths of sources, and length of all targets."""


def check(cfg: Any) -> None:
    """Check that CTranslate2 is installed.

    Args:
        cfg: the configuration of ``seqgen-convert``.

    Raises:
        ConfigError: it is missing.
    """
    if find_spec("ctranslate2") is None:
        raise ConfigError("format=ctranslate2 needs a package: pip install ctranslate2")


def write_ctranslate2(loaded: LoadedModel, folder: Path) -> tuple[float, float]:
    """Write a model for CTranslate2, and compare it to the model; nothing is written if an error occurs.

    Args:
        loaded: the model, in float32 on the CPU.
        folder: the folder, which must not exist yet.

    Returns:
        See ``largest_differences``.

    Raises:
        ConfigError: CTranslate2 cannot compute the model.
    """
    spec = specification(loaded)
    spec.validate()
    spec.optimize()
    with new_folder(folder, exist_ok=False) as temporary:
        spec.save(str(temporary))
        differences = largest_differences(loaded, temporary)
        if not differences[0] <= TOLERANCE:
            raise ConfigError(
                f"this {type(loaded.model).__name__} cannot be written for CTranslate2, whose log-probabilities differ "
                f"by {differences[0]:.1g}, more than {TOLERANCE:g}"
            )
        loaded.save_tokenizers(temporary)
    return differences


def specification(loaded: LoadedModel) -> Any:
    """The model as a ``ctranslate2.specs.TransformerSpec``, whose arrays share the memory of its weights.

    Args:
        loaded: the model, in float32 on the CPU.

    Raises:
        ConfigError: CTranslate2 cannot compute the model.
    """
    model, task = loaded.model, loaded.task
    source, target = task.source_dictionary, task.target_dictionary
    if not (type(model) is TransformerModel or type(model) is T5Model):  # a derived class may compute something else
        raise ConfigError(f"a {type(model).__name__} cannot be written for CTranslate2; only transformer and t5 can")
    start, eos = model.start_token(target.eos()), target.eos()
    if start >= len(target):
        raise ConfigError(
            f"the start token {start} is not one of the vocabulary's {len(target)} tokens, as CTranslate2 needs"
        )
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec(_stack(model, "encoder", len(source)), _stack(model, "decoder", len(target)))
    projection = model.decoder.output_projection
    spec.decoder.projection.weight = _array(projection.weight[: len(target)])
    spec.decoder.projection.bias = _array(_output_bias(projection.bias, target))
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(target))
    languages, added = task.source_tokenizer.languages, task.source_tokenizer.source_tokens()
    config = spec.config
    config.add_source_bos = languages is None and len(added.before) == 1
    config.add_source_eos = list(added.after) == [source.eos()]
    config.bos_token = source[added.before[0]] if config.add_source_bos else target[start]
    config.eos_token, config.unk_token = target[eos], target[target.unk()]
    chosen = languages is not None and languages.target is TargetLanguage.START
    config.decoder_start_token = None if chosen else target[start]
    config.layer_norm_epsilon = model.cfg.layer_norm_epsilon
    return spec


def _output_bias(bias: Tensor | None, words: Dictionary) -> Tensor:
    """The bias of the output layer, with which padding is not generated."""
    changed = torch.zeros(len(words)) if bias is None else bias.detach()[: len(words)].clone()
    if words.pad() != words.eos():
        changed[words.pad()] = PAD_SCORE
    return changed


def _stack(model: TransformerModel | T5Model, side: str, tokens: int) -> Any:
    """The specification of the encoder or the decoder."""
    from ctranslate2.specs import common_spec, transformer_spec

    cfg: Any = model.cfg
    stack, is_t5 = getattr(model, side), isinstance(model, T5Model)
    kind = transformer_spec.TransformerEncoderSpec if side == "encoder" else transformer_spec.TransformerDecoderSpec
    pre_norm = is_t5 or getattr(cfg, f"{side}_normalize_before")
    options: dict[str, Any] = {"layernorm_embedding": not is_t5 and cfg.layernorm_embedding}
    if is_t5:
        options = {"relative_attention_bias": True, "rms_norm": True, "ffn_glu": cfg.is_gated, "head_dim": cfg.d_kv}
    activation = _ACTIVATIONS[cfg.feed_forward_proj if is_t5 else cfg.activation_fn]
    options["activation"] = getattr(common_spec.Activation, activation)
    spec = kind(len(stack.layers), stack.layers[0].self_attn.num_heads, pre_norm=pre_norm, **options)
    embeddings = spec.embeddings[0] if side == "encoder" else spec.embeddings
    embeddings.weight = _array(stack.embed_tokens.weight[:tokens])
    if pre_norm:
        _set_norm(spec.layer_norm, stack.layer_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _set_layer(layer_spec, layer)
    if is_t5:
        _set_t5(spec, stack, cfg)
        return spec
    spec.scale_embeddings = float(stack.embed_scale)
    positions = stack.embed_positions
    spec.position_encodings.encodings = _array(positions.weight[positions.padding_idx + 1 :])
    if cfg.layernorm_embedding:
        _set_norm(spec.layernorm_embedding, stack.layernorm_embedding)
    return spec


def _set_t5(spec: Any, stack: Any, cfg: Any) -> None:
    """What distinguishes a stack of T5."""
    spec.scale_embeddings = False
    if hasattr(spec, "scale_outputs") and cfg.scales_outputs:
        spec.scale_outputs = float(cfg.d_model**-0.5)
    for index, layer_spec in enumerate(spec.layer):
        bias = stack.position_biases[min(index, len(stack.position_biases) - 1)]
        layer_spec.self_attention.relative_attention_bias = _array(bias.weight)
        layer_spec.self_attention.relative_attention_max_distance = np.int32(bias.max_distance)


def _set_layer(spec: Any, layer: Any) -> None:
    attention = layer.self_attn
    _set_attention(spec.self_attention, attention, [attention.in_proj])
    _set_norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
    if hasattr(spec, "attention"):
        attention = layer.encoder_attn
        _set_attention(spec.attention, attention, [attention.q_proj, attention.kv_proj])
        _set_norm(spec.attention.layer_norm, layer.encoder_attn_layer_norm)
    _set_norm(spec.ffn.layer_norm, layer.final_layer_norm)
    if hasattr(layer, "fc1"):
        _set_linear(spec.ffn.linear_0, layer.fc1)
        _set_linear(spec.ffn.linear_1, layer.fc2)
        return
    projections = layer.feed_forward.wi.weight.chunk(2 if layer.feed_forward.is_gated else 1)
    for name, weight in zip(("linear_0", "linear_0_noact"), projections, strict=False):
        getattr(spec.ffn, name).weight = _array(weight)
    _set_linear(spec.ffn.linear_1, layer.feed_forward.wo)


def _set_attention(spec: Any, attention: MultiheadAttention, projections: list[Any]) -> None:
    for linear_spec, linear in zip(spec.linear, [*projections, attention.out_proj], strict=True):
        _set_linear(linear_spec, linear)
    if attention.scale is not None:
        spec.queries_scale = float(attention.scale)


def _set_linear(spec: Any, linear: Any, weight: str = "weight", bias: str = "bias") -> None:
    setattr(spec, weight, _array(linear.weight))
    if getattr(linear, "bias", None) is not None:
        setattr(spec, bias, _array(linear.bias))


def _set_norm(spec: Any, norm: Any) -> None:
    _set_linear(spec, norm, "gamma", "beta")


def _array(weight: Tensor) -> Any:
    return weight.detach().contiguous().numpy()


@torch.no_grad()
def largest_differences(loaded: LoadedModel, folder: Path) -> tuple[float, float]:
    """The largest difference between CTranslate2's log-probabilities and the model's, for random sentences.

    Args:
        loaded: the model, in float32 on the CPU.
        folder: the folder that CTranslate2 reads.

    Returns:
        The difference if the model also excludes padding before the softmax, and that from the model as it decodes.
    """
    import ctranslate2

    model, task = loaded.model, loaded.task
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    source, target = task.source_dictionary, task.target_dictionary
    languages, (before, after) = task.source_tokenizer.languages, task.source_tokenizer.source_tokens()
    given_start = languages is not None and languages.target is TargetLanguage.START
    start, eos = model.start_token(target.eos()), target.eos()
    longest = model.max_positions()[0] - len(before) - len(after)
    generator = torch.Generator().manual_seed(1)
    biases = torch.stack([_output_bias(None, target), torch.zeros(len(target))]).unsqueeze(1)
    largest = torch.zeros(2)
    for length in _LENGTHS:
        words = _draw(source, min(length, longest), generator)
        outputs = _draw(target, min(_STEPS, model.max_positions()[1] - 1), generator)
        read = torch.tensor([[*before, *words, *after]])
        logits, _ = model(read, torch.tensor([read.size(1)]), torch.tensor([[start, *outputs]]))
        lprobs = (logits[0, :, : len(target)] + biases).log_softmax(-1)
        expected = lprobs[:, range(len(outputs) + 1), [*outputs, eos]]  # (2, T)
        added = (languages is None, list(after) == [source.eos()])  # what CTranslate2 adds
        text = [*(() if added[0] else before), *words, *(() if added[1] else after)]
        tokens = [target[index] for index in ([start] if given_start else []) + outputs]
        (scored,) = translator.score_batch([[source[index] for index in text]], [tokens])
        found = torch.tensor(scored.log_probs[-expected.size(1) :])
        largest = torch.maximum(largest, (found - expected).abs().amax(1))
    computed, decoded = largest.tolist()
    return computed, decoded


def _draw(words: Dictionary, count: int, generator: torch.Generator) -> list[int]:
    """Random ids besides padding."""
    ids = torch.tensor([index for index in range(len(words)) if index != words.pad()])
    drawn: list[int] = ids[torch.randint(len(ids), (count,), generator=generator)].tolist()
    return drawn


def write(cfg: Any, loaded: LoadedModel) -> None:
    """Write the model of ``seqgen-convert format=ctranslate2``, and print how well it agrees.

    Args:
        cfg: the configuration of the command.
        loaded: the model.

    Raises:
        UserError: see ``write_ctranslate2``.
    """
    computed, decoded = write_ctranslate2(loaded, Path(cfg.output))
    print(f"{cfg.output}: {type(loaded.model).__name__}, from {cfg.path[0]}")
    print(f"log-probabilities differ by at most {decoded:.1e} from those of the model")
    if decoded > TOLERANCE:
        print(f"as CTranslate2 excludes padding before the softmax, seqgen after it; else by at most {computed:.1e}")
