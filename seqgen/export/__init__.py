"""Export of trained models: the encoder and one decoder step as graphs with tensors as inputs and outputs."""
