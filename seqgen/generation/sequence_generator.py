"""The generator: decodes batches with one model or an ensemble. The user's entry point to decoding."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.errors import ConfigError
from seqgen.generation.component import Phrases, Resources
from seqgen.generation.continuous_batching import ContinuousBatching
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.ensemble.member import MemberSpec
from seqgen.generation.finished import Ranking
from seqgen.generation.observers import Observer
from seqgen.generation.options import setup_from_config
from seqgen.generation.processor_options import processors_from_config
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.rules import FAIRSEQ, Rules
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.search.lexical_constraints import check_phrases
from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest, DecodingSetup, Limits, Streamer, longest_output
from seqgen.generation.stopping import StoppingRule
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis


class SequenceGenerator:
    """Decodes batches of sentences.

    The parameters up to ``tokens_to_suppress`` have fairseq's names and meanings; everything else is an object.

    Args:
        models: one or more models over one target vocabulary; ``MemberSpec`` gives one a part of its own.
        tgt_dict: that vocabulary.
        beam_size: hypotheses kept at each step.
        max_len_a: outputs have at most ``max_len_a * source length + max_len_b`` tokens, end-of-sentence not counted;
            each sentence's own source counts, with its end-of-sentence.
        max_len_b: see ``max_len_a``.
        max_len: outputs have at most this many tokens, end-of-sentence included; 0 for what the models can write.
        min_len: outputs have at least this many tokens, end-of-sentence not counted.
        normalize_scores: divide cumulative log-probabilities by ``length ** len_penalty``, end-of-sentence counted.
        len_penalty: see ``normalize_scores``; above 1 favours longer outputs.
        unk_penalty: subtracted from the score of the unknown word; the scores of outputs include it.
        temperature: divides the logits.
        match_source_len: outputs are exactly as long as their source.
        no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 for no such rule.
        search_strategy: chooses candidates; beam search if not given.
        tokens_to_suppress: tokens that are never written.
        rules: whose rules finish hypotheses and order the processors: ``FAIRSEQ`` or ``HUGGINGFACE``.
        processors: further logits processors, after those that the parameters above ask for.
        stopping: rules that end an output besides end-of-sentence and the maximum length.
        observers: are told of every step.
        combination: combines the members' scores; by default the mean of probabilities.
        ranking: how finished hypotheses score, in place of ``normalize_scores`` and ``len_penalty``.
        early_stopping: ``"true"``, ``"false"`` or ``"never"``, see ``BestFinished``; Hugging Face's rules only.
        end_tokens: ids that end an output, end-of-sentence first; end-of-sentence alone if not given.
        need_attention: whether hypotheses carry attention and alignment.
        debug: switches that turn optimizations off.

    Raises:
        ConfigError: a parameter is out of its range, or the models do not share the target vocabulary.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoderModel | MemberSpec],
        tgt_dict: Dictionary,
        beam_size: int = 1,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        max_len: int = 0,
        min_len: int = 1,
        normalize_scores: bool = True,
        len_penalty: float = 1.0,
        unk_penalty: float = 0.0,
        temperature: float = 1.0,
        match_source_len: bool = False,
        no_repeat_ngram_size: int = 0,
        search_strategy: Search | None = None,
        tokens_to_suppress: Sequence[str] = (),
        *,
        rules: Rules = FAIRSEQ,
        processors: Sequence[LogitsProcessor] = (),
        stopping: Sequence[StoppingRule] = (),
        observers: Sequence[Observer] = (),
        combination: Combination | None = None,
        ranking: Ranking | None = None,
        early_stopping: str = "false",
        end_tokens: Sequence[int] = (),
        need_attention: bool = False,
        debug: DebugConfig | None = None,
    ):
        if beam_size < 1 or temperature <= 0 or min_len < 0 or no_repeat_ngram_size < 0 or max_len_b < 0:
            raise ConfigError(
                f"beam_size={beam_size} must be at least 1, temperature={temperature} above 0, and min_len={min_len}, "
                f"max_len_b={max_len_b} and no_repeat_ngram_size={no_repeat_ngram_size} not negative"
            )
        ensemble, search = Ensemble(models, combination), rules.search(search_strategy or BeamSearch())
        limits = Limits(max_len_a, max_len_b, longest_output(ensemble, max_len), match_source_len)
        ends = list(end_tokens) or [tgt_dict.eos()]
        keys = GenerationConfig(
            min_len=0 if match_source_len else min_len,
            match_source_len=match_source_len,
            unkpen=unk_penalty,
            no_repeat_ngram_size=no_repeat_ngram_size,
            suppress=list(tokens_to_suppress),
        )
        of_keys = processors_from_config(keys, rules, Resources(tgt_dict, further_ends=ends[1:]))
        self._set_up(
            DecodingSetup(
                ensemble=ensemble,
                rules=rules,
                search=search,
                processors=[*of_keys, *processors],
                stopping=list(stopping),
                observers=list(observers),
                ranking=ranking or Ranking(normalize_scores, len_penalty),
                limits=limits,
                beam_size=search.rows(beam_size),
                temperature=temperature,
                early_stopping=early_stopping,
                eos=tgt_dict.eos(),
                pad=tgt_dict.pad(),
                end_tokens=ends,
                vocab_size=len(tgt_dict),
                need_attention=need_attention,
                debug=debug or DebugConfig(),
            )
        )

    def _set_up(self, setup: DecodingSetup) -> None:
        self.setup = setup

    @classmethod
    def from_config(
        cls,
        models: Sequence[EncoderDecoderModel | MemberSpec],
        tgt_dict: Dictionary,
        cfg: GenerationConfig,
        tokenizer: Tokenizer | None = None,
        draft: EncoderDecoderModel | None = None,
        **objects: Any,
    ) -> Self:
        """Make a generator from the ``generation`` group of a configuration.

        Args:
            models: one or more models over one target vocabulary.
            tgt_dict: that vocabulary.
            cfg: the configuration.
            tokenizer: that of the target language, for keys whose values are texts.
            draft: the model that ``generation.draft`` names, over the same target vocabulary.
            objects: objects in place of or besides what the configuration names, by the names of the constructor:
                ``search_strategy`` and ``combination`` replace, ``processors``, ``stopping`` and ``observers`` are
                added, ``need_attention`` and ``debug`` are set.

        Raises:
            ConfigError: the configuration contradicts itself, or names a component that does not exist.
        """
        generator = cls.__new__(cls)
        generator._set_up(setup_from_config(models, tgt_dict, cfg, tokenizer, draft, **objects))
        return generator

    @property
    def models(self) -> list[EncoderDecoderModel]:
        """The models that read the input."""
        return self.setup.ensemble.models

    @property
    def beam_size(self) -> int:
        """Beams of each sentence, which are also the most hypotheses that it gets."""
        return self.setup.beam_size

    @property
    def joins(self) -> bool:
        """Whether waiting sentences may join a running batch."""
        return self.setup.joins

    @torch.inference_mode()
    def generate(
        self,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            sample: the batch; only its sources are read.
            prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases (token ids) that its outputs must contain; for a search strategy
                that takes constraints.
            streamer: receives tokens as they are generated; for one beam, or beams that are hypotheses of their own.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them,
            fewer only where fewer continuations are possible at all, or where beams lack a phrase when they must end.

        Raises:
            ConfigError: the search strategy does not suit the beam size, or does not take constraints or these.
            DecodingError: a model gave NaN or infinity.
        """
        setup = self.setup
        if streamer is not None and setup.beam_size > 1 and not setup.search.independent_rows:
            raise ConfigError(
                f"a beam search may replace tokens that it has generated, so that beam_size={setup.beam_size} cannot "
                "be streamed; take beam_size=1 or sampling"
            )
        if sample.num_sentences == 0:
            return []
        if constraints is not None:
            check_phrases(constraints, sample.num_sentences, setup.vocab_size)
        session_class = setup.search.session_class or Session
        with setup.ensemble.evaluating(), setup.switched():
            results: list[list[Hypothesis]] = session_class(
                setup, DecodingRequest(sample, prefix_tokens, constraints, streamer)
            ).run()
        return results

    @torch.inference_mode()
    def generate_continuously(
        self, waiting: Callable[[int, int], Batch | None]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode any number of sentences by continuous batching: waiting ones join as places become free.

        So the rows of the batch stay full, whereas a batch by itself empties from its shortest output on. Where
        ``joins`` is false each batch is decoded by itself.

        Args:
            waiting: is told how many sentences are being decoded, and how wide their sources are, and gives a batch of
                those that wait, to be decoded beside them; ``None`` when no more fit, or none is left.

        Yields:
            The number of a sentence in its batch's ``ids``, and its hypotheses, in the order in which they are done.
        """
        with self.setup.ensemble.evaluating():
            if self.joins:
                found = ContinuousBatching(self.setup, waiting).run()
                while True:
                    with self.setup.switched():  # not while the caller does other things
                        result = next(found, None)
                    if result is None:
                        return
                    yield result
            while (batch := waiting(0, 0)) is not None:
                yield from zip(batch.ids.tolist(), self.generate(batch), strict=True)

    def generate_rolling(self, waiting: Callable[[int, int], Batch | None]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The former name of ``generate_continuously``."""
        warnings.warn("generate_rolling is now generate_continuously", DeprecationWarning, stacklevel=2)
        return self.generate_continuously(waiting)

    def last_steps(self, src_lengths: Tensor) -> Tensor:
        """The last step of each sentence; see ``Limits.last_steps``."""
        return self.setup.limits.last_steps(src_lengths)
