"""Criteria that decode with the model that is trained, and score its outputs with gradients.

An update with such a criterion has two parts. ``decode`` searches with the model as it is, without dropout and without
gradients, by the code of ``seqgen-generate``. ``rescore`` computes the log-probabilities of the outputs again, by
teacher forcing and with gradients. In evaluation, both give the same numbers up to rounding.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from seqgen.config import GenerationConfig, option
from seqgen.config.compose import named_in_training
from seqgen.config.generation import keys_tagged
from seqgen.config.options import NOT_IN_TRAINING
from seqgen.config.values import changed
from seqgen.core.errors import ConfigError
from seqgen.core.member import encode
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch, EncoderOut, Hypothesis, map_tensors
from seqgen.decoding.building import Resources
from seqgen.decoding.search.sampling import RandomSearch
from seqgen.text.reranking import Utility, UtilityLine, compare_texts, utility_from_config
from seqgen.training.criteria import Criterion, CriterionOut, TargetPositions, has_default_forward
from seqgen.training.cross_entropy import cross_entropy

if TYPE_CHECKING:
    from seqgen.task import Task

Hypotheses = Sequence[Sequence[Hypothesis]]


def decode_option(**values: Any) -> Any:
    """A field for decoding keys, ``criterion.decode.KEY``.

    Args:
        values: defaults other than those of ``generation.KEY``.
    """
    return field(default_factory=lambda: GenerationConfig(**{"mbr": "chrf", **values}))


@dataclass
class SequenceConfig:
    """Options of every criterion that decodes."""

    decode: GenerationConfig = decode_option()
    token_loss: float = option(
        0.0, "weight of the cross-entropy with the references; the sequence loss has the rest", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class Rescored:
    """Log-probabilities of the hypotheses of a batch, with gradients.

    Attributes:
        token_lprobs: ``(N, K, T)`` in nats; 0 after the end of a hypothesis.
        mask: ``(N, K, T)`` bool, true where a hypothesis has a token. A sentence can have fewer than ``K`` hypotheses.
        drawn: the same without the end-of-sentence that is forced at the maximum length.
        features: ``(N, K, T, C)`` last features of the decoder, from which each token is predicted, with gradients; 0
            after the end of a hypothesis. ``None`` if they are not requested, there is no hypothesis, or the model is
            not composed; see ``has_default_forward``.
    """

    token_lprobs: Tensor
    mask: Tensor
    drawn: Tensor
    features: Tensor | None = None

    @property
    def lprobs(self) -> Tensor:
        """``(N, K)`` log-probability of each hypothesis; 0 where there is none."""
        return self.token_lprobs.sum(-1)

    @property
    def lengths(self) -> Tensor:
        """``(N, K)`` int64 tokens of each hypothesis, end-of-sentence included; 0 where there is none."""
        return self.mask.sum(-1)

    @property
    def present(self) -> Tensor:
        """``(N, K)`` bool, whether there is a hypothesis."""
        return self.mask.any(-1)


class SequenceCriterion(Criterion):
    """Base class of criteria that decode; a subclass implements ``sequence_loss``.

    The loss is ``token_loss`` times the cross-entropy with the references plus ``1 - token_loss`` times the sequence
    loss. Both are sums over sentences, and ``sample_size`` is the number of sentences.

    Args:
        cfg: an instance of a subclass of ``SequenceConfig``.
        task: the task.

    Raises:
        ConfigError: a decoding key has no effect in training.
    """

    def __init__(self, cfg: Any, task: Task):
        super().__init__(cfg, task)
        unused = sorted(set(keys_tagged(NOT_IN_TRAINING)).intersection(changed(cfg.decode)))
        if unused:
            raise ConfigError(
                f"criterion.decode.{unused[0]} has no effect: all hypotheses of a training batch are decoded together "
                "by the model that is trained; remove it"
            )
        tokenizer = task.target_tokenizer
        resources = Resources(task.target_dictionary, tokenizer.encode, tokenizer.decode)
        with named_in_training():
            self.utility: Utility = utility_from_config(cfg.decode, resources)

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Compute the loss of a batch by decoding.

        Args:
            model: the model, in training or evaluation mode.
            batch: a batch with a target.

        Returns:
            The loss, a scalar summed over sentences, and values to log, summed over sentences.
        """
        raise NotImplementedError

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the interpolated loss; see ``Criterion``."""
        weight, words = self.cfg.token_loss, self.task.target_dictionary
        kept = TargetPositions(batch, words.pad())
        with torch.set_grad_enabled(torch.is_grad_enabled() and weight > 0):
            token_loss, nll, correct = cross_entropy(kept.logits(model, kept.features(model)), kept.target)
        loss, logged = self.sequence_loss(model, batch) if weight < 1 else (0.0, {})
        tokens, sentences = kept.target.numel(), batch.ids.numel()
        logged = {"nll_loss": nll, "correct": correct, "ntokens": tokens, "nsentences": sentences, **logged}
        return CriterionOut(weight * token_loss + (1 - weight) * loss, sentences, logged)

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def decode(
        self,
        model: EncoderDecoderModel | Sequence[EncoderDecoderModel],
        batch: Batch,
        prefix_tokens: Tensor | None = None,
        cfg: GenerationConfig | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode the sources of a batch with the model as it is now, in evaluation mode, by ``criterion.decode.KEY``.

        The random numbers of sampling depend on the strategy's seed, the number of the update, the sentence and the
        step. Those of training are left as they are.

        Args:
            model: the model that is trained; or several, such as teachers, which decode as an ensemble.
            batch: the batch. Outputs of one model begin after the first decoder input of its target, those of an
                ensemble after the start token of each model.
            prefix_tokens: ``(N, P)`` int64 tokens that each output begins with, padded on the right.
            cfg: other decoding keys, such as those of a greedy baseline.

        Returns:
            The hypotheses of each sentence, best first, at most ``criterion.decode.beam``.

        Raises:
            ConfigError: rows have several examples, or the decoding keys contradict each other.
        """
        if batch.segments is not None:
            raise ConfigError("a criterion that decodes needs dataset.pack=false")
        alone, previous = isinstance(model, EncoderDecoderModel), batch.prev_output_tokens
        first = previous[:, 0] if alone and previous is not None else None
        sample = replace(batch, prev_output_tokens=None, target=None, target_lengths=None, start_tokens=first)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng())
            stack.enter_context(torch.autocast(batch.ids.device.type, enabled=False))
            models = [model] if isinstance(model, EncoderDecoderModel) else model
            whole = [stack.enter_context(self.context.whole_model(one)) for one in models]
            with named_in_training():
                generator = self.task.build_generator(whole, cfg or self._search_keys())
            if isinstance(search := generator.setup.search, RandomSearch):
                search.seed += self.update
            found = self.task.inference_step(generator, whole, sample, prefix_tokens)
        # tensors of inference mode cannot be saved for the backward pass
        return [[map_tensors(hypothesis, Tensor.clone) for hypothesis in hypotheses] for hypotheses in found]

    def _search_keys(self) -> GenerationConfig:
        """The decoding keys without the utility, which measures hypotheses with references here, also a single one."""
        cfg: GenerationConfig = self.cfg.decode
        own = {key: value for key, value in cfg.components.items() if not key.startswith("utility.")}
        return replace(cfg, mbr="", components=own)

    def with_references(self, batch: Batch, hypotheses: Hypotheses) -> list[list[Hypothesis]]:
        """Add the reference of each sentence to its hypotheses, as the last one, unless it is among them.

        Args:
            batch: a batch with a target.
            hypotheses: those of each sentence.

        Returns:
            The hypotheses of each sentence. The scores of an added reference are NaN; see ``rescore``.
        """
        references = (Hypothesis(one, math.nan, torch.full((len(one),), math.nan)) for one in self.references(batch))
        pairs = zip(hypotheses, references, strict=True)
        return [
            [*row, *([] if any(torch.equal(one.tokens, own.tokens) for one in row) else [own])] for row, own in pairs
        ]

    def references(self, batch: Batch) -> list[Tensor]:
        """The target tokens of each sentence without padding, ``(T,)`` int64 on the CPU."""
        kept = TargetPositions(batch, self.task.target_dictionary.pad())
        assert batch.target is not None
        rows = torch.div(kept.kept, batch.target.size(1), rounding_mode="floor")
        counts = rows.bincount(minlength=batch.target.size(0)).tolist()
        return list(kept.target.cpu().split(counts))

    def source_texts(self, batch: Batch) -> list[str]:
        """The source of each sentence, which utilities may read."""
        words, decode = self.task.source_dictionary, self.task.source_tokenizer.decode
        rows, specials = batch.source.src_tokens.tolist(), {words.eos(), words.pad(), words.bos()}
        return [decode([token for token in row if token not in specials]) for row in rows]

    def utilities(self, batch: Batch, hypotheses: Hypotheses) -> Tensor:
        """Measure hypotheses with the references, by the utility that ``criterion.decode.mbr`` names.

        Args:
            batch: a batch with a target.
            hypotheses: those of each sentence.

        Returns:
            ``(N, K)`` float64 utilities, between 0 and 100; 0 where there is no hypothesis.
        """
        decode, references = self.task.decode, self.references(batch)
        lines = [
            UtilityLine(source, [decode(one.tokens) for one in row], [decode(reference)])
            for source, row, reference in zip(self.source_texts(batch), hypotheses, references, strict=True)
        ]
        found = [torch.from_numpy(one[:, 0]) for one in compare_texts(self.utility, lines)]
        return pad_sequence(found, batch_first=True).to(batch.ids.device)

    def rescore(
        self, model: EncoderDecoderModel, batch: Batch, hypotheses: Hypotheses, features: bool = False
    ) -> Rescored:
        """Compute log-probabilities by teacher forcing, with gradients, and with dropout if the model is in training.

        Each source is encoded once. Hypotheses of similar lengths are computed together, at most as many tokens as the
        batch has, padding included. Their logits are not stored, but computed again in the backward pass.

        Args:
            model: the model.
            batch: has the sources.
            hypotheses: those of each sentence; only ``tokens`` and ``forced_end`` are read.
            features: whether to return the features of the decoder, too.

        Returns:
            The log-probabilities, in float32 or more.
        """
        rows = [_Row(i, j, one.tokens, one.forced_end) for i, row in enumerate(hypotheses) for j, one in enumerate(row)]
        rows.sort(key=lambda row: len(row.tokens))
        longest, most = len(rows[-1].tokens) if rows else 1, max(map(len, hypotheses), default=1)
        shape = (len(hypotheses), most, longest)
        if not rows:
            nothing = torch.zeros(shape, device=batch.ids.device)
            return Rescored(nothing, nothing.bool(), nothing.bool())
        source = batch.source
        encoder_out = encode(model.encoder, source) if has_default_forward(model) else None
        sides = [side.numel() for side in (source.src_tokens, batch.target) if side is not None]
        parts = _parts(rows, max(*sides, longest))
        missing = self.context.passes(model, len(parts)) - len(parts)
        found = [_token_lprobs(model, _collated(model, batch, part, encoder_out)) for part in parts]
        values = [lprobs for lprobs, _ in found]
        with torch.random.fork_rng():
            for _ in range(missing):
                values[-1] = values[-1] + 0 * _token_lprobs(model, _collated(model, batch, parts[-1], encoder_out))[0]
        lprobs, eos = torch.cat(values), self.task.target_dictionary.eos()
        # row i, hypothesis j and token t is element (i * K + j) * T + t
        starts = ((row.sentence * most + row.place) * longest for row in rows)
        pairs = [(torch.arange(start, start + len(row.tokens)), row) for start, row in zip(starts, rows, strict=True)]
        places = torch.cat([of_row for of_row, _ in pairs]).to(lprobs.device)
        forced = [int(of_row[-1]) for of_row, row in pairs if row.forced_end and row.tokens[-1] == eos]

        def placed(values: Tensor) -> Tensor:
            flat = values.new_zeros(math.prod(shape), *values.shape[1:])
            return flat.index_put((places,), values).view(*shape, *values.shape[1:])

        mask = placed(torch.ones_like(places, dtype=torch.bool))
        drawn = mask.flatten().index_fill(0, places.new_tensor(forced), False).view(shape)
        wanted = features and encoder_out is not None
        return Rescored(placed(lprobs), mask, drawn, placed(torch.cat([one for _, one in found])) if wanted else None)


