"""The scorer: log-probabilities of given targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.combinations import Combination, combine
from seqgen.core.component import ATTENTION, HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS, BatchInfo, begin_component
from seqgen.core.context import LayerLogits, StepContext, StepOutputs
from seqgen.core.encoder import inputs_of
from seqgen.core.ensemble import Ensemble
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.member import INPUT, MemberOutput, ModelOrMember, check_features, check_layers, encode, run_decoder
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.setup import BatchStage, Context
from seqgen.core.structures import Batch, Hypothesis, Source
from seqgen.modules.inspection import Internals, record_passes


@dataclass(frozen=True)
class ScoredTarget:
    """A target and its scores.

    Attributes:
        hypothesis: the target with the scores of the ensemble.
        member_scores: for each member that reads the input, ``(T,)`` log-probabilities of the tokens in nats.
    """

    hypothesis: Hypothesis
    member_scores: list[Tensor]


class SequenceScorer:
    """Scores the targets of a batch by teacher forcing.

    The scorer applies no temperature, processor or penalty. A generator without them gives an output the same score. A
    combination that reads the step context is called once for each position, as in decoding.

    Args:
        models: one or more models over one target vocabulary.
        pad: id of padding in it.
        eos: id of end-of-sentence in it.
        normalize_scores: whether a score is the mean over tokens; if not, it is the sum.
        combination: combines the members' scores; by default the mean of probabilities.
        need_attention: whether hypotheses have attention weights and alignments.

    Attributes:
        stages: change a batch before, and its hypotheses after it is scored, in this order.
        around: make contexts around the scoring of a batch.
    """

    def __init__(
        self,
        models: Sequence[ModelOrMember],
        pad: int,
        eos: int,
        normalize_scores: bool = True,
        combination: Combination | None = None,
        need_attention: bool = False,
    ):
        self.ensemble = Ensemble(models, combination)
        self.pad, self.eos = pad, eos
        self.normalize_scores = normalize_scores
        self.need_attention = need_attention
        self.stages: Sequence[BatchStage] = ()
        self.around: Sequence[Callable[[], Context]] = ()
        self.single = len(self.ensemble.members) == 1 and self.ensemble.combination.keeps_single
        members, what = [spec.model for spec in self.ensemble.members], type(self.ensemble.combination).__name__
        if HIDDEN_STATES in self.needs:
            check_features(members[:1], what)
        if LAYER_LOGITS in self.needs:
            check_layers(members, what)

    @property
    def needs(self) -> frozenset[str]:
        """The outputs that are needed besides the logits; see ``Component.needs``."""
        needs = frozenset() if self.single else self.ensemble.combination.needs
        return needs | {ATTENTION} if self.need_attention else needs

    def generate(self, sample: Batch) -> list[list[Hypothesis]]:
        """Score a batch.

        Args:
            sample: the batch, with targets.

        Returns:
            For each sentence a list of one hypothesis, the target.

        Raises:
            ConfigError: the batch has no targets.
            DecodingError: a model returned NaN.
        """
        return [[scored.hypothesis] for scored in self.score(sample)]

    @torch.inference_mode()
    def score(self, sample: Batch, lengths: Sequence[int] | None = None) -> list[ScoredTarget]:
        """Score a batch by the ensemble and by each member.

        Args:
            sample: the batch, with targets.
            lengths: number of tokens of each target. By default the tokens that are not padding are counted; give it
                for outputs that contain the padding token (Hugging Face's rules allow it).

        Raises:
            ConfigError: the batch has no targets.
            DecodingError: a model returned NaN.
        """
        read = sample
        for stage in self.stages:
            read = stage.before(read)
        with ExitStack() as contexts:
            for context in self.around:
                contexts.enter_context(context())
            found = self._score(read, lengths)
        for stage in self.stages:
            found = [replace(one, hypothesis=stage.after(one.hypothesis, sample)) for one in found]
        return found

    def _score(self, sample: Batch, lengths: Sequence[int] | None) -> list[ScoredTarget]:
        target, _ = _targets(sample)
        if lengths is None and sample.target_lengths is not None:
            lengths = sample.target_lengths.tolist()
        with self.ensemble.evaluating():
            sources = self.ensemble.sources(sample)
            alike = self.ensemble.read_alike(sources)
            outputs = [
                self._output(spec.model, source, sample, self.needs - {HIDDEN_STATES} if number else self.needs)
                for number, (spec, source) in enumerate(zip(self.ensemble.members, sources, strict=True))
            ]
            weights = [out.attention if same else None for out, same in zip(outputs, alike, strict=True)]
            attention = self.ensemble.combine_attention(weights) if ATTENTION in self.needs else None
            pairs = zip(self.ensemble.members, outputs, strict=True)
            lprobs = [spec.model.get_normalized_probs(out.logits, log_probs=True) for spec, out in pairs]
            members = [_of_tokens(scores, target) for scores in lprobs]
            if self.single:
                positional = members[0]
            elif self.ensemble.combination.ignores_context:
                positional = _of_tokens(combine(self.ensemble.combination, lprobs, None), target)
            else:
                positional = self._step_by_step(sample, sources[0], lprobs, outputs, attention).cpu()
        attention = attention if self.need_attention else None
        members = [scores for scores, spec in zip(members, self.ensemble.members, strict=True) if spec.source == INPUT]
        results = []
        for row, tokens in enumerate(target.cpu()):
            length = int((tokens != self.pad).sum()) if lengths is None else lengths[row]
            scores = positional[row, :length]
            if scores.isnan().any():
                raise DecodingError(
                    f"a model's scores are NaN in target {row} of the batch; its weights are damaged or its dtype "
                    "overflows"
                )
            score = float(scores.sum()) / (length if self.normalize_scores else 1)
            attended = None if attention is None else attention[row, :length].cpu()
            alignment = None if attended is None else attended.argmax(-1)
            hypothesis = Hypothesis(tokens[:length], score, scores, attended, alignment)
            results.append(ScoredTarget(hypothesis, [member[row, :length] for member in members]))
        return results

    def _output(self, model: EncoderDecoderModel, source: Source, sample: Batch, needs: Set[str]) -> MemberOutput:
        """The output of a member at all positions, ``(N, T, ...)``."""
        decoder_input = self._decoder_input(model, sample)
        if source.encoder_out is not None or needs & {HIDDEN_STATES, LAYER_LOGITS}:
            return run_decoder(model.decoder, decoder_input, encode(model.encoder, source), needs)
        inputs, need_attention = inputs_of(model.encoder, source), ATTENTION in needs
        out = model(source.src_tokens, source.src_lengths, decoder_input, need_attention=need_attention, **inputs)
        return MemberOutput(out.logits, out.attention)

    def _step_by_step(
        self, sample: Batch, source: Source, lprobs: list[Tensor], outputs: list[MemberOutput], attention: Tensor | None
    ) -> Tensor:
        """Combine the members' scores as in decoding, one position after the other.

        Args:
            sample: the batch.
            source: what the first member reads.
            lprobs: ``(N, T, V)`` log-probabilities of each member.
            outputs: what each member computed.
            attention: ``(N, T, S)`` combined attention, if the combination needs it.

        Returns:
            ``(N, T)`` scores of the target tokens.
        """
        target, previous = _targets(sample)
        count, device = len(target), target.device
        model = self.ensemble.members[0].model
        sentences = BatchInfo(
            ids=sample.ids.to(device),
            beam_size=1,
            eos=self.eos,
            pad=self.pad,
            end_tokens=[self.eos],
            max_lengths=target.ne(self.pad).sum(1) - 1,
            done=torch.zeros(count, dtype=torch.bool, device=device),
            continues_source=model.continues_source,
            src_tokens=source.src_tokens,
            src_padding=source.padding(model.left_pad_source),
            source_texts=sample.texts,
        )
        combination = begin_component(self.ensemble.combination, sentences)
        decoder: Any = model.decoder
        total, positional = lprobs[0].new_zeros(count, 1), []
        for step in range(target.size(1)):
            first, logits = outputs[0].at(step), None
            if MEMBER_LOGITS in self.needs:
                logits = [
                    out.logits[:, step].to(torch.promote_types(out.logits.dtype, torch.float32)) for out in outputs
                ]
            exits = None if first.layers is None else LayerLogits(first.layers, decoder.early_exit)
            attended = None if attention is None else attention[:, step]
            context = StepContext(
                step=step,
                sentences=sentences,
                rows_per_sentence=1,
                first_end=0,
                read_tokens=partial(previous.narrow, 1, 0, 1 + step),
                scores=total.squeeze(1),
                outputs=StepOutputs(first.features, attended, logits, exits),
            )
            tokens = target[:, step : step + 1]
            combined = combine(combination, [scores[:, step] for scores in lprobs], context)
            positional.append(combined.gather(1, tokens))
            total = total + positional[-1]
            combination.advance(Candidates(total, tokens, torch.zeros_like(tokens)))
        return torch.cat(positional, dim=1)

    @torch.inference_mode()
    def features(self, sample: Batch) -> list[Tensor]:
        """The last hidden features of each member's decoder over the targets of a batch.

        Args:
            sample: the batch, with targets.

        Returns:
            For each member that reads the input, ``(sentences, T, C)`` on the CPU: position ``t`` has the features from
            which the decoder predicts token ``t``.

        Raises:
            ConfigError: the batch has no targets, or a decoder does not return features.
        """
        found = []
        with self.ensemble.evaluating():
            for model, source in self._readers(sample):
                check_features([model], "return_hidden")
                encoder_out = encode(model.encoder, source)
                found.append(model.decoder.extract_features(self._decoder_input(model, sample), encoder_out)[0].cpu())
        return found

    @torch.inference_mode()
    def internals(self, sample: Batch, lengths: Sequence[int]) -> list[list[Internals]]:
        """Record the computations of the layers of each member for the targets of a batch.

        Args:
            sample: the batch, with targets.
            lengths: number of tokens of each target.

        Returns:
            For each target, one value for each member that reads the input, on the CPU; see ``Internals``.

        Raises:
            ConfigError: the batch has no targets, or the layers of a model cannot be recorded.
        """
        found: list[list[Internals]] = [[] for _ in lengths]
        with self.ensemble.evaluating():
            for model, source in self._readers(sample):
                decoder_input = self._decoder_input(model, sample)
                with record_passes(model) as recording:
                    model.decoder(decoder_input, encode(model.encoder, source))
                (decoder,), width = recording.decoder, source.src_tokens.size(1)
                prompt = decoder.hidden_states[0].size(1) - decoder_input.size(1)  # columns of a prompt
                for row, length in enumerate(lengths):
                    read = int(source.src_lengths[row])
                    of_source = slice(width - read, width) if model.left_pad_source else slice(0, read)
                    of_target = slice(of_source.start if model.continues_source else 0, prompt + length)
                    encoder = recording.encoder[0].of_row(row, of_source, of_source) if recording.encoder else None
                    found[row].append(Internals(encoder, decoder.of_row(row, of_target, of_source)))
        return found

    def _readers(self, sample: Batch) -> list[tuple[EncoderDecoderModel, Source]]:
        """The members that read the input, each with its source."""
        pairs = zip(self.ensemble.members, self.ensemble.sources(sample), strict=True)
        return [(spec.model, source) for spec, source in pairs if spec.source == INPUT]

    def _decoder_input(self, model: EncoderDecoderModel, sample: Batch) -> Tensor:
        decoder_input = _targets(sample)[1].clone()
        starts = sample.start_tokens
        decoder_input[:, 0] = model.start_token(self.eos) if starts is None else starts.to(decoder_input.device)
        return decoder_input


def _targets(sample: Batch) -> tuple[Tensor, Tensor]:
    if sample.target is None or sample.prev_output_tokens is None:
        raise ConfigError("the batch has no targets to score; give a target for each source")
    return sample.target, sample.prev_output_tokens


def _of_tokens(lprobs: Tensor, target: Tensor) -> Tensor:
    """The log-probabilities ``(N, T)`` of the target tokens, on the CPU."""
    return lprobs.gather(-1, target.unsqueeze(-1)).squeeze(-1).cpu()
