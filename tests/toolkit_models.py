"""Small random transformers in the formats of Marian, fairseq and Hugging Face.

A weight depends on the names of the parameter and of the token, not on the token's id, and positions do not change the
output. Models of one seed and the same tokens therefore compute the same log-probabilities in all three formats.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqgen.addons.huggingface.architecture import JSONConfig
from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.addons.marian.loader import _layout, _model_config
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor, train_sentencepiece
from seqgen.extend import DecodingConfig, DecodingTask, Dictionary, load_pretrained_tokenizer, weights_of
from seqgen.models.transformer import TransformerConfig, TransformerModel
from tests.fairseq_checkpoints import TRANSFORMER, in_args, options_of, write
from tests.marian_models import OPTIONS
from tests.pretrained_folders import write_folder

CONFIG = replace(TRANSFORMER, layernorm_embedding=True, max_source_positions=100, max_target_positions=100)
MARIAN: dict[str, Any] = {
    **{"type": "transformer", "dim-emb": 8, "transformer-heads": 2, "transformer-dim-ffn": 12},
    **{"enc-depth": 2, "dec-depth": 2, "transformer-ffn-activation": "relu", "transformer-preprocess": ""},
    **{"transformer-postprocess": "dan", "transformer-postprocess-emb": "nd"},
}
BART = replace(
    CONFIG, encoder_learned_pos=True, decoder_learned_pos=True, position_offset=2, sinusoids="fairseq", output_bias=True
)
"""One structure, in the options of each toolkit."""

LARGE = 2.0**30
"""Size of the embeddings: sinusoids, which are added to them before they are normalized, are rounded away."""

END, EXCLUDED = 4.0, -1e4
"""Biases of end-of-sentence, and of tokens that Marian does not have or generate."""

SCALE, REPEATED = 0.4, 0.4
"""Size of the other weights, and how much less likely the last token is to be the next one: outputs end, and vary."""


def write_models(folder: Path, lines: Sequence[str]) -> list[Path]:
    """Write ``opus-en-de``, ``fairseq/model.pt`` and ``bart-en-de``, whose weights and vocabularies differ.

    Args:
        folder: where to write.
        lines: the text of which their vocabularies are made.

    Returns:
        Their paths.
    """
    pieces, others = (train_sentencepiece(lines, vocab_size=size, hard_vocab_limit=False) for size in (60, 30))
    bart = load_pretrained_tokenizer(write_folder(folder / "bart-tokenizer", "BartTokenizer"))
    return [
        write_marian(folder / "opus-en-de", pieces, 0),
        write_fairseq(folder / "fairseq", others, 1),
        write_huggingface(folder / "bart-en-de", bart, 2),
    ]


def write_marian(folder: Path, model: bytes, seed: int = 0, **decoding: Any) -> Path:
    """Write a model of Marian as an archive of OPUS-MT has it, and return its folder.

    Args:
        folder: where to write.
        model: a SentencePiece model.
        seed: seed of the weights.
        decoding: further values of ``decoder.yml``.
    """
    folder.mkdir(parents=True)
    tokens = ["</s>", "<unk>", *sorted(_pieces(model))]
    words = Dictionary([*tokens, "<pad>"], pad=len(tokens), eos=0, unk=1, bos=None)
    options = JSONConfig(folder, MARIAN)
    transformer = _transformer(_model_config(options, words.pad()), WhitespaceTokenizer(words), seed)
    weights = weights_of(transformer, _layout(transformer, options, is_old=False))
    described = np.frombuffer(json.dumps(MARIAN).encode() + b"\0", dtype=np.int8)
    np.savez(folder / "model.npz", **{name: weight.numpy() for name, weight in weights.items()}, **{OPTIONS: described})
    lines = [f"{json.dumps(token, ensure_ascii=False)}: {index}\n" for index, token in enumerate(tokens)]
    (folder / "vocab.yml").write_text("".join(lines), encoding="utf-8")
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model)
    files = {"models": ["model.npz"], "vocabs": ["vocab.yml", "vocab.yml"]}
    (folder / "decoder.yml").write_text(json.dumps({**files, **decoding}))
    return folder


def write_fairseq(folder: Path, model: bytes, seed: int = 0) -> Path:
    """Write a checkpoint of fairseq with its dictionary and its SentencePiece model.

    Args:
        folder: where to write.
        model: a SentencePiece model.
        seed: seed of the weights.
    """
    words = Dictionary()
    for piece in sorted(_pieces(model), reverse=True):
        words.add_symbol(piece)
    path = write(folder, _transformer(CONFIG, WhitespaceTokenizer(words), seed), in_args(options_of(CONFIG)))
    words.save(folder / "dict.txt")
    (folder / "spm.model").write_bytes(model)
    return path


def write_huggingface(folder: Path, tokenizer: Tokenizer, seed: int = 0) -> Path:
    """Write a BART with a tokenizer in Hugging Face's layout.

    Args:
        folder: where to write.
        tokenizer: a tokenizer that the layout supports.
        seed: seed of the weights.
    """
    save_pretrained(_transformer(BART, tokenizer, seed), folder, tokenizer)
    return folder


def _pieces(model: bytes) -> list[str]:
    processor = load_processor(model, "the test")
    ids = range(processor.vocab_size())
    return [processor.id_to_piece(i) for i in ids if not (processor.is_control(i) or processor.is_unknown(i))]


@torch.no_grad()
def _transformer(cfg: TransformerConfig, tokenizer: Tokenizer, seed: int) -> TransformerModel:
    words = tokenizer.dictionary
    model: TransformerModel = DecodingTask(DecodingConfig(), tokenizer, tokenizer).build_model(replace(cfg)).eval()
    for name, parameter in model.named_parameters():
        if "embed_positions" in name or name == "decoder.output_projection.bias":
            parameter.zero_()
        elif "embed_tokens" in name or name == "decoder.output_projection.weight":
            for row, token in zip(parameter, words.symbols, strict=True):
                row.copy_(_random(row.shape, seed, name, token) * SCALE)
        else:
            parameter.copy_(_random(parameter.shape, seed, name) * SCALE + ("norm.weight" in name))
    # the last token is less likely to be the next one, so that outputs do not repeat it
    model.decoder.output_projection.weight -= REPEATED * model.decoder.embed_tokens.weight
    for stack in (model.encoder, model.decoder):
        stack.embed_tokens.weight *= LARGE
        stack.embed_tokens.weight[words.pad()] = 0
    half = model.decoder.embed_tokens.embedding_dim // 2
    # the first input of the decoder: Marian's is an embedding of zeros at position 0, whose sinusoids are 0 and 1
    model.decoder.embed_tokens.weight[words.eos()] = torch.tensor([0.0, LARGE]).repeat_interleave(half)
    norm, projection = model.decoder.layers[-1].final_layer_norm, model.decoder.output_projection.weight
    norm.weight[0], norm.bias[0] = 0, 1  # so that the first column of the projection is a bias
    projection[words.eos(), 0] = END
    for token, symbol in enumerate(words.symbols):
        if symbol == "<s>" or token in (words.pad(), words.unk()):
            projection[token] = torch.tensor([EXCLUDED, *[0.0] * (projection.size(1) - 1)])
    return model


def _random(shape: torch.Size, seed: int, *names: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32("\0".join([str(seed), *names]).encode()))
    return torch.randn(shape, generator=generator)
