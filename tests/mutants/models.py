"""Faults in ``models``."""

from __future__ import annotations

from tests.mutants.fault import Fault

_LAWS = "tests/generation/test_laws_models.py::test_invariants"
_FCONV = "tests/models/test_fconv.py"
_T5 = "tests/models/test_t5.py"
_FAIRSEQ = "tests/models/fairseq/test_checkpoints.py"
_GPT2 = "tests/models/huggingface/test_gpt2.py"
_BART = "tests/models/huggingface/test_bart.py"

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
        "            x = F.glu(convolution(_zero(self.dropout(x), padding_mask)), dim=-1)",
        "            x = F.glu(convolution(self.dropout(x)), dim=-1)",
        "convolutions of the encoder see padding",
        ("tests/generation/test_laws_models.py::test_invariants_in_float32[alone = in a batch-fconv_tiny]",),
    ),
    Fault(
        "models/fconv.py",
        "            x = F.glu(convolution(_zero(self.dropout(x), before_start), incremental_state), dim=-1)",
        "            x = F.glu(convolution(self.dropout(x), incremental_state), dim=-1)",
        "convolutions of the decoder see positions before a sentence began",
        (
            "tests/generation/test_laws_models.py::test_invariants[start offsets-fconv_tiny]",
            "tests/generation/test_rolling.py::test_joined_equals_alone[fconv_tiny-{}]",
        ),
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
        "before = padding_idx if cfg.position_offset is None else cfg.position_offset - 1",
        "before = padding_idx if cfg.position_offset is None else cfg.position_offset",
        "positions with an offset begin one row too late",
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
        "models/transformer_lm.py",
        "has_final_norm = cfg.decoder_normalize_before and not cfg.no_decoder_final_norm",
        "has_final_norm = cfg.decoder_normalize_before or not cfg.no_decoder_final_norm",
        "a post-norm model has a last norm as well",
        ("tests/models/fairseq/test_language_models.py::test_each_model_and_way_of_saving_options",),
    ),
    Fault(
        "models/t5/model.py",
        "    bias = biases[min(layer, len(biases) - 1)]",
        "    bias = biases[0]",
        "all layers of umT5 have the bias of the first",
        ("tests/models/test_t5.py::test_logits_and_encoder_are_the_originals",),
    ),
    Fault(
        "models/t5gemma2.py",
        "return (self.encoder_sliding_window - 1) // 2, self.encoder_sliding_window // 2",
        "return self.encoder_sliding_window // 2, (self.encoder_sliding_window - 1) // 2",
        "windows of an even number of positions have one more on the left",
        ("tests/models/huggingface/test_oracle_t5gemma2.py::test_logits_are_the_originals",),
    ),
    Fault(
        "models/t5gemma2.py",
        "[SLIDING if index % PATTERN else FULL for index in layers]",
        "[SLIDING if (index - 1) % PATTERN else FULL for index in layers]",
        "the first layer of six attends to all positions instead of the last",
        ("tests/models/huggingface/test_oracle_t5gemma2.py::test_types_of_layers_that_the_file_lacks",),
    ),
    Fault(
        "seqgen/modules/merged_attention.py",
        "        return KeysAndValues(self.k_norm(keys), values, padding_mask)",
        "        return KeysAndValues(keys, values, padding_mask)",
        "keys of merged attention are not normalized",
        ("tests/modules/test_merged_attention.py::test_one_softmax_over_target_and_source",),
    ),
    Fault(
        "seqgen/modules/merged_attention.py",
        "if own.keys.size(0) < source.keys.size(0):",
        "if own.keys.size(0) > source.keys.size(0):",
        "beams in one memory do not find the source of their row",
        ("tests/modules/test_merged_attention.py::test_steps_are_the_parallel_pass",),
    ),
    Fault(
        "seqgen/decoder.py",
        "return lambda features: columns(self.projected_features(features))",
        "return columns",
        "with a shortlist, outputs are not scaled",
        ("tests/generation/test_shortlist.py::test_columns_of_an_output_layer",),
    ),
    Fault(
        "models/t5/layers.py",
        "        projected: Tensor = self.wo(self.dropout(hidden) if self.training else hidden)",
        "        projected: Tensor = self.wo(hidden)",
        "T5's feed-forward network has no dropout",
        ("tests/models/test_t5.py::test_dropout_is_everywhere_the_original_has_it",),
    ),
    Fault(
        "models/t5/layers.py",
        "nn.init.normal_(attention.in_proj.weight[: cfg.inner_dim], std=(cfg.d_model * cfg.d_kv) ** -0.5)",
        "nn.init.normal_(attention.in_proj.weight[: cfg.inner_dim], std=cfg.d_model**-0.5)",
        "queries have initial weights that are too large",
        ("tests/models/test_t5.py::test_initialization_is_the_originals",),
    ),
    Fault(
        "models/fairseq/checkpoint.py",
        "weight = other * (scale / other.norm(dim=(1, 2), keepdim=True))",
        "weight = other * scale",
        "old convolutions are not normalized",
        ("tests/models/fairseq/test_checkpoints.py::test_convolutions_normalized_over_time",),
    ),
    Fault(
        "models/huggingface/weights.py",
        "                self._place(name).detach().zero_()\n",
        "                pass\n",
        "weights that a folder may lack are not set to zero",
        ("tests/models/huggingface/test_bart.py::test_other_names_of_weights",),
    ),
]
