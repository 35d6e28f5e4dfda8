"""The presets have the sizes that they are known by."""

from dataclasses import replace
from typing import Any

from seqgen.checkpoints.model_weights import on_meta
from seqgen.extend import MODELS, num_parameters
from tests.model_zoo import VOCAB, TinyTask


def parameters(name: str, **changes: Any) -> int:
    config = replace(MODELS.config(name), **changes)
    with on_meta():  # shapes without memory
        model = MODELS.entry(name).component.build_model(config, TinyTask(joint=True))  # type: ignore[attr-defined]
    return sum(parameter.numel() for parameter in model.parameters())


def transformer(dim: int, ffn: int, layers: int, embeddings: int) -> int:
    """Weights of a transformer, worked out from the paper."""
    attention, feed_forward, norm = 4 * (dim * dim + dim), 2 * dim * ffn + ffn + dim, 2 * dim
    # encoder and decoder have three attentions and five norms
    return layers * (3 * attention + 2 * feed_forward + 5 * norm) + embeddings * VOCAB * dim


def test_transformers() -> None:
    assert parameters("transformer_tiny") == transformer(128, 256, 4, embeddings=2)
    assert parameters("transformer_iwslt_de_en") == transformer(512, 1024, 6, embeddings=3)
    assert parameters("transformer_base") == transformer(512, 2048, 6, embeddings=3)
    assert parameters("transformer_big") == transformer(1024, 4096, 6, embeddings=3)
    shared = parameters("transformer_base", share_decoder_input_output_embed=True)
    assert shared == transformer(512, 2048, 6, embeddings=2)
    assert parameters("transformer_base", share_all_embeddings=True) == transformer(512, 2048, 6, embeddings=1)
    assert parameters("transformer_base", share_encoder_decoder_embed=True) == transformer(512, 2048, 6, embeddings=2)
    learned = parameters("transformer_base", encoder_learned_pos=True, decoder_learned_pos=True)
    assert learned == transformer(512, 2048, 6, embeddings=3) + 2 * 1026 * 512


def test_a_convolutional_model_that_shares_its_output() -> None:
    saved = parameters("fconv_tiny") - parameters("fconv_tiny", share_input_output_embed=True)
    assert saved == VOCAB * (MODELS.config("fconv_tiny").decoder_embed_dim + 1)  # and the scale of each row


def test_published_t5() -> None:
    """The published checkpoints' numbers of parameters, with the rows that their embeddings have."""

    def t5_parameters(name: str, rows: int) -> int:
        config = replace(MODELS.config(name), vocab_size=rows)
        with on_meta():
            return num_parameters(MODELS.entry(name).component(config, 0))  # type: ignore[call-arg]

    published = {"t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096}
    published |= {"t5_v1_1_small": 76_961_152, "t5_v1_1_base": 247_577_856, "t5_v1_1_large": 783_150_080}
    assert {name: t5_parameters(name, 32128) for name in published} == published
