"""The presets have the sizes that they are known by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqgen.errors import ConfigError
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
    with torch.device("meta"):  # shapes without memory
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


def convolutional(dim: int, out_dim: int, encoder: list[tuple[int, int]], decoder: list[tuple[int, int]]) -> int:
    """Weights of a convolutional model, worked out from the paper; each output channel has a bias and a length."""

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + 2 * outputs

    def stack(layers: list[tuple[int, int]], last: int, attention: bool) -> int:
        total = VOCABULARY * dim + 1024 * dim + linear(dim, layers[0][0]) + linear(layers[-1][0], last)
        before = layers[0][0]
        for channels, kernel_width in layers:
            total += linear(kernel_width * before, 2 * channels)
            total += linear(before, channels) if before != channels else 0
            total += linear(channels, dim) + linear(dim, channels) if attention else 0
            before = channels
        return total

    return stack(encoder, dim, False) + stack(decoder, out_dim, True) + linear(out_dim, VOCABULARY)


def test_convolutional_models() -> None:
    tiny = convolutional(128, 128, [(128, 3)] * 4, [(128, 3)] * 3)
    assert parameters("fconv_tiny") == tiny
    iwslt = convolutional(256, 256, [(256, 3)] * 4, [(256, 3)] * 3)
    assert parameters("fconv_iwslt_de_en") == iwslt
    english_german = [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2
    assert parameters("fconv_wmt_en_de") == convolutional(768, 512, english_german, english_german)
    english_french = [(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 + [(2048, 1), (4096, 1)]
    assert parameters("fconv_wmt_en_fr") == convolutional(768, 512, english_french, english_french)
    assert parameters("fconv") == convolutional(512, 256, [(512, 3)] * 20, [(512, 3)] * 20)


def test_embeddings_are_shared_as_asked() -> None:
    def kinds(**changes: Any) -> tuple[bool, bool]:
        model = registered("transformer_tiny", joint=True, **changes)()
        source, target = model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight
        return source is target, target is model.decoder.output_projection.weight

    assert kinds() == (False, True)
    assert kinds(share_decoder_input_output_embed=False) == (False, False)
    assert kinds(share_all_embeddings=True) == (True, True)
    assert kinds(share_all_embeddings=True, share_decoder_input_output_embed=False) == (True, True)
    shared = registered("fconv_tiny", share_input_output_embed=True)()
    assert shared.decoder.fc3.weight is shared.decoder.embed_tokens.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share_all_embeddings": True}, "needs one vocabulary for source and target"),
        ({"encoder_attention_heads": 3}, "model.encoder_embed_dim=512 is not a multiple of"),
        ({"decoder_embed_dim": 100}, "model.decoder_embed_dim=100 is not a multiple of"),
        ({"activation_fn": "sine"}, "there is no 'sine'; there are: gelu, relu"),
    ],
)
def test_refused_transformers(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        registered("transformer", **changes)()
    assert message in str(error.value)


def test_sharing_needs_equal_sizes() -> None:
    with pytest.raises(ConfigError, match="to be the same, but they are 512 and 256"):
        registered("transformer", joint=True, share_all_embeddings=True, decoder_embed_dim=256)()


def test_limits_of_length() -> None:
    """fconv's table of 1,024 rows takes 1,022 tokens, since numbering starts at 2; the transformer's has two more."""
    for name, limit in (("fconv_tiny", 1022), ("transformer_tiny", 1024)):
        model = MODELS.entry(name).component.build_model(MODELS.config(name), TinyTask())  # type: ignore[attr-defined]
        assert model.max_positions() == (limit, limit)
