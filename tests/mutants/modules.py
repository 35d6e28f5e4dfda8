"""Faults in ``seqgen/modules`` and ``seqgen/bit_exact``."""

from __future__ import annotations

from tests.mutants.fault import Fault

_ATTENTION = "tests/modules/test_attention.py"
_CONVOLUTION = "tests/modules/test_convolution.py"
_LINEAR = "tests/modules/test_linear.py"
_POSITIONS = "tests/modules/test_positions.py"
_CACHES = "tests/modules/test_fast_paths.py"
_T5 = "tests/models/test_t5.py"
_BIT_EXACT = "tests/modules/test_bit_exact.py"

LAYERS = [
    Fault(
        "seqgen/modules/attention.py",
        "scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)",
        "scores.masked_fill_(~mask, 0)",
        "masked scores are zero",
        ("tests/modules/test_attention.py::test_both_kernels_agree",),
    ),
    Fault(
        "seqgen/modules/cached_weight.py",
        "            if version is None or new._version != version:\n                return False\n",
        "",
        "a parameter changed in place does not clear the cache",
        ("tests/modules/test_linear.py::test_never_an_old_weight",),
    ),
    Fault(
        "seqgen/modules/kernel_choice.py",
        "if seconds[kernel.name] <= ALIKE * min(seconds.values())",
        "if seconds[kernel.name] <= ALIKE * max(seconds.values())",
        "the first kernel is chosen, however slow it is",
        ("tests/modules/test_kernels.py::test_the_fastest_is_chosen_unless_measurements_do_not_tell",),
    ),
    Fault(
        "seqgen/modules/kernel_choice.py",
        "key=lambda kernel: kernel.arrange not in arranged)",
        "key=lambda kernel: kernel.arrange in arranged)",
        "a layout is made although another one is as fast",
        ("tests/modules/test_kernels.py::test_a_layout_is_used_again_if_another_one_is_no_faster",),
    ),
    Fault(
        "seqgen/modules/kernel_choice.py",
        "return one if rows == 1 else few if rows <= 2 * few else many",
        "return one if rows <= 2 else few if rows <= 2 * few else many",
        "two rows get the kernel of one row",
        ("tests/modules/test_kernels.py::test_numbers_of_rows_have_classes",),
    ),
    Fault(
        "seqgen/modules/kernel_choice.py",
        "return 1 if fastest[1] * ALIKE < fastest[available] else available",
        "return 1 if fastest[1] < fastest[available] else available",
        "one thread is used although the difference is within the noise",
        ("tests/modules/test_kernels.py::test_few_rows_are_multiplied_with_the_faster_number_of_threads",),
    ),
    Fault(
        "seqgen/modules/kernels.py",
        "    if scale.numel() == 1:\n",
        "    if scale.numel() >= 1:\n",
        "all rows get one scale of 8-bit integers",
        ("tests/modules/test_kernels.py::test_int8_by_hand",),
    ),
    Fault(
        "seqgen/modules/linear.py",
        "if self.onednn is None and not dist.is_initialized():",
        "if self.onednn is None:",
        "the processes of a group may train with different kernels",
        ("tests/modules/test_matrix_product.py::test_several_processes_compute_alike",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        '"onednn": TRAINING.onednn,',
        '"onednn": None,',
        "a resumed run may choose another kernel",
        ("tests/training/test_loop.py::test_a_resumed_run_keeps_its_kernel",),
    ),
    Fault(
        "seqgen/modules/convolution.py",
        "((kernel_width - 1) // 2, kernel_width // 2)",
        "(kernel_width // 2, (kernel_width - 1) // 2)",
        "an odd number of zeros has one more before the row",
        ("tests/modules/test_convolution.py::test_an_even_convolution_by_hand",),
    ),
    Fault(
        "seqgen/modules/convolution.py",
        "    weight_norm(conv, dim=2)",
        "    weight_norm(conv, dim=1)",
        "convolutions are normalized for each input instead of each output",
        ("tests/modules/test_convolution.py::test_weight_normalization_is_per_output",),
    ),
    Fault(
        "seqgen/modules/dropout.py",
        "        return (grads[0] * keep).mul_(ctx.scale), None",
        "        return grads[0] * keep, None",
        "the gradient of dropout is not scaled up",
        ("tests/modules/test_dropout.py::test_gradient_is_that_of_what_was_kept",),
    ),
    Fault(
        "seqgen/modules/linear.py",
        "bias = None if self.bias is None else self.bias.detach().index_select(0, ids)",
        "bias = None if self.bias is None else self.bias.detach()[: len(ids)]",
        "chosen outputs get the bias of the first outputs",
        ("tests/generation/test_shortlist.py::test_columns_of_a_projection",),
    ),
    Fault(
        "seqgen/modules/convolution.py",
        'length = module_state["input_buffer"].size(1) - positions\n',
        'length = module_state["input_buffer"].size(1) - positions + 1\n',
        "rolling a convolution back removes one position too few",
        ("tests/modules/test_fast_paths.py::test_positions_taken_back",),
    ),
    Fault(
        "seqgen/modules/masks.py",
        "if kept is None or kept[0] is not key:",
        "if kept is None:",
        "all layers get the mask of the first layer",
        ("tests/modules/test_attention.py::test_query_positions",),
    ),
    Fault(
        "seqgen/modules/linear.py",
        "onednn_product(grad.t(), x.t()) if wants[1] else None,",
        "onednn_product(grad.t(), x.t()) if wants[0] else None,",
        "a weight gets no gradient where the input needs none",
        ("tests/modules/test_matrix_product.py::test_only_what_is_wanted_is_computed",),
    ),
    Fault(
        "seqgen/modules/attention.py",
        "fold_beams(query.unsqueeze(2), keys.size(0))",
        "fold_beams(query.unsqueeze(2), rows)",
        "queries of beams are not folded into the rows of shared keys",
        ("tests/generation/test_laws_models.py::test_invariants_in_float32[steps after reordering beams-fconv_tiny]",),
    ),
    Fault(
        "seqgen/modules/multihead_attention.py",
        "return weights.mean(1) if weights is not None and need_weights else None",
        "return weights.sum(1) if weights is not None and need_weights else None",
        "attention weights are summed over heads",
        ("tests/modules/test_attention.py::test_self_attention",),
    ),
    Fault(
        "seqgen/modules/multihead_attention.py",
        "nn.init.xavier_uniform_(block, gain=0.5**0.5)",
        "nn.init.xavier_uniform_(block)",
        "initial projections have twice the variance",
        ("tests/modules/test_attention.py::test_initial_projections_are_independent_glorot_matrices",),
    ),
    Fault(
        "seqgen/modules/positions.py",
        "numbers = tokens.cumsum(1) * tokens + self.padding_idx",
        "numbers = tokens.cumsum(1) + self.padding_idx",
        "padding on the right has the position of the last token",
        ("tests/modules/test_positions.py::test_source_positions_count_tokens_on_either_side_of_the_padding",),
    ),
    Fault(
        "seqgen/modules/positions.py",
        "return self.num_rows - self.padding_idx - 1",
        "return self.num_rows - self.padding_idx",
        "the table is taken to have one position more",
        ("tests/modules/test_positions.py::test_limits",),
    ),
    Fault(
        "seqgen/modules/positions.py",
        ".clamp(min=0, max=self.max_positions - 1)",
        ".clamp(min=0, max=self.max_positions)",
        "positions beyond the table are read from one row after it",
        ("tests/modules/test_positions.py::test_limits",),
    ),
    Fault(
        "seqgen/modules/positions.py",
        "offset = (distances > 0).long() * num_buckets",
        "offset = (distances >= 0).long() * num_buckets",
        "distance 0 has the bucket of later keys",
        ("tests/models/test_t5.py::test_logits_and_encoder_are_the_originals",),
    ),
    Fault(
        "seqgen/modules/rms_norm.py",
        "scale = norm.square_().div_(x.size(-1)).add_(eps).rsqrt_()",
        "scale = norm.square_().add_(eps).div_(x.size(-1)).rsqrt_()",
        "epsilon is divided by the dimension",
        ("tests/models/test_t5.py::test_gradients_are_the_originals",),
    ),
    Fault(
        "seqgen/modules/rms_norm.py",
        "torch.addcmul(grads[0] * weight, normalized, mean, value=-1)",
        "torch.addcmul(grads[0] * weight, normalized, mean)",
        "the gradient of the norm has a term with the wrong sign",
        ("tests/models/test_t5.py::test_gradients_are_the_originals",),
    ),
    Fault(
        "seqgen/modules/masks.py",
        "    if causal:\n        allowed = allowed.tril()\n",
        "",
        "examples in one row attend to later tokens",
        ("tests/data/test_packing.py::test_masks_and_positions",),
    ),
    Fault(
        "seqgen/modules/transformer_layer.py",
        "        x = self._after(self.encoder_attn_layer_norm, x, attended)\n",
        "        x = self._after(self.self_attn_layer_norm, x, attended)\n",
        "encoder-decoder attention is followed by the norm of self-attention",
        ("tests/models/fairseq/test_checkpoints.py::test_bart_and_mbart",),
    ),
    Fault(
        "seqgen/modules/transformer_layer.py",
        "        hidden = self.activation_dropout(hidden) if self.training else hidden\n",
        "",
        "features after the activation are not dropped",
        ("tests/modules/test_dropout.py::test_the_feed_forward_network_drops_features_after_the_activation",),
    ),
]

CACHES = [
    Fault(
        "seqgen/modules/kv_cache/growing.py",
        "        if self.padding_mask is not None:\n            self.padding_mask = self.padding_mask.index_select(0, new_order)\n",
        "",
        "the padding mask is not reordered",
        ("tests/modules/test_caches.py::test_padding_follows_the_rows",),
    ),
    Fault(
        "seqgen/modules/kv_cache/indirection.py",
        "        self.collected = self._mask = None\n",
        "        self.collected = None\n",
        "the mask is not built again after a change of the table",
        ("tests/modules/test_caches.py::test_masks_are_built_again_after_a_change",),
    ),
    Fault(
        "seqgen/modules/kv_cache/indirection.py",
        "merged.used = merged.capacity = max(self.used, other.used) + 1",
        "merged.used = merged.capacity = max(self.used, other.used)",
        "added positions share the last slot in use",
        ("tests/modules/test_caches.py::test_positions_that_are_added_have_a_slot_of_their_own",),
    ),
    Fault(
        "seqgen/modules/kv_cache/indirection.py",
        "        self.length -= positions\n        self.table = self.table[:, :, positions:].contiguous()\n",
        "        self.length -= positions\n",
        "cropping on the left removes the last positions",
        ("tests/modules/test_caches.py::test_beams_after_reordering_rolling_back_and_cropping",),
    ),
    Fault(
        "seqgen/modules/kv_cache/protocol.py",
        "F.pad(mask, missing, value=not left)",
        "F.pad(mask, missing)",
        "positions added on the right are not hidden",
        ("tests/modules/test_caches.py::test_shorter_rows_are_hidden_where_they_are_filled_up",),
    ),
    Fault(
        "seqgen/modules/kv_cache/growing.py",
        "        return replace(self._take(new_order // self.share), share=1)",
        "        return self._take(new_order // self.share)",
        "keys are taken to be shared after rows were reordered",
        ("tests/modules/test_attention.py::test_keys_of_the_encoder_stay_one_per_sentence",),
    ),
    Fault(
        "seqgen/modules/kv_cache/protocol.py",
        "if is_causal and (padding_mask is not None or keys.size(2) > queries):",
        "if is_causal and padding_mask is not None:",
        "the causal mask of several new positions ignores those before them",
        ("tests/modules/test_attention.py::test_causal_steps_of_several_positions_equal_one_pass",),
    ),
    Fault(
        "seqgen/modules/multihead_attention.py",
        "if shared.clock > 1:",
        "if shared.clock > 0:",
        "only the first layer uses the indirection table",
        ("tests/modules/test_caches.py::test_all_layers_share_one_table",),
    ),
]

BIT_EXACT = [
    Fault(
        "seqgen/modules/bit_exact.py",
        "    return -(-length // step) * step",
        "    return (length // step + 1) * step",
        "multiples of the step are rounded up to the next multiple",
        ("tests/modules/test_bit_exact.py::test_lengths_are_rounded_up",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "last = b[..., columns - TILE :] if columns >= TILE",
        "last = b[..., columns - rest - TILE : columns - rest] if columns >= TILE",
        "the last columns of a product are those of the tile before",
        ("tests/modules/test_bit_exact.py::test_products_are_right",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "    shape = (kind, rows.shape, rows.dtype, rows.device, torch.get_num_threads())",
        "    shape = (kind, rows.dtype, rows.device, torch.get_num_threads())",
        "what was found for one number of rows is used for all",
        ("tests/modules/test_bit_exact.py::test_kernels_are_compared_for_each_number_of_rows",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "torch.where(smaller == larger, 0.0, smaller - larger)",
        "smaller - larger",
        "the sum of two zero probabilities is NaN",
        ("tests/modules/test_bit_exact.py::test_logaddexp_of_infinities",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "others = [other for other in range(v.dim()) if other != dim]",
        "others = [dim]",
        "weights are normalized over the wrong dimension",
        ("tests/modules/test_convolution.py::test_a_cached_weight_can_lose_its_parametrization",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)",
        "key, value = key.repeat(1, repeats, 1, 1), value.repeat(1, repeats, 1, 1)",
        "heads that share keys get those of other heads",
        ("tests/modules/test_bit_exact.py::test_attention_of_pytorch_is_replaced",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "return added * beta + product * alpha if (beta, alpha) != (1, 1) else added + product",
        "return added + product * alpha if (beta, alpha) != (1, 1) else added + product",
        "addmm ignores beta",
        ("tests/modules/test_bit_exact.py::test_sums_of_products_have_their_factors",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "enter, forget, new, leave = gates.chunk(4, -1)",
        "forget, enter, new, leave = gates.chunk(4, -1)",
        "the input and forget gates are swapped",
        ("tests/modules/test_bit_exact.py::test_an_lstm_equals_that_of_pytorch",),
    ),
    Fault(
        "seqgen/modules/bit_exact.py",
        "number = layer * (2 if both else 1) + direction",
        "number = layer + direction",
        "the second layer of a bidirectional LSTM has weights of the first",
        ("tests/modules/test_bit_exact.py::test_an_lstm_equals_that_of_pytorch",),
    ),
]

FAULTS = LAYERS + CACHES + BIT_EXACT
