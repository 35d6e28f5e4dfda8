"""Random valid ``config.json`` files: each gives the logits of transformers, or is refused by the name of a key."""

import json
import math
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.extend import UserError, load_model
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_families import original_logits, our_logits

transformers = pytest.importorskip("transformers")

# --- random configs

Draw = Any
"""The values of a field as a tuple, a function that draws one, or a constant."""

SIZE = 29
"""Tokens of the vocabulary, unless a case has another number."""

FLAG = (True, False)
PROBABILITY = (0, 0.0, 0.1, 0.5, 0.97)
ID = (0, 1, 2, 4, 5)


def draw(values: Draw, rng: random.Random) -> Any:
    """One value."""
    return values(rng) if callable(values) else rng.choice(values) if isinstance(values, tuple) else values


def activation(rng: random.Random) -> str:
    """Any activation of transformers, or twice as often one of the common ones."""
    from transformers.activations import ACT2FN

    common = ("relu", "gelu", "gelu_new", "silu", "swish", "tanh", "gelu_pytorch_tanh", "gelu_fast")
    return rng.choice(common if rng.random() < 2 / 3 else sorted(ACT2FN))


def feed_forward(rng: random.Random) -> str:
    """A value of ``feed_forward_proj``."""
    return rng.choice(("", "gated-")) + activation(rng)


DECODING = {"do_sample": FLAG, "num_beams": (1, 4), "max_length": (20, 50), "length_penalty": (1.0, 2.0)}
"""Some of the decoding settings, which old files have; logits do not depend on them."""

GENERAL: Mapping[str, Draw] = {
    **dict.fromkeys(("return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_cache"), FLAG),
    **dict.fromkeys(("use_bfloat16", "tf_legacy_loss", "gradient_checkpointing", "tie_word_embeddings"), FLAG),
    **dict.fromkeys(("is_decoder", "add_cross_attention", "tie_encoder_decoder", "is_encoder_decoder"), FLAG),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"), ID),
    **{"torch_dtype": ("float32", "float16", "bfloat16", "float64"), "attn_implementation": ("eager", "sdpa")},
    **{"pruned_heads": ({}, {"0": [0]}), "chunk_size_feed_forward": (0, 1, 3), "num_labels": (2, 3)},
    **{"finetuning_task": (None, "mnli"), "cross_attention_hidden_size": (None, 7), "prefix": (None, "translate: ")},
    **{"id2label": ({"0": "no", "1": "yes"},), "label2id": ({"no": 0, "yes": 1},)},
    "architectures": (None, [], ["Model"], ["BartForConditionalGeneration"]),
    "tokenizer_class": (None, "T5Tokenizer", "BertTokenizer"),
    "task_specific_params": (None, {"summarization": {"num_beams": 4, "prefix": "summarize: "}}),
    "problem_type": (None, "regression", "multi_label_classification"),
    **{"_name_or_path": ("", "organization/name"), "a_key_of_nobody": (0, 1, "text", [3])},
    **DECODING,
}
"""Fields of all models, besides ``transformers_version``."""

_BART_SIZES: dict[str, Draw] = {
    **{"encoder_layers": (1, 2), "decoder_layers": (1, 3), "encoder_ffn_dim": (1, 7, 12), "eos_token_id": 2},
    **{"decoder_ffn_dim": (1, 5, 12), "max_position_embeddings": (9, 16, 33), "pad_token_id": (0, 1, 5)},
    **{"bos_token_id": (0, 3), "decoder_start_token_id": (0, 2, 7)},
}
_T5_SIZES: dict[str, Draw] = {
    **{"d_model": (1, 6, 15), "d_kv": (1, 4, 7), "d_ff": (1, 8, 11), "num_layers": (1, 2), "num_heads": (1, 2, 3)},
    **{"decoder_start_token_id": 0, "pad_token_id": 0},
}
_LLAMA_SIZES: dict[str, Draw] = {
    **{"num_hidden_layers": (1, 2, 3), "max_position_embeddings": (9, 16), "intermediate_size": (1, 7, 12)},
    **{"bos_token_id": 2, "eos_token_id": 2},
}
_GPT2_SIZES: dict[str, Draw] = {"n_layer": (1, 2, 3), "n_positions": (9, 16), "bos_token_id": 2, "eos_token_id": 2}


