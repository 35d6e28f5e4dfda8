"""Faults in ``models``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "models/fconv.py",
        "return (~padding_mask).sum(1).to(x.dtype).sqrt().view(-1, 1, 1)",
        "return torch.full_like(x[:, :1, :1], math.sqrt(x.size(1)))",
        "values are scaled by the width of the batch",
        ("tests/models/test_fconv.py::test_values_carry_the_embedding_and_the_length",),
    ),
    Fault(
        "models/fconv.py",
        "torch.stack(maps).mean(0) if maps else None",
        "maps[-1] if maps else None",
        "attention is that of the last layer instead of the mean",
        ("tests/models/test_fconv.py::test_attention_is_the_mean_over_the_layers_that_attend",),
    ),
    Fault(
        "models/transformer.py",
        "        return self.layer_norm(x), attention\n",
        "        return x, attention\n",
        "the decoder's last norm is left out",
        ("tests/models/huggingface/test_bart.py::test_logits_are_the_originals",),
    ),
    Fault(
        "models/transformer.py",
        "of_target(seen, queries.new, queries.start_offsets)",
        "of_target(seen, queries.new)",
        "positions of sentences that joined count from the first step of the batch",
        ("tests/generation/test_laws_models.py::test_invariants[start offsets-transformer_tiny]",),
    ),
    Fault(
        "models/transformer_lm.py",
        "attention_scale=scale / (index + 1) if",
        "attention_scale=scale / max(index, 1) if",
        "attention is scaled by the number of the layer counted from 0",
        ("tests/models/huggingface/test_gpt2.py::test_values_of_the_config_are_honoured",),
    ),
    Fault(
        "models/t5.py",
        "    bias = biases[min(layer, len(biases) - 1)]",
        "    bias = biases[0]",
        "all layers of umT5 have the bias of the first",
        ("tests/models/test_t5.py::test_logits_and_encoder_are_the_originals",),
    ),
    Fault(
        "models/t5gemma.py",
        "[SLIDING if index % PATTERN else FULL for index in layers]",
        "[SLIDING if (index - 1) % PATTERN else FULL for index in layers]",
        "the first layer of six attends to all positions instead of the last",
        ("tests/models/huggingface/test_oracle_t5gemma2.py::test_types_of_layers_that_the_file_lacks",),
    ),
    Fault(
        "seqgen/modules/multihead_attention.py",
        "        return KeysAndValues(self.k_norm(keys), values, padding_mask)",
        "        return KeysAndValues(keys, values, padding_mask)",
        "keys of merged attention are not normalized",
        ("tests/modules/test_merged_attention.py::test_one_softmax_over_target_and_source",),
    ),
    Fault(
        "seqgen/modules/multihead_attention.py",
        "if target.keys.size(0) < source.keys.size(0):",
        "if target.keys.size(0) > source.keys.size(0):",
        "beams in one memory do not find the source of their row",
        ("tests/modules/test_merged_attention.py::test_steps_are_the_parallel_pass",),
    ),
]
