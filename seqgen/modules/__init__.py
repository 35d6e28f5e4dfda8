"""Layers that models are made of."""

from seqgen.modules.convolution import ConvTBC, LinearizedConvolution, scale_gradient
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.linear import Linear
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import LearnedPositions, Positions, SinusoidalPositions
from seqgen.modules.transformer_layer import TransformerDecoderLayer, TransformerEncoderLayer, TransformerLayerOptions

__all__ = [
    "ConvTBC",
    "Dropout",
    "LayerDropList",
    "LearnedPositions",
    "Linear",
    "LinearizedConvolution",
    "MultiheadAttention",
    "Positions",
    "SinusoidalPositions",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "TransformerLayerOptions",
    "scale_gradient",
]