def sizes(kind: str, rng: random.Random) -> dict[str, Any]:
    """The fields that every case has, with widths that the numbers of heads divide."""
    widths: dict[str, int] = {}
    if kind in ("t5", "mt5", "umt5"):
        own = _T5_SIZES
    elif kind in LLAMAS:
        heads = rng.choice([1, 2, 4])
        own, widths = _LLAMA_SIZES, {"num_attention_heads": heads, "hidden_size": heads * rng.choice([2, 4, 6])}
        widths["num_key_value_heads"] = rng.choice([1, heads])
        widths |= {"head_dim": rng.choice([2, 6])} if kind in ("qwen3", *GEMMAS) else {}
        widths |= {"pad_token_id": 2} if kind == "smollm3" else {}
    elif kind == "gpt2":
        heads = rng.choice([1, 2, 3])
        own, widths = _GPT2_SIZES, {"n_head": heads, "n_embd": heads * rng.choice([1, 4, 5])}
    else:
        encoder, decoder = rng.choice([(1, 1), (2, 1), (3, 2), (2, 6), (5, 3)])
        own, widths = _BART_SIZES, {"encoder_attention_heads": encoder, "decoder_attention_heads": decoder}
        widths["d_model"] = math.lcm(encoder, decoder) * rng.choice([1, 2, 3])
    if kind in GEMMAS:  # which normalize the outputs of layers, and so errors of those that are almost zero
        own = {**own, "intermediate_size": (7, 12)}
    return {"vocab_size": SIZE, **widths, **{key: draw(values, rng) for key, values in own.items()}}


_BART: dict[str, Draw] = {
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"), PROBABILITY),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), PROBABILITY),
    **{"activation_function": activation, "init_std": (0.02, 1.0), "scale_embedding": FLAG, "forced_eos_token_id": ID},
    **{"num_hidden_layers": (1, 5), "vocab_size": (18, SIZE, 40), "hidden_size": (6, 30)},
    **{"num_attention_heads": (1, 2, 3), "layer_norm_eps": (1e-5, 0.1)},
}
_T5: dict[str, Draw] = {
    **{"feed_forward_proj": feed_forward, "dense_act_fn": activation, "is_gated_act": FLAG},
    **{"num_decoder_layers": (None, 1, 2), "relative_attention_num_buckets": (2, 4, 5, 8, 16)},
    **{"relative_attention_max_distance": (3, 5, 9, 40), "layer_norm_epsilon": (0, 1e-6, 0.01, 1.5)},
    **dict.fromkeys(("dropout_rate", "classifier_dropout"), PROBABILITY),
    **{"initializer_factor": (0.05, 1.0), "vocab_size": (18, SIZE, 40), "num_hidden_layers": (1, 2, 3)},
    **{"num_attention_heads": (1, 2, 3), "hidden_size": (2, 6, 9), "head_dim": (1, 4, 5)},
}
_GPT2: dict[str, Draw] = {
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), PROBABILITY),
    **dict.fromkeys(("summary_use_proj", "summary_proj_to_labels", "scale_attn_weights"), FLAG),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), FLAG),
    **{"n_inner": (None, 1, 7, 12), "activation_function": activation, "layer_norm_epsilon": (0.0, 1e-5, 0.3)},
    **{"initializer_range": (0.02, 1.0), "summary_type": ("cls_index", "mean"), "summary_activation": (None, "tanh")},
    **{"vocab_size": (18, SIZE, 40), "num_hidden_layers": (1, 2, 3), "num_attention_heads": (1, 2)},
    **{"hidden_size": (2, 6, 12), "max_position_embeddings": (9, 12)},
}

