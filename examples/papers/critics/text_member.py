"""A model of a component's own that has another vocabulary, and reads the partial outputs as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.addons.partial_texts import PartialTexts
from seqgen.extend import (
    HIDDEN_STATES,
    BatchInfo,
    Candidates,
    Component,
    ConfigError,
    DecodingError,
    FastPaths,
    IncrementalDecoder,
    Member,
    OwnMember,
    Resources,
    StepContext,
    TextModel,
    check_features,
    pad_rows,
    rows_of_parents,
    rows_of_sentences,
    run_decoder,
    widened_state,
)


def member_of(loaded: TextModel, resources: Resources) -> OwnMember | TextMember:
    """A model that a component reads: by tokens if its vocabularies are those of the model that decodes, or as text."""
    words, task = (resources.source_dictionary, resources.dictionary), loaded.task
    if (task.source_dictionary, task.target_dictionary) == words:
        return OwnMember(loaded.model)
    return TextMember(loaded, PartialTexts.of(resources))


class TextMember(Component):
    """A model of any vocabulary that a component reads while a batch is decoded; see ``OwnMember``.

    It reads the text of the sources and of the partial outputs, each with its own tokenizer. If a new token changes the
    last tokens of a text, its state is rolled back to the tokens that all rows and candidates keep, and the others are
    read again; a decoder that cannot roll back reads the whole text.

    Args:
        loaded: the model with its task.
        texts: the texts of the partial outputs.
        empty_source: whether it reads an empty source, such as a language model that needs no prompt.
        use_cache: whether its decoder keeps the state of earlier positions.

    Raises:
        ConfigError: the decoder has no ``extract_features``.
    """

    def __init__(self, loaded: TextModel, texts: PartialTexts, empty_source: bool = False, use_cache: bool = True):
        check_features([loaded.model], type(self).__name__)
        self.loaded, self.texts, self.empty_source, self.use_cache = loaded, texts, empty_source, use_cache
        self._member: Any = None
        self._read = torch.empty(0)

    def begin(self, batch: BatchInfo) -> Self:
        """Encode the sources of the batch."""
        begun, task, model = super().begin(batch), self.loaded.task, self.loaded.model
        if batch.source_texts is None:
            raise ConfigError(f"{type(self).__name__} needs the texts of the sources, which this decode does not have")
        sources: Any = [(n, task.encode_source(text), None) for n, text in enumerate(batch.source_texts)]
        self._check(max(len(tokens) for _, tokens, _ in sources), 0, "a source")
        source = task.collate(sources, model).to(batch.device).source
        source = model.empty_source(source) if self.empty_source else source
        start = model.start_token(task.target_dictionary.eos())
        cached = self.use_cache and isinstance(model.decoder, IncrementalDecoder) and model.decoder.can_roll_back
        begun._member = Member(model, source, batch.beam_size, start, FastPaths(use_cache=cached))
        if cached:
            begun._member.state.max_roll_back = model.max_positions()[1]
        begun._read = torch.zeros(batch.num_sentences * batch.beam_size, 0, dtype=torch.int64, device=batch.device)
        return begun

    def features(self, context: StepContext) -> Tensor:
        """The last hidden features after the text of each row, ``(rows, C)``."""
        return self._features(context, [[text] for text in self.texts.texts(context)])[:, 0]

    def peek(self, context: StepContext, tokens: Tensor) -> Tensor:
        """The last hidden features after the text with each candidate ``(rows, k)``: ``(rows, k, C)``.

        After a candidate that ends the output, the model reads its end-of-sentence.
        """
        ended = torch.isin(tokens, tokens.new_tensor(context.sentences.end_tokens))
        return self._features(context, self.texts.peek(context, tokens), ended)

    def lprobs(self, features: Tensor) -> Tensor:
        """The log-probabilities of the model's next token after features ``(..., C)``: ``(..., V)``."""
        decoder = self.loaded.model.decoder
        return decoder.get_normalized_probs(decoder.output_layer(features))

    def _features(self, context: StepContext, texts: Sequence[Sequence[str]], ended: Tensor | int = 0) -> Tensor:
        """Read ``(rows, k)`` texts: ``(rows, k, C)``."""
        member, task, count = self._member, self.loaded.task, len(texts[0])
        if context.rows_per_sentence != member.beam_size:
            raise DecodingError(f"{type(self).__name__} reads beams; call it from a processor instead")
        ids = [task.encode_target(text) for row in texts for text in row]
        eos, device = task.target_dictionary.eos(), self._read.device
        inputs = F.pad(pad_rows(ids, eos), (1, 0), value=member.start_token).to(device)
        self._check(inputs.size(1) - 1, 1, "a partial output")
        # without its end-of-sentence, a text of T tokens is read up to T, with it up to T + 1
        ends = torch.tensor([len(one) for one in ids], device=device).view(-1, count) - 1 + ended
        return self._run(inputs[:, : int(ends.max()) + 1], ends).view(*ends.shape, -1)

    def _check(self, tokens: int, side: int, what: str) -> None:
        """Refuse what is longer than the model's positions for sources, side 0, or targets, side 1."""
        if tokens > (limit := self.loaded.model.max_positions()[side]):
            raise DecodingError(
                f"{what} has {tokens} tokens in the vocabulary of {type(self).__name__}, whose model has {limit} "
                "positions; choose another model, or decode shorter texts"
            )

    def _run(self, inputs: Tensor, ends: Tensor) -> Tensor:
        """The features at positions ``ends`` ``(rows, k)`` of inputs ``(rows * k, T)``: ``(rows * k, C)``."""
        member, count, seen = self._member, ends.size(1), 0
        decoder: Any = self.loaded.model.decoder
        encoder_out, state = member.encoder_out, dict[str, Any]()
        if not member.shares_encoder_output:
            rows = torch.arange(len(inputs), device=inputs.device) // count
            encoder_out = self.loaded.model.encoder.reorder_encoder_out(encoder_out, rows)
        if member.state is not None:
            seen = self._follow(inputs.view(*ends.shape, -1), ends)
            state["incremental_state"] = widened_state(decoder, member.state, count)
        found = run_decoder(decoder, inputs, encoder_out, {HIDDEN_STATES}, lambda features: features, **state).logits
        return found[torch.arange(len(inputs), device=inputs.device), ends.flatten() - seen]

    def _follow(self, inputs: Tensor, ends: Tensor) -> int:
        """Let the state have read what all candidates of ``(rows, k, T)`` share, up to the first of their ends."""
        member, first = self._member, inputs[:, 0]
        decoder: Any = self.loaded.model.decoder
        inside = torch.arange(inputs.size(2), device=ends.device) < ends.amin(1, keepdim=True)
        shared = _common((inputs == inputs[:, :1]).all(1) & inside)
        width = min(shared, self._read.size(1))
        kept = _common(first[:, :width] == self._read[:, :width])
        if (removed := self._read.size(1) - kept) > 0:
            decoder.roll_back(member.state, removed)
        self._read = first[:, :shared]
        if shared > kept:
            decoder.extract_features(self._read, member.encoder_out, incremental_state=member.state)
        return shared

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        self._member.reorder_beams(active.beams)
        self._read = self._read.index_select(0, rows_of_parents(active.beams))

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Component.select_sentences``."""
        self._member.select_sentences(keep)
        self._read = self._read.index_select(0, rows_of_sentences(keep, self._member.beam_size))

    def fork(self) -> Self:
        """See ``Component.fork``."""
        other = super().fork()
        other._member = self._member.fork()
        return other


def _common(same: Tensor) -> int:
    """The number of first columns ``(rows, T)`` that are true in all rows."""
    return int(same.all(0).to(torch.int64).cumprod(0).sum())
