"""The generator: drives a search over one model or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.decoder import Decoder
from seqgen.errors import ConfigError
from seqgen.generation.compatibility import check_combinations
from seqgen.generation.continuous_batching import RollingDecoding
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.finished import Ranking
from seqgen.generation.procedure import Procedure
from seqgen.generation.processors.base import (
    Forbid,
    ForceEndAtMaximum,
    ForcePrefix,
    LogitsProcessor,
    MinimumLength,
    NoRepeatNgram,
    UnknownPenalty,
)
from seqgen.generation.processors.setup import (
    end_symbols_from_config,
    processors_from_config,
    warpers_from_config,
)
from seqgen.generation.search.base import BeamSearch, Phrases, Search, search_from_config, search_name
from seqgen.generation.search.lexical_constraints import check_phrases
from seqgen.generation.session import Streamer
from seqgen.generation.speculative.verification import speculation_from_config
from seqgen.generation.stopping import StoppingRule, stopping_from_config
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis

if TYPE_CHECKING:
    from seqgen.data.dictionary import Dictionary
    from seqgen.data.tokenizers.base import Tokenizer


class SequenceGenerator:
    """Decodes batches of sentences.

    Hypotheses are ranked by the sum of log-probabilities while they grow. By fairseq's semantics, of the ``2 * beam``
    best continuations those among the first ``beam`` that are end-of-sentence finish a hypothesis, the first ``beam``
    others go on, and a sentence is done when ``beam`` hypotheses have finished. docs/decoding.md compares that with
    Hugging Face's.

    Args:
        models: one or more models over one target vocabulary.
        tgt_dict: that vocabulary.
        beam_size: hypotheses kept at each step.
        max_len_a: outputs have at most ``max_len_a * source length + max_len_b`` tokens, end-of-sentence not counted;
            each sentence's own source counts, with its end-of-sentence.
        max_len_b: see ``max_len_a``.
        max_len: outputs have at most this many tokens, end-of-sentence included; 0 for what the models can write.
        min_len: outputs have at least this many tokens, end-of-sentence not counted.
        normalize_scores: divide the sum of log-probabilities by ``length ** len_penalty``, end-of-sentence counted.
        len_penalty: see ``normalize_scores``; above 1 favours longer outputs.
        length_penalty: ``"power"``, or ``"wu"`` for ``((5 + length) / 6) ** len_penalty``.
        coverage_penalty: weight of the coverage penalty, see ``Ranking``.
        unk_penalty: subtracted from the score of the unknown word, and it stays in the scores.
        temperature: divides the logits.
        match_source_len: outputs are exactly as long as their source.
        no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 for no such rule.
        search_strategy: chooses candidates; beam search if not given.
        logits_processors: further changes to the scores, after those that the parameters above ask for.
        processors: all changes to the scores, in place of those.
        tokens_to_suppress: symbols that are never written.
        ensemble_average: ``"probability"`` or ``"log"``, see ``Ensemble``.
        ensemble_weights: see ``Ensemble``.
        need_attention: whether hypotheses carry attention and alignment.
        semantics: ``"fairseq"`` or ``"huggingface"``: whose rules end hypotheses.
        early_stopping: ``"true"``, ``"false"`` or ``"never"``, see ``BestFinished``; Hugging Face's semantics only.
        end_tokens: ids that end an output; end-of-sentence if not given.
        stopping: further rules that end an output.
        guidance_scale: above 1 for classifier-free guidance, see ``guide``.
        use_cache: whether decoding goes on from a state rather than computing all positions at every step.
        beam_table: whether self-attention keeps keys and values in place rather than moves them with the beams; by
            default where that pays.
        add_logits: whether the search may add logits where nothing needs normalized scores, rather than
            log-probabilities of the whole vocabulary.
        compact_at: sentences that are done are moved away when their number times this reaches that of the batch.
        procedure: decodes batches; the search strategy's own way if not given.

    Raises:
        ConfigError: a parameter is out of its range, or the models do not share the target vocabulary.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoderModel],
        tgt_dict: Dictionary,
        beam_size: int = 1,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        max_len: int = 0,
        min_len: int = 1,
        normalize_scores: bool = True,
        len_penalty: float = 1.0,
        length_penalty: str = "power",
        coverage_penalty: float = 0.0,
        unk_penalty: float = 0.0,
        temperature: float = 1.0,
        match_source_len: bool = False,
        no_repeat_ngram_size: int = 0,
        search_strategy: Search | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        processors: Sequence[LogitsProcessor] | None = None,
        tokens_to_suppress: Sequence[str] = (),
        ensemble_average: str = "probability",
        ensemble_weights: Sequence[float] = (),
        need_attention: bool = False,
        semantics: str = "fairseq",
        early_stopping: str = "false",
        end_tokens: Sequence[int] = (),
        stopping: Sequence[StoppingRule] = (),
        guidance_scale: float = 1.0,
        use_cache: bool = True,
        beam_table: bool | None = None,
        add_logits: bool = True,
        compact_at: int = 8,
        procedure: Procedure | None = None,
    ):
        if beam_size < 1 or temperature <= 0 or min_len < 0 or no_repeat_ngram_size < 0 or max_len_b < 0:
            raise ConfigError(
                f"beam_size={beam_size} must be at least 1, temperature={temperature} above 0, and min_len={min_len}, "
                f"max_len_b={max_len_b} and no_repeat_ngram_size={no_repeat_ngram_size} not negative"
            )
        self.models = list(models)
        self.ensemble = Ensemble(models, ensemble_average, ensemble_weights)
        self.tgt_dict = tgt_dict
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        self.search = search_strategy or BeamSearch()
        self.beam_size = self.search.rows(beam_size)
        self.max_len_a, self.max_len_b = max_len_a, max_len_b
        writable = min(model.max_positions()[1] for model in models)
        self.max_len = min(max_len, writable) if max_len else writable
        self.ranking = Ranking(normalize_scores, len_penalty, length_penalty, coverage_penalty)
        self.temperature = temperature
        self.match_source_len = match_source_len
        self.need_attention = need_attention or coverage_penalty > 0
        self.semantics, self.early_stopping = semantics, early_stopping
        self.end_tokens = list(end_tokens) or [self.eos]
        self.stopping = list(stopping)
        self.guidance_scale = guidance_scale
        self.use_cache, self.beam_table = use_cache, beam_table
        self.add_logits, self.compact_at = add_logits, compact_at
        self.procedure = procedure or self.search
        if processors is None:
            shortest = MinimumLength(
                self.max_len if match_source_len else min_len,
                self.end_tokens[1:],
                yields=semantics == "fairseq" or match_source_len,
            )
            processors = _usual_processors(tgt_dict, semantics, shortest, unk_penalty, tokens_to_suppress)
            processors += [NoRepeatNgram(no_repeat_ngram_size)] if no_repeat_ngram_size else []
        self.processors = [*processors, *logits_processors]

    @property
    def processors_read(self) -> bool:
        """Whether any processor looks at what has been written."""
        return any(processor.reads_tokens for processor in self.processors)

    @property
    def reads_history(self) -> bool:
        """Whether any decoder looks at more than the newest column of its input."""
        return not self.use_cache or any(getattr(model.decoder, "reads_history", True) for model in self.models)

    @property
    def processes_logits(self) -> bool:
        """Whether processors see logits, as Hugging Face's do in greedy search and sampling."""
        return self.semantics == "huggingface" and self.search.independent_rows and len(self.models) == 1

    @property
    def adds_logits(self) -> bool:
        """Whether logits can be searched as they are, without being normalized over the vocabulary."""
        return (
            self.add_logits
            and len(self.models) == 1
            and self.search.additive
            and self.guidance_scale == 1
            and type(self.models[0]).get_normalized_probs is EncoderDecoderModel.get_normalized_probs
            and type(self.models[0].decoder).get_normalized_probs is Decoder.get_normalized_probs
            and all(processor.shift_invariant for processor in self.processors)
        )

    @property
    def joins(self) -> bool:
        """Whether waiting sentences may join a batch that is being decoded."""
        return (
            self.use_cache
            and self.procedure is self.search
            and self.search.joins
            and not self.stopping
            and not self.need_attention
            and self.guidance_scale == 1
            and all(getattr(model.decoder, "joins", False) for model in self.models)
            and not any(_adjusts_logits(model) for model in self.models)
            and all(processor.joins for processor in self.processors)
        )

    @classmethod
    def from_config(
        cls,
        models: Sequence[EncoderDecoderModel],
        tgt_dict: Dictionary,
        cfg: GenerationConfig,
        tokenizer: Tokenizer | None = None,
        draft: EncoderDecoderModel | None = None,
        **further: Any,
    ) -> Self:
        """Make a generator from the ``generation`` group of a configuration.

        Args:
            models: one or more models over one target vocabulary.
            tgt_dict: that vocabulary.
            cfg: the configuration.
            tokenizer: that of the target language, for keys whose values are texts.
            draft: the model that ``generation.draft`` names, over the same target vocabulary.
            further: constructor arguments that the configuration does not have.

        Raises:
            ConfigError: the configuration contradicts itself, or names what there is not.
        """
        semantics = cfg.semantics or "fairseq"
        check_combinations(cfg, semantics)
        search = search_name(cfg, semantics)
        cfg = replace(cfg, search=search)
        encode = None if tokenizer is None else tokenizer.encode
        processors = [
            *processors_from_config(cfg, tgt_dict, semantics=semantics, encode=encode),
            *warpers_from_config(cfg, tgt_dict, semantics=semantics),
        ]
        strategy = search_from_config(cfg, semantics)
        if cfg.nbest > strategy.rows(cfg.beam):
            raise ConfigError(
                f"generation.nbest={cfg.nbest} hypotheses are more than the search strategy {search} gives, which is "
                f"{strategy.rows(cfg.beam)}; lower it, or take another strategy"
            )
        return cls(
            models,
            tgt_dict,
            beam_size=cfg.beam,
            max_len_a=cfg.max_len_a,
            max_len_b=_max_len_b(cfg),
            max_len=cfg.max_len,
            normalize_scores=not cfg.unnormalized,
            len_penalty=cfg.lenpen,
            length_penalty=cfg.length_penalty,
            coverage_penalty=cfg.coverage_penalty,
            temperature=cfg.temperature if semantics == "fairseq" else 1.0,
            match_source_len=cfg.match_source_len,
            search_strategy=strategy,
            processors=processors,
            ensemble_average=cfg.ensemble_average,
            ensemble_weights=cfg.ensemble_weights,
            semantics=semantics,
            early_stopping=cfg.early_stopping,
            end_tokens=end_symbols_from_config(cfg, tgt_dict),
            stopping=stopping_from_config(cfg, tgt_dict, tokenizer, cfg.stopping_rules),
            guidance_scale=cfg.guidance_scale,
            procedure=speculation_from_config(cfg, draft),
            **further,
        )

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
                that knows what to do with them.
            streamer: takes the tokens as they are written; for beams that do not change places.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them,
            fewer only where fewer continuations are possible at all, or where beams lack a phrase when they must end.

        Raises:
            ConfigError: the search strategy does not suit the beam size, or does not take constraints or these.
            DecodingError: a model gave NaN or infinity.
        """
        if streamer is not None and self.beam_size > 1 and not self.search.independent_rows:
            raise ConfigError(
                f"a beam search changes its mind about what it has written, so that beam_size={self.beam_size} cannot "
                "be streamed; take beam_size=1 or sampling"
            )
        if sample.num_sentences == 0:
            return []
        if constraints is not None:
            check_phrases(constraints, sample.num_sentences, len(self.tgt_dict))
        with self.ensemble.evaluating():
            return self.procedure.decode(self, sample, prefix_tokens, constraints, streamer)

    @torch.inference_mode()
    def generate_rolling(self, waiting: Callable[[int, int], Batch | None]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode any number of sentences, of which waiting ones join the batch as places come free.

        The rows of the batch so stay full, whereas a batch by itself empties from its shortest output on. Where
        ``joins`` is false each batch is decoded by itself.

        Args:
            waiting: is told how many sentences are being decoded, and how wide their sources are, and gives a batch of
                those that wait, to be decoded beside them; ``None`` when no more fit, or none is left.

        Yields:
            The number of a sentence in its batch's ``ids``, and its hypotheses, in the order in which they are done.
        """
        with self.ensemble.evaluating():
            if self.joins:
                yield from RollingDecoding(self, waiting).run()
                return
            while (batch := waiting(0, 0)) is not None:
                yield from zip(batch.ids.tolist(), self.generate(batch), strict=True)

    def max_lengths(self, src_lengths: Tensor) -> Tensor:
        """The step at which each sentence's end is forced.

        Args:
            src_lengths: ``(sentences,)`` int64, end-of-sentence included.

        Returns:
            ``(sentences,)`` int64.
        """
        if self.match_source_len:
            return (src_lengths - 1).clamp(max=self.max_len - 1)
        return (self.max_len_a * src_lengths + self.max_len_b).long().clamp(max=self.max_len - 1)


