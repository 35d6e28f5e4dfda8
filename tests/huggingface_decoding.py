"""Decodes the same models with transformers and with seqgen, and compares the results."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch, Hypothesis
from seqgen.extend import Dictionary, GenerationConfig, LogitsProcessor, Phrases, SequenceGenerator, build_setup
from tests.huggingface_t5 import tiny_model
from tests.scripted_model import batch_of

PAD, EOS = 0, 1
WORDS = 11
Pair = tuple[tuple[int, ...], float]

logging.getLogger("transformers").setLevel(logging.ERROR)


def sharp_model(variant: str, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A tiny model of transformers with few tokens, in which some hypotheses end early and beams are reordered.

    A model with tied embeddings tends to repeat its last token; the negative factor prevents that.
    """
    model = tiny_model(variant, seed, dtype, **{"vocab_size": WORDS, **changes})
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "Attention" in name and tied:
                parameter.mul_(3.0)
            if name == "decoder.final_layer_norm.weight":
                parameter.mul_(-2.0 if tied else 0.3)
    return model


def dictionary(size: int = WORDS) -> Dictionary:
    """A dictionary with the special ids of T5."""
    return Dictionary([f"w{number}" for number in range(size)], pad=PAD, eos=EOS, unk=2, bos=None)


def decode(
    model: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    prefix_tokens: Tensor | None = None,
    phrases: Sequence[Phrases] | None = None,
    processors: Sequence[LogitsProcessor] = (),
    ends: Sequence[int] = (EOS,),
    **keys: Any,
) -> list[list[Pair]]:
    """Decode with seqgen by Hugging Face's rules, with keys of the configuration."""
    further = [f"w{end}" for end in ends[1:]]
    cfg = GenerationConfig(**{"semantics": "huggingface", "min_len": 0, "max_len": 12, "end_symbols": further, **keys})
    generator = SequenceGenerator(build_setup([model], dictionary(), cfg, processors=processors))
    found = generator.generate(source_batch(sources), prefix_tokens, phrases)
    return [pairs(hypotheses) for hypotheses in found]


def source_batch(sources: Sequence[Sequence[int]]) -> Batch:
    return batch_of(sources, pad=PAD)


def pairs(hypotheses: Sequence[Hypothesis]) -> list[Pair]:
    return [(tuple(hypothesis.tokens.tolist()), hypothesis.score) for hypothesis in hypotheses]


def original(model: Any, sources: Sequence[Sequence[int]], ends: Sequence[int] = (EOS,), **options: Any) -> Any:
    """Decode by transformers.

    Args:
        model: the original.
        sources: ids with end-of-sentence; they are padded to one batch.
        ends: ids that end an output.
        options: further arguments of ``generate``.

    Returns:
        For each source the hypotheses, best first, as tokens up to the one that ends them, with their scores.
    """
    source = source_batch(sources).source
    mask = (torch.arange(source.src_tokens.size(1)) < source.src_lengths.unsqueeze(1)).long()
    length = {} if "max_length" in options else {"max_new_tokens": 12}
    values = {**length, "num_return_sequences": options.get("num_beams", 1), **options}
    values = {"return_dict_in_generate": True, "output_scores": True, "eos_token_id": list(ends), **values}
    out = model.generate(source.src_tokens, attention_mask=mask, do_sample=False, **values)
    return hypotheses_of(model, out, values["num_return_sequences"], ends, 1)


def hypotheses_of(
    model: Any, out: Any, count: int, ends: Sequence[int], start: int, length_penalty: float = 1.0
) -> list[list[Pair]]:
    """What ``generate`` returned.

    Args:
        model: the original.
        out: its output, whose scores are missing only if those of a beam search were not asked for.
        count: hypotheses of each source.
        ends: ids that end an output.
        start: tokens before the output.
        length_penalty: with which a beam search would score; transformers gives greedy search and samples no score.

    Returns:
        For each source its hypotheses, as tokens up to the first that ends an output, with their scores.
    """
    lists = out.sequences[:, start:].tolist()
    stops = [next((at + 1 for at, token in enumerate(row) if token in ends), len(row)) for row in lists]
    rows = [tuple(row[:stop]) for row, stop in zip(lists, stops, strict=True)]
    if "sequences_scores" in out:
        scores = out.sequences_scores.tolist()
    elif "scores" in out:
        steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        scores = [float(row[:stop].sum()) / stop**length_penalty for row, stop in zip(steps, stops, strict=True)]
    else:
        scores = [math.nan] * len(rows)
    found = list(zip(rows, scores, strict=True))
    # ranks without a hypothesis have inactive beams, with a score of -1e9 divided by a length
    places = [found[first : first + count] for first in range(0, len(found), count)]
    return [[pair for pair in own if not pair[1] < -1e6] for own in places]


def assert_same(got: Sequence[Pair], wanted: Sequence[Pair], tolerance: float = 1e-5) -> None:
    """Scores agree at each rank, and tokens at each rank whose neighbours have other scores."""
    scores = [score for _, score in wanted]
    assert [score for _, score in got] == pytest.approx(scores, abs=tolerance, rel=tolerance)
    for place, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        tied = [score for other, score in enumerate(scores) if other != place and abs(score - theirs[1]) < tolerance]
        assert tied or mine[0] == theirs[0], f"rank {place}: {mine} is not {theirs}"
