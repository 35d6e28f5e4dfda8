"""The base class of encoder-decoder models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from seqgen.core.contract import Flagged, Flags
from seqgen.core.decoder import Decoder
from seqgen.core.encoder import Encoder
from seqgen.core.structures import DecoderOut, Source


class EncoderDecoderModel(nn.Module, Flagged):
    """An encoder-decoder model.

    Args:
        encoder: encodes the source.
        decoder: predicts the target.
    """

    flags: ClassVar[Flags] = {
        "adjusts_logits": ("adjust_logits_during_generation",),
        "is_composed": ("forward",),
        "normalizes_by_softmax": ("get_normalized_probs",),
        "supports_packing": ("build_model", "forward"),
    }
    safe_values: ClassVar[Mapping[str, Any]] = {
        "adjusts_logits": True,
        "is_composed": False,
        "normalizes_by_softmax": False,
    }

    adjusts_logits: bool = False
    """True if ``adjust_logits_during_generation`` changes logits; neither continuous batching nor a shortlist of the
    output layer is then possible."""

    is_composed: bool = True
    """True if ``forward`` is the decoder's for the encoder's output; see ``Decoder.is_composed``."""

    normalizes_by_softmax: bool = True
    """True if ``get_normalized_probs`` is that of the decoder; see ``Decoder.normalizes_by_softmax``."""

    left_pad_source: bool = False
    """True if shorter sources are padded on the left rather than on the right."""

    supports_packing: bool = False
    """True if several examples may share a row: ``forward`` of the encoder and ``extract_features`` of the decoder then
    have an argument ``segments`` (see ``Segments``), and examples do not attend to each other."""

    continues_source: bool = False
    """True if the output continues the source, which is then a prompt: the prompt counts as generated text for
    processors such as the repetition penalty."""

    checks: ClassVar[list[Callable[[nn.Module], None]]] = []
    """Called with each model before and after it decodes; they raise if its weights must not be used any more."""

    new_weights: Sequence[str] = ()
    """Names of weights, in which ``*`` matches anything, that a checkpoint to fine-tune may lack; the model initializes
    them."""

    saved_weights: Sequence[str] = ("*",)
    """Names of the weights that checkpoints contain; ``build_model`` gives the others (see ``load_base``)."""

    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        """Build the model from its configuration.

        Args:
            cfg: an instance of the configuration class that the model is registered with.
            task: has the dictionaries.

        Returns:
            The model.
        """
        raise NotImplementedError

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with.

        Args:
            task_eos: id of end-of-sentence in the target dictionary, from which most models start.
        """
        return task_eos

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        need_attention: bool = False,
        **inputs: Tensor,
    ) -> DecoderOut:
        """The teacher-forced pass.

        Args:
            src_tokens: ``(N, S)`` int64.
            src_lengths: ``(N,)`` int64.
            prev_output_tokens: ``(N, T)`` int64, after the start token.
            need_attention: whether to return the attention weights.
            inputs: those that the encoder declares; see ``Encoder.inputs``.

        Returns:
            Logits ``(N, T, V)``, and attention, ``(N, T, S)`` or ``None``.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, **inputs)
        out: DecoderOut = self.decoder(prev_output_tokens, encoder_out, need_attention=need_attention)
        return out

    def get_normalized_probs(self, logits: Tensor, log_probs: bool = True) -> Tensor:
        """Normalize logits over the vocabulary; see ``Decoder.get_normalized_probs``."""
        return self.decoder.get_normalized_probs(logits, log_probs)

    def adjust_logits_during_generation(self, logits: Tensor, step: int) -> Tensor:
        """Change this model's logits during decoding; by default they are returned unchanged.

        Args:
            logits: ``(rows, V)``.
            step: number of tokens of each row.

        Returns:
            ``(rows, V)``.
        """
        return logits

    def max_positions(self) -> tuple[int, int]:
        """The longest source and the longest target, in tokens with end-of-sentence."""
        return self.encoder.max_positions(), self.decoder.max_positions()

    def max_target_lengths(self, src_lengths: Tensor) -> Tensor | None:
        """The longest target of each source, in tokens with end-of-sentence, if it depends on the source.

        Args:
            src_lengths: ``(N,)`` int64.

        Returns:
            ``(N,)`` int64; ``None`` if only ``max_positions`` limits targets.
        """
        return None

    def empty_source(self, source: Source) -> Source:
        """The source without any text, for members that read nothing: by default the last token, end-of-sentence.

        Args:
            source: ``(sentences, S)``.

        Returns:
            ``(sentences, 1)``.
        """
        last = source.src_tokens.size(1) if self.left_pad_source else source.src_lengths
        columns = torch.as_tensor(last, device=source.src_tokens.device).expand(source.src_tokens.size(0)) - 1
        tokens = source.src_tokens.gather(1, columns.unsqueeze(1))
        return Source(tokens, torch.ones_like(source.src_lengths), inputs=source.inputs)
