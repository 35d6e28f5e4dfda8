"""Prompt tuning (Lester, Al-Rfou and Constant 2021, "The Power of Scale for Parameter-Efficient Prompt Tuning").

All weights of a trained model are frozen. Vectors ``P`` of shape ``(length, C)`` are trained, which precede the
embeddings of each source; the decoder attends to them as to the source::

    p(y | [P; X]),    P at first: the embeddings of random tokens

``seqgen-train common.user_dir=examples/papers/prompt_tuning.py checkpoint.finetune_from=runs/transformer
model=prompt_tuning model.length=20 optimization.lr=[0.3] run_dir=runs/prompt``

The base is a model whose encoder is a stack of layers, such as ``t5`` and ``transformer``. Checkpoints contain ``P``
only; the run records where the base is. Attention that is shown is that over the source, normalized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from seqgen.config import BaseConfig, option
from seqgen.extend import ConfigError, LayeredEncoder, Vocabularies, load_base, register_model


@dataclass
class PromptTuningConfig(BaseConfig):
    """Configuration of a model with a prompt."""

    length: int = option(20, "number of vectors of the prompt", minimum=1)


@register_model("prompt_tuning", config=PromptTuningConfig)
class PromptTuning:
    """Makes models with a prompt; the model has the class of the base."""

    @classmethod
    def build_model(cls, cfg: PromptTuningConfig, task: Vocabularies) -> Any:
        """Load the base and add the prompt."""
        base, n, weights = load_base(cfg), cfg.length, ("*.prompt",)
        model: Any = base.model.requires_grad_(False)
        if not isinstance(base.model.encoder, LayeredEncoder) or base.task.source_dictionary != task.source_dictionary:
            raise ConfigError(f"model.base={cfg.base} has another vocabulary, or no stack of layers as its encoder")
        encoder, other, longest = model.encoder, model.encoder.padding_idx + 1, model.encoder.max_positions() - n
        # the encoder reads n more tokens, and the prompt takes the place of their embeddings
        encoder.register_forward_pre_hook(lambda _, x: (nn.functional.pad(x[0], (n, 0), value=other), x[1] + n))
        encoder.max_positions = lambda: longest
        table = encoder.embed_tokens.weight  # that of the decoder, too, which has no prompt
        own = encoder.embed_tokens = nn.Embedding(len(table), table.size(1), encoder.padding_idx)
        own.weight, own.prompt = table, nn.Parameter(table[torch.randint(len(table), (n,))])
        own.register_forward_hook(lambda own, _, out: torch.cat([own.prompt.expand(len(out), -1, -1), out[:, n:]], 1))
        model.decoder.layers[-1].register_forward_hook(
            lambda _, __, out: (out[0], None if out[1] is None else nn.functional.normalize(out[1][..., n:], 1, -1))
        )
        model.new_weights, model.saved_weights, model.supports_packing = weights, weights, False
        return model
