"""The generator: decodes batches with one model or an ensemble. It is the entry point of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.errors import ConfigError
from seqgen.generation.bit_exact import narrowed, widened
from seqgen.generation.component import Phrases, Resources
from seqgen.generation.continuous_batching import decode_continuously
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.ensemble.member import MemberSpec
from seqgen.generation.finished import Ranking
from seqgen.generation.observers import Observer
from seqgen.generation.options import processors_from_config, setup_from_config
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
from seqgen.system.contract import returned


class SequenceGenerator:
    """Decodes batches of sentences.

    The parameters up to ``tokens_to_suppress`` have fairseq's names and meanings; the others are objects.

    Args:
        models: one or more models that share the target vocabulary; ``MemberSpec`` gives a model a role.
        tgt_dict: the target vocabulary.
        beam_size: hypotheses kept at each step.
        max_len_a: outputs have at most ``max_len_a * source length + max_len_b`` tokens, end-of-sentence not counted.
            The length of a source is that of the sentence itself, end-of-sentence included.
        max_len_b: see ``max_len_a``.
        max_len: outputs have at most this many tokens, end-of-sentence included; 0 for the models' own limit.
        min_len: outputs have at least this many tokens, end-of-sentence not counted.
        normalize_scores: divide cumulative log-probabilities by ``length ** len_penalty``, end-of-sentence counted.
        len_penalty: see ``normalize_scores``; above 1 favours longer outputs.
        unk_penalty: subtracted from the score of the unknown word; the scores of outputs include it.
        temperature: divides the logits.
        match_source_len: outputs have exactly the length of their source.
        no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 allows all.
        search_strategy: chooses candidates; beam search by default.
        tokens_to_suppress: tokens that are never generated.
        rules: ``FAIRSEQ`` or ``HUGGINGFACE``: how hypotheses finish, and the order of the processors.
        processors: further logits processors, applied after those of the parameters above.
        stopping: stopping rules besides end-of-sentence and the maximum length.
        observers: called at every step.
        combination: combines the members' scores; the mean of probabilities by default.
        ranking: turns sums of log-probabilities into scores, in place of ``normalize_scores`` and ``len_penalty``.
        early_stopping: ``"true"``, ``"false"`` or ``"never"``, see ``BestFinished``; Hugging Face's rules only.
        end_tokens: ids that end an output, end-of-sentence first; only end-of-sentence by default.
        need_attention: whether hypotheses have attention weights and alignments.
        debug: switches of optimizations.
        bit_exact: whether the numbers of a sentence have the same bits in every batch; see
            ``GenerationConfig.bit_exact``. Sources are padded with the padding of ``tgt_dict``.

    Raises:
        ConfigError: a parameter is out of range, or the models do not share the target vocabulary.
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
        bit_exact: bool = False,
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
        of_keys = processors_from_config(keys, rules, Resources(tgt_dict, extra_end_tokens=ends[1:]))
        self.setup = DecodingSetup(
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
            bit_exact=bit_exact,
        )

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
            models: one or more models that share the target vocabulary.
            tgt_dict: the target vocabulary.
            cfg: the configuration.
            tokenizer: the target tokenizer, for keys whose values are texts.
            draft: the model that ``generation.draft`` names; it has the same target vocabulary.
            objects: parameters of the constructor. ``search_strategy`` and ``combination`` replace those of the
                configuration; ``processors``, ``stopping`` and ``observers`` are added to them; ``need_attention`` and
                ``debug`` are set. ``shortlist`` is the ``VocabularyMap`` of the file that ``cfg.shortlist`` names.

        Raises:
            ConfigError: two keys contradict each other, or a component is not registered.
        """
        generator = cls.__new__(cls)
        generator.setup = setup_from_config(models, tgt_dict, cfg, tokenizer, draft, **objects)
        return generator

    @property
    def models(self) -> list[EncoderDecoderModel]:
        """The models of the members; see ``Ensemble.models``."""
        return self.setup.ensemble.models

    @property
    def beam_size(self) -> int:
        """Beams of each sentence, which is also its maximum number of hypotheses."""
        return self.setup.beam_size

    @property
    def can_merge(self) -> bool:
        """Whether waiting sentences may join a running batch."""
        return self.setup.can_merge

    def summary(self) -> str:
        """A sentence about the batches decoded so far, for the user; empty for none."""
        speakers: list[Search | Observer] = [self.setup.search, *self.setup.observers]
        return " ".join(filter(None, (returned(one, "summary", one.summary(), str) for one in speakers)))

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
            constraints: for each sentence the phrases (token ids) that its outputs must contain; the search strategy
                must support constraints.
            streamer: receives tokens as they are generated; needs one beam, or a strategy with independent beams.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them, or
            fewer if fewer outputs are possible or satisfy the constraints.

        Raises:
            ConfigError: the search strategy does not support the beam size or the constraints.
            DecodingError: a model returned NaN or infinity.
        """
        setup = self.setup
        if sample.num_sentences == 0:
            return []
        read = widened(sample, setup.ensemble, setup.pad) if setup.bit_exact else sample
        with setup.ensemble.evaluating(), setup.switched():
            results = self._run(DecodingRequest(read, prefix_tokens, constraints, streamer))
        if setup.bit_exact:
            model = setup.ensemble.models[0]
            return [[narrowed(one, sample, model) for one in hypotheses] for hypotheses in results]
        return results

    def _run(self, request: DecodingRequest) -> list[list[Hypothesis]]:
        """Check a request, and decode it in a session of its own."""
        setup = self.setup
        if request.streamer is not None and setup.beam_size > 1 and not setup.search.independent_rows:
            raise ConfigError(
                f"beam search can replace tokens that it has generated, so that beam_size={setup.beam_size} cannot "
                "be streamed; use beam_size=1 or sampling"
            )
        if request.constraints is not None:
            check_phrases(request.constraints, request.sample.num_sentences, setup.vocab_size)
        session_class = setup.search.session_class or Session
        results: list[list[Hypothesis]] = session_class(setup, request).run()
        return results

    @torch.inference_mode()
    def generate_continuously(
        self, waiting: Callable[[int, int], Batch | None]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode any number of sentences by continuous batching: waiting sentences replace those that are done.

        The batch stays full, whereas a separate batch shrinks after its shortest output. If ``can_merge`` is false,
        each batch is decoded separately.

        Args:
            waiting: called with the number of sentences in the running batch and the width of their sources; returns a
                batch of sentences that join it, or ``None`` if no more fit or none are left.

        Yields:
            The number of a sentence in its batch's ``ids``, and its hypotheses, in the order in which they are done.
        """
        with self.setup.ensemble.evaluating():
            if self.can_merge:
                found = decode_continuously(self.setup, waiting)
                while True:
                    with self.setup.switched():  # only while decoding, not while the caller uses the result
                        result = next(found, None)
                    if result is None:
                        return
                    yield result
            while (batch := waiting(0, 0)) is not None:
                yield from zip(batch.ids.tolist(), self.generate(batch), strict=True)

    def last_steps(self, src_lengths: Tensor) -> Tensor:
        """The last step of each sentence; see ``Limits.last_steps``."""
        return self.setup.limits.last_steps(src_lengths)