GEMMAS = ("gemma2", "gemma3_text")
LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", *GEMMAS)


def rope(rng: random.Random) -> dict[str, Any] | None:
    """A value of ``rope_scaling``."""
    kind = rng.choice(["default", "linear", "llama3", "dynamic", None])
    values = {"factor": rng.choice([2.0, 8.0]), "original_max_position_embeddings": rng.choice([3, 7])}
    values = values if kind == "llama3" else {"factor": 3.0} if kind in ("linear", "dynamic") else {}
    further = {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])} if kind == "llama3" else {}
    return kind and {"rope_type": kind, **values, **further}


_LLAMA: dict[str, Draw] = {
    **{"rms_norm_eps": (1e-6, 0.1), "rope_theta": (10000.0, 7.5, 500000), "hidden_act": activation},
    **{"head_dim": (2, 6, 8), "attention_dropout": PROBABILITY, "vocab_size": (18, SIZE, 40), "rope_scaling": rope},
}
_QWEN: dict[str, Draw] = {
    **{**_LLAMA, "use_sliding_window": FLAG, "sliding_window": (None, 2, 5), "max_window_layers": (0, 1, 9)},
}

_TYPES = ("sliding_attention", "full_attention")
_SMOLLM: dict[str, Draw] = {
    **{**_LLAMA, "use_sliding_window": FLAG, "sliding_window": (None, 2, 5), "attention_bias": FLAG},
    **{"no_rope_layer_interval": (1, 2, 4), "no_rope_layers": (None, [0, 1, 0], [1, 1, 1])},
}
_GEMMA: dict[str, Draw] = {
    **{**_LLAMA, "hidden_activation": activation, "sliding_window": (1, 2, 5), "attention_bias": FLAG},
    **{"query_pre_attn_scalar": (1, 7, 256), "hidden_act": "gelu", "final_logit_softcapping": (None, 2.0, 30.0)},
    **{"attn_logit_softcapping": (None, 0.5, 50.0), "layer_types": lambda rng: rng.choices(_TYPES, k=3)},
}

FIELDS: Mapping[str, Mapping[str, Draw]] = {
    "llama": {**_LLAMA, "attention_bias": FLAG, "mlp_bias": FLAG, "pretraining_tp": (1, 2)},
    "mistral": {**_LLAMA, "sliding_window": (None, 1, 2, 5)},
    **{"qwen2": _QWEN, "qwen3": {**_QWEN, "attention_bias": FLAG}, "smollm3": _SMOLLM, "gemma2": _GEMMA},
    "gemma3_text": {**_GEMMA, "rope_local_base_freq": (5.0, 10000.0), "sliding_window_pattern": (1, 2, 3)},
    **dict.fromkeys(("bart", "mbart", "pegasus", "m2m_100"), _BART),
    "marian": {**_BART, "share_encoder_decoder_embeddings": FLAG, "decoder_vocab_size": (None, 23, SIZE)},
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "gpt2": _GPT2,
}
"""For each ``model_type`` its own fields."""


def random_config(kind: str, rng: random.Random) -> tuple[dict[str, Any], list[str]]:
    """The content of a ``config.json``.

    Args:
        kind: its ``model_type``.
        rng: draws the values.

    Returns:
        Values by key, and the keys besides the sizes that every case has.
    """
    own, general = FIELDS[kind], GENERAL
    values = {"model_type": kind, **sizes(kind, rng)}
    drawn = rng.sample(sorted(own), min(len(own), rng.randint(1, 6))) + rng.sample(sorted(general), rng.randint(0, 4))
    changes = {key: draw(own.get(key) or general[key], rng) for key in drawn}
    if not changes.get("share_encoder_decoder_embeddings", True):  # transformers cannot read two sizes
        changes["decoder_vocab_size"] = None
    return {**values, **changes}, drawn


