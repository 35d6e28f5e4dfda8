"""Layers that models are made of."""

from seqgen.modules.conv_tbc import ConvTBC
from seqgen.modules.dropout import Dropout
from seqgen.modules.gradient import scale_gradient
from seqgen.modules.layer_drop import LayerDropList
from seqgen.modules.linear import Linear
from seqgen.modules.linearized_convolution import LinearizedConvolution
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
