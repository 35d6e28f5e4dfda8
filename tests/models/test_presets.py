"""The presets have the sizes that they are known by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seqgen.checkpoints.model_weights import on_meta
from seqgen.core.errors import ConfigError
from seqgen.modules.inspection import num_parameters
from seqgen.registry import MODELS
from tests.model_zoo import TinyTask, registered

VOCABULARY = 8000


class _Task:
    class _Dictionary:
        def __len__(self) -> int:
            return VOCABULARY

        def pad(self) -> int:
            return 1

    source_dictionary = target_dictionary = _Dictionary()


def parameters(name: str, **changes: Any) -> int:
    config = MODELS.config(name)
    for key, value in changes.items():
        setattr(config, key, value)
    with on_meta():  # shapes without memory
        model = MODELS.entry(name).component.build_model(config, _Task())  # type: ignore[attr-defined]
    return sum(parameter.numel() for parameter in model.parameters())


def transformer(dim: int, ffn: int, layers: int, embeddings: int) -> int:
    """Weights of a transformer, worked out from the paper."""
    attention = 4 * (dim * dim + dim)
    feed_forward = 2 * dim * ffn + ffn + dim
    norm = 2 * dim
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return layers * (encoder_layer + decoder_layer) + embeddings * VOCABULARY * dim


def test_transformers() -> None:
    assert parameters("transformer_tiny") == transformer(128, 256, 4, embeddings=2)
    assert parameters("transformer_iwslt_de_en") == transformer(512, 1024, 6, embeddings=3)
    assert parameters("transformer_base") == transformer(512, 2048, 6, embeddings=3)
    assert parameters("transformer_big") == transformer(1024, 4096, 6, embeddings=3)
    shared = parameters("transformer_base", share_decoder_input_output_embed=True)
    assert shared == transformer(512, 2048, 6, embeddings=2)
    assert parameters("transformer_base", share_all_embeddings=True) == transformer(512, 2048, 6, embeddings=1)
    learned = parameters("transformer_base", encoder_learned_pos=True, decoder_learned_pos=True)
    assert learned == transformer(512, 2048, 6, embeddings=3) + 2 * 1026 * 512


def test_published_t5() -> None:
    """The published checkpoints' numbers of parameters, with the rows that their embeddings have."""

    def t5_parameters(name: str, rows: int) -> int:
        config = replace(MODELS.config(name), vocab_size=rows)
        with on_meta():
            return num_parameters(MODELS.entry(name).component(config, 0))  # type: ignore[call-arg]

    published = {
        "t5_small": 60_506_624,
        "t5_base": 222_903_552,
        "t5_large": 737_668_096,
        "t5_v1_1_small": 76_961_152,
        "t5_v1_1_base": 247_577_856,
        "t5_v1_1_large": 783_150_080,
    }
    assert {name: t5_parameters(name, 32128) for name in published} == published


def test_embeddings_are_shared_as_asked() -> None:
    def kinds(**changes: Any) -> tuple[bool, bool]:
        model = registered("transformer_tiny", joint=True, **changes)()
        source, target = model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight
        return source is target, target is model.decoder.output_projection.weight

    assert kinds() == (False, True)
    assert kinds(share_decoder_input_output_embed=False) == (False, False)
    assert kinds(share_all_embeddings=True) == (True, True)
    assert kinds(share_encoder_decoder_embed=True, share_decoder_input_output_embed=False) == (True, False)
    assert kinds(share_all_embeddings=True, share_decoder_input_output_embed=False) == (True, True)
    shared = registered("fconv_tiny", share_input_output_embed=True)()
    assert shared.decoder.fc3.weight is shared.decoder.embed_tokens.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share_all_embeddings": True}, "needs one vocabulary for source and target"),
        ({"decoder_start_token_id": 23}, "decoder_start_token_id=23 is outside the vocabulary of 23 tokens"),
        ({"encoder_attention_heads": 3}, "the hidden size 512 is not a multiple of the 3 attention heads"),
    ],
)
def test_refused_transformers(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        registered("transformer", **changes)()
    assert message in str(error.value)


def test_sharing_needs_equal_sizes() -> None:
    with pytest.raises(ConfigError, match="encoder_embed_dim and decoder_embed_dim to be the same"):
        registered("transformer", joint=True, share_all_embeddings=True, decoder_embed_dim=256)()


def test_limits_of_length() -> None:
    """fconv's table of 1,024 rows takes 1,022 tokens, since numbering starts at 2; the transformer's has two more."""
    for name, limit in (("fconv_tiny", 1022), ("transformer_tiny", 1024)):
        model = MODELS.entry(name).component.build_model(MODELS.config(name), TinyTask())  # type: ignore[attr-defined]
        assert model.max_positions() == (limit, limit)


@pytest.mark.parametrize(
    ("changes", "joint", "message"),
    [
        ({}, False, "model=t5 has one embedding for source and target"),
        ({"vocab_size": 22}, True, "model.vocab_size=22 is too small for a vocabulary of 23 tokens; set at least 23"),
        ({"decoder_start_token_id": 23}, True, "model.decoder_start_token_id=23 is outside the vocabulary of 23"),
    ],
)
def test_refused_t5(changes: dict[str, object], joint: bool, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        registered("t5_tiny", joint=joint, **changes)()
    assert message in str(error.value)


def test_t5_may_have_more_rows_than_tokens() -> None:
    assert registered("t5_tiny", joint=True)().decoder.embed_tokens.num_embeddings == 23
    model = registered("t5_tiny", joint=True, vocab_size=32)()
    assert model.decoder.embed_tokens.num_embeddings == model.decoder.output_projection.out_features == 32
    assert (model.start_token(2), registered("t5_tiny", joint=True, decoder_start_token_id=3)().start_token(2)) == (
        1,
        3,
    )
