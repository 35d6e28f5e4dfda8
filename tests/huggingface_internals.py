"""Pairs of a tiny random model of transformers and the same model here, with one batch, to compare their insides."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.core.structures import Batch, Hypothesis, Source
from seqgen.extend import Dictionary, GenerationConfig, SequenceGenerator, build_setup, load_model
from tests.huggingface_bart import KINDS
from tests.huggingface_families import reread, tiny_model, write_folder
from tests.huggingface_t5 import VARIANTS

FAST = ("byt5", "bart", "mbart")
"""The kinds that the fast tests try: an encoder that is deeper than the decoder, norms after and before sublayers."""

every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in FAST else [pytest.mark.slow]) for kind in (*VARIANTS, *KINDS)]
)


@dataclass(frozen=True)
class Pair:
    """The same encoder-decoder model twice, and a batch.

    Attributes:
        original: the model of transformers, whose attention returns its weights.
        model: the model here.
        source: sources of unequal lengths.
        prefixes: ``(N, T)`` target prefixes of the same length.
    """

    original: Any
    model: Any
    source: Source
    prefixes: Tensor

    @property
    def pad(self) -> int:
        """Id of padding."""
        return int(self.original.config.pad_token_id)

    @property
    def eos(self) -> int:
        """Id of end-of-sentence."""
        return int(self.original.config.eos_token_id)

    @property
    def mask(self) -> Tensor:
        """``(N, S)`` bool, true where a source has a token."""
        return torch.arange(self.source.src_tokens.size(1)) < self.source.src_lengths.unsqueeze(1)

    @property
    def batch(self) -> Batch:
        """The batch without targets."""
        return Batch(torch.arange(len(self.prefixes)), self.source)

    @property
    def words(self) -> Dictionary:
        """A dictionary with the special ids of the model."""
        words = [f"w{number}" for number in range(self.original.config.vocab_size)]
        unknown = next(number for number in range(2, 9) if number not in (self.pad, self.eos))
        return Dictionary(words, pad=self.pad, eos=self.eos, unk=unknown, bos=None)

    def original_pass(self, **arguments: Any) -> Any:
        """The pass of transformers over the batch; ``arguments`` replace those that it is given."""
        given = {"input_ids": self.source.src_tokens, "decoder_input_ids": self.prefixes}
        if "inputs_embeds" in arguments or "encoder_outputs" in arguments:
            del given["input_ids"]
        if "decoder_inputs_embeds" in arguments:
            del given["decoder_input_ids"]
        return self.original(**given, attention_mask=self.mask.long(), **arguments)

    def pass_(self) -> Tensor:
        """The logits here over the batch, ``(N, T, V)``."""
        logits: Tensor = self.model(self.source.src_tokens, self.source.src_lengths, self.prefixes).logits
        return logits

    def original_decode(self, beam: int, length: int, **arguments: Any) -> Any:
        """Decode by transformers without forced tokens, with outputs of up to ``length`` tokens.

        A sentence is done at its ``beam``-th hypothesis: by the default rule its result depends on the batch.
        """
        if not {"inputs_embeds", "encoder_outputs"} & arguments.keys():
            arguments["inputs"] = self.source.src_tokens
        values = {"num_beams": beam, "num_return_sequences": beam, "max_new_tokens": length, "early_stopping": beam > 1}
        values |= {"min_length": 0, "forced_bos_token_id": None, "forced_eos_token_id": None, "bad_words_ids": None}
        return self.original.generate(
            **{"attention_mask": self.mask.long(), "do_sample": False, **values, **arguments},
            **{"return_dict_in_generate": True, "output_scores": True},
        )

    def decode(self, beam: int, length: int, batch: Batch | None = None, **options: Any) -> list[list[Hypothesis]]:
        """Decode here by Hugging Face's rules, with outputs of up to ``length`` tokens."""
        early = {"early_stopping": "true"} if beam > 1 else {}
        cfg = GenerationConfig(semantics="huggingface", beam=beam, max_len=length, min_len=0, **early)
        generator = SequenceGenerator(build_setup([self.model], self.words, cfg, **options))
        return generator.generate(batch or self.batch)


def pair_of(kind: str) -> Pair:
    """A pair of one of the kinds of T5 or of BART."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder), tiny_model(kind))
        original, model = reread(path), load_model(path).model
    pad, eos, start = (getattr(original.config, f"{name}_token_id") for name in ("pad", "eos", "decoder_start"))
    sources = torch.tensor([[8, 9, 20, 25, 6, eos], [7, eos, *[pad] * 4], [9, 6, 30, eos, pad, pad]])
    prefixes = torch.tensor([[start or 0, *words] for words in ([8, 6, 11], [28, 31, 20], [eos, 7, 7])])
    return Pair(original, model, Source(sources, torch.tensor([6, 2, 4])), prefixes)


def assert_near(got: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)