class _Row(NamedTuple):
    """A hypothesis to score: that of which sentence, the how many-th, its tokens, and whether its end was forced."""

    sentence: int
    place: int
    tokens: Tensor
    forced_end: bool = False


def _parts(rows: Sequence[_Row], max_tokens: int) -> list[list[_Row]]:
    """Divide rows that are sorted by length into parts with at most ``max_tokens`` tokens, padding included."""
    parts: list[list[_Row]] = []
    for row in rows:
        if not parts or (len(parts[-1]) + 1) * len(row.tokens) > max_tokens:
            parts.append([])
        parts[-1].append(row)
    return parts


def _collated(model: EncoderDecoderModel, batch: Batch, rows: Sequence[_Row], encoder_out: EncoderOut | None) -> Batch:
    """A batch whose targets are these rows, with the sources, or encoder outputs, of their sentences."""
    device = batch.ids.device
    chosen = torch.tensor([row.sentence for row in rows], device=device)
    lengths = torch.tensor([len(row.tokens) for row in rows])
    target = pad_sequence([row.tokens.to(device) for row in rows], batch_first=True)
    assert batch.prev_output_tokens is not None
    previous = torch.cat([batch.prev_output_tokens[chosen, :1], target[:, :-1]], dim=1)
    own = None if encoder_out is None else model.encoder.reorder_encoder_out(encoder_out, chosen)
    source = replace(map_tensors(replace(batch.source, encoder_out=None), lambda one: one[chosen]), encoder_out=own)
    return Batch(batch.ids[chosen], source, previous, target, int(lengths.sum()), target_lengths=lengths.to(device))


def _token_lprobs(model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, Any]:
    """``(M,)`` log-probabilities of the target tokens, row by row, and ``(M, C)`` features; no logits are stored."""
    kept = TargetPositions(batch, pad=-1)
    features = kept.features(model)

    def lprobs_of(features: Tensor | None) -> Tensor:
        logits = kept.logits(model, features)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return model.get_normalized_probs(logits, log_probs=True).gather(1, kept.target.unsqueeze(1)).squeeze(1)

    if features is None or not torch.is_grad_enabled():
        return lprobs_of(features), features
    return checkpoint(lprobs_of, features, use_reentrant=False), features
