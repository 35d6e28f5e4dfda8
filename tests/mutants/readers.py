"""Faults in the readers of other toolkits below ``models``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/checkpoints/model_weights.py",
        '("kv_proj", "kv") if prefix.endswith("encoder_attn.") else ("in_proj", "qkv")',
        '("kv_proj", "kv") if prefix.endswith("encoder_attn.") else ("in_proj", "kqv")',
        "queries and keys of self-attention are exchanged",
        ("tests/models/fairseq/test_checkpoints.py",),
    ),
    Fault(
        "models/fairseq/checkpoint.py",
        "(version|_float_tensor|embed_positions\\.weights)",
        "(version|_float_tensor|embed_positions\\.weights?)",
        "learned positions are dropped",
        ("tests/models/fairseq/test_checkpoints.py",),
    ),
    Fault(
        "models/fairseq/options.py",
        "{**defaults, **{key: value for key, value in model.items() if key not in ignore}}",
        "{**{key: value for key, value in model.items() if key not in ignore}, **defaults}",
        "the sizes of an architecture override those of the checkpoint",
        ("tests/models/fairseq/test_checkpoints.py",),
    ),
    Fault(
        "models/fairseq/options.py",
        'elif value != "???":  # OmegaConf',
        "elif value:  # OmegaConf",
        "options that are false take the default of the architecture",
        ("tests/models/fairseq/test_checkpoints.py",),
    ),
    Fault(
        "models/fairseq/options.py",
        '("en" if "en" in codes else codes[0]) if self.source == "src" else ""',
        'codes[0] if self.source == "src" else ""',
        "the default source language of a fairseq checkpoint is the first one of its list",
        ("tests/models/fairseq/test_multilingual.py",),
    ),
    Fault(
        "models/fairseq/options.py",
        "dictionary.add_symbol(self.frame.format(code + suffix))",
        "dictionary.add_symbol(self.frame.format(code))",
        "tokens of languages of other kinds of data are left out",
        ("tests/models/fairseq/test_multilingual.py",),
    ),
    Fault(
        "models/fairseq/options.py",
        "place = TargetLanguage.FIRST if self.by_target else TargetLanguage.SOURCE",
        "place = TargetLanguage.FIRST",
        "the language of the target is not told in the source",
        ("tests/models/fairseq/test_multilingual.py",),
    ),
    Fault(
        "models/huggingface/generation.py",
        'values["min_length"] = cfg.min_len + 1',
        'values["min_length"] = cfg.min_len',
        "a shortest length that is written does not count the start token",
        ("tests/models/huggingface/test_checkpoints.py",),
    ),
    Fault(
        "models/huggingface/generation.py",
        '{"max_len_a": -1.0, "max_len_b": longest - 1}',
        '{"max_len_a": -1.0, "max_len_b": longest}',
        "outputs of GPT-2 may be one token longer",
        ("tests/models/huggingface/test_checkpoints.py", "tests/models/huggingface/test_gpt2.py"),
    ),
    Fault(
        "models/huggingface/generation.py",
        '("top_k", "sampling_topk", 50)',
        '("top_k", "sampling_topk", 0)',
        "sampling draws from all tokens where a folder names no top_k",
        ("tests/models/huggingface/test_checkpoints.py",),
    ),
    Fault(
        "models/huggingface/generation.py",
        'self.config.get("max_matching_ngram_size", 2)',
        'self.config.get("max_matching_ngram_size", 3)',
        "drafts from the prompt match longer n-grams by default",
        ("tests/models/huggingface/test_checkpoints.py",),
    ),
    Fault(
        "models/huggingface/generation.py",
        'others = [self._token("eos_token_id", index) for index in ids if index != eos]',
        'others = [self._token("eos_token_id", index) for index in ids[1:] if index != eos]',
        "the first of several tokens that end an output is left out",
        ("tests/models/huggingface/test_checkpoints.py",),
    ),
    Fault(
        "models/huggingface/weights.py",
        "if shards[-1] and size + tensor.nbytes > shard_bytes:",
        "if shards[-1] and size > shard_bytes:",
        "files of weights are larger than the limit",
        ("tests/models/huggingface/test_writing.py",),
    ),
    Fault(
        "models/huggingface/weights.py",
        "elif not _same(tensor, self._place(target)):",
        "elif False:",
        "tied weights that differ in the file are lost",
        ("tests/models/huggingface/test_checkpoints.py", "tests/models/huggingface/test_bart.py"),
    ),
    Fault(
        "models/huggingface/checkpoint.py",
        "model.to(placement.dtype or _DTYPES.get(saved, torch.float32))",
        "model.to(placement.dtype or torch.float32)",
        "a folder in half precision is read in float32",
        ("tests/models/huggingface/test_checkpoints.py",),
    ),
    Fault(
        "models/huggingface/architecture.py",
        "return next((start for start in starts if start >= 0), -1)",
        "return next((start for start in starts if start > 0), -1)",
        "a decoder that begins with token 0 begins with another one",
        ("tests/models/huggingface/test_checkpoints.py", "tests/models/huggingface/test_bart.py"),
    ),
]