# --- what they give


def original_of(config: dict[str, Any], seed: int) -> Any:
    """The original with random weights, or ``None`` if transformers cannot make it."""
    values = {key: value for key, value in config.items() if key not in DECODING}
    kind = values.pop("model_type")
    torch.manual_seed(seed)
    try:
        cfg = transformers.AutoConfig.for_model(kind, **values)
        auto = transformers.AutoModelForCausalLM if kind in ("gpt2", *LLAMAS) else transformers.AutoModelForSeq2SeqLM
        model = auto.from_config(cfg, attn_implementation="eager", torch_dtype=torch.float32).float()
    except Exception:  # whatever transformers raises
        return None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or "bart" in kind:
                parameter.add_(torch.randn_like(parameter) * 0.4)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.tie_weights()  # those that are copies, with torchscript
    model.config.return_dict, model.config.torchscript = True, False  # which hide the logits of some models
    return model.eval()


def write(folder: Path, config: dict[str, Any], original: Any) -> Path:
    """Save the weights as transformers does, the values as they are, and a tokenizer."""
    original.generation_config = transformers.GenerationConfig()
    original.save_pretrained(folder)
    (folder / "generation_config.json").unlink()  # so that the settings in config.json count
    (folder / "config.json").write_text(json.dumps({"transformers_version": "4.53.3", **config}))
    pad = config.get("pad_token_id", 0)
    write_tokenizer(folder, original.config.vocab_size, pad, 8)
    return folder


def refused(message: str, keys: Collection[str], case: str) -> str:
    """Check that a refusal is one sentence that names a key; returns ``refused``."""
    assert "\n" not in message, case
    assert any(key in message for key in keys), f"{case}: {message}"
    return "refused"


def outcomes(case: Callable[[str, int, Path], str], kind: str, count: int, folder: Path) -> list[str]:
    """Run random cases; an error names the seed of its case."""
    found = []
    for seed in range(count):
        try:
            found.append(case(kind, seed, folder / str(seed)))
        except Exception as error:
            error.add_note(f"{kind}, seed {seed}")
            raise
    return found


def outcome(kind: str, seed: int, folder: Path) -> str:
    """Compare one random case.

    Returns:
        ``same``, ``refused``, or ``impossible`` if transformers cannot compute the case either.

    Raises:
        AssertionError: the logits differ, or the refusal does not name a drawn key.
    """
    rng = random.Random(f"{kind} {seed}")
    config, drawn = random_config(kind, rng)
    original = original_of(config, seed)
    case = f"model_type {kind}, seed {seed}: { ({key: config[key] for key in drawn}) }"
    if original is None:
        return "impossible"
    write(folder, config, original)
    try:
        loaded = load_model(folder, dtype=torch.float32)
    except UserError as error:
        return refused(str(error), drawn, case)
    try:
        with torch.no_grad():
            theirs, ours = original_logits(original), our_logits(loaded.model, original.config)
    except RuntimeError:
        assert config.get("reorder_and_upcast_attn"), case  # an error of transformers with masks
        return "impossible"
    assert theirs.shape == ours.shape, case
    if not torch.isfinite(theirs).all():  # normalization of a single number without a constant
        return "impossible"
    assert (theirs - ours).abs().max() < 1e-4 * max(1.0, theirs.abs().max().item()), f"{case}: {loaded.notes}"
    unknown = "a_key_of_nobody" in drawn and config["a_key_of_nobody"] != 0
    assert unknown == any("a_key_of_nobody" in note for note in loaded.notes), f"{case}: {loaded.notes}"
    return "same"


@pytest.mark.parametrize("kind", sorted(FIELDS))
@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.nightly)])
def test_random_configs(kind: str, count: int, tmp_path: Path) -> None:
    found = outcomes(outcome, kind, count, tmp_path)
    assert count == 2 or (found.count("same") >= 20 and found.count("refused") >= 2)