def _max_len_b(cfg: GenerationConfig) -> int:
    """Where a user gives ``max_len`` alone, the default of the other limit must not cut outputs off before it."""
    given = (cfg.max_len_a, cfg.max_len_b) != (GenerationConfig.max_len_a, GenerationConfig.max_len_b)
    return cfg.max_len_b if given or not cfg.max_len else max(cfg.max_len, cfg.max_len_b)


def _usual_processors(
    dictionary: Dictionary, semantics: str, shortest: MinimumLength, unk_penalty: float, suppress: Sequence[str]
) -> list[LogitsProcessor]:
    free: list[LogitsProcessor] = [shortest] if shortest.min_len else []
    if suppress:
        free.append(Forbid([_known_symbol(dictionary, symbol) for symbol in suppress]))
    penalty: list[LogitsProcessor] = [UnknownPenalty(dictionary.unk(), unk_penalty)] if unk_penalty else []
    if semantics == "huggingface":
        return [*penalty, ForcePrefix(otherwise=free)]
    return [Forbid([dictionary.pad()]), *penalty, ForceEndAtMaximum(), ForcePrefix(otherwise=free)]


def _adjusts_logits(model: EncoderDecoderModel) -> bool:
    own = type(model).adjust_logits_during_generation
    return own is not EncoderDecoderModel.adjust_logits_during_generation


def _known_symbol(dictionary: Dictionary, symbol: str) -> int:
    index = dictionary.index(symbol)
    if index == dictionary.unk() and symbol != dictionary.symbol(dictionary.unk()):
        raise ConfigError(f"generation.suppress: {symbol!r} is not in the target vocabulary")
    return index
