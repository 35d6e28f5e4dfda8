"""Faults in ``seqgen/training``."""

from __future__ import annotations

from tests.mutants.fault import Fault

_CRITERIA = "tests/training/test_criteria.py"
_PROJECTED = "tests/training/test_projected_loss.py"
_SCHEDULES = "tests/training/test_schedules.py"
_OPTIMIZERS = "tests/training/test_optimizers.py"
_TRAINER = "tests/training/test_trainer.py"
_LOOP = "tests/training/test_loop.py"
_DISTRIBUTED = "tests/training/test_distributed.py"
_PROGRESS = "tests/training/test_progress.py"

FAULTS = [
    Fault(
        "seqgen/training/optimizers.py",
        "lr = min(1e-6 * step if cfg.warmup_init else 1e-2, 1.0 / math.sqrt(step))",
        "lr = max(1e-6 * step if cfg.warmup_init else 1e-2, 1.0 / math.sqrt(step))",
        "the relative step is the larger of the two rates",
        ("tests/training/test_optimizers.py::test_adafactor_by_the_paper",),
    ),
    Fault(
        "seqgen/training/optimizers.py",
        "update.div_((_rms(update) / cfg.clip_threshold).clamp_(min=1.0))",
        "update.div_(_rms(update) / cfg.clip_threshold)",
        "small updates are scaled up to the clip threshold",
        ("tests/training/test_optimizers.py::test_adafactor_by_the_paper",),
    ),
    Fault(
        "seqgen/training/optimizers.py",
        "        if cfg.weight_decay:\n            param.mul_(1 - lr * cfg.weight_decay)\n",
        "        if cfg.weight_decay:\n            param.mul_(1 - cfg.weight_decay)\n",
        "the weight decay of Adafactor ignores the learning rate",
        ("tests/training/test_optimizers.py::test_adafactor_by_the_paper",),
    ),
    Fault(
        "seqgen/training/criteria.py",
        "device=target.device) < lengths.unsqueeze(1)).flatten()",
        "device=target.device) <= lengths.unsqueeze(1)).flatten()",
        "the first padding of a target counts",
        ("tests/training/test_criteria.py::test_lengths_say_which_tokens_are_padding",),
    ),
    Fault(
        "seqgen/training/cross_entropy.py",
        "(1.0 + 2.0 * z_loss * lse) / exp_sum",
        "(1.0 + z_loss * lse) / exp_sum",
        "the gradient of the z-loss is halved",
        ("tests/training/test_criteria.py::test_z_loss_equals_the_plain_formula",),
    ),
    Fault(
        "seqgen/training/cross_entropy.py",
        "return logits.detach() if owned else logits.detach().clone()",
        "return logits.detach()",
        "an output that another operation needs is overwritten",
        ("tests/training/test_criteria.py::test_gradient_equals_finite_differences",),
    ),
    Fault(
        "seqgen/training/distributed.py",
        "                total[name] = total.get(name, 0.0) + value\n",
        "                total[name] = value\n",
        "the sum over ranks is the value of the last one",
        ("tests/training/test_distributed.py::test_sums_over_several_ranks",),
    ),
    Fault(
        "seqgen/training/optimizers.py",
        "            averages[i].copy_(values[i])\n",
        "            pass\n",
        "integer buffers of the average stay as they were",
        ("tests/training/test_trainer.py::test_buffers_are_averaged_and_integers_copied",),
    ),
    Fault(
        "seqgen/training/lr_schedulers.py",
        "        if update < warmup:\n",
        "        if update <= warmup:\n",
        "the warm-up formula is used for one update more, which gives the same rate unless the decay differs there",
        ("tests/training/test_schedules.py::test_inverse_sqrt",),
    ),
    Fault(
        "seqgen/training/lr_schedulers.py",
        "remaining = max(0.0, (self.total - update) / max(1, self.total - warmup))",
        "remaining = max(0.0, (self.total - update) / max(1, self.total))",
        "polynomial decay ignores the warm-up",
        ("tests/training/test_schedules.py::test_every_schedule_warms_up_in_a_straight_line",),
    ),
    Fault(
        "seqgen/training/lr_schedulers.py",
        "        while done >= length and not last:",
        "        while done > length and not last:",
        "a restart comes one update late",
        ("tests/training/test_schedules.py::test_cosine_restarts_with_shrunken_and_longer_periods",),
    ),
    Fault(
        "seqgen/training/progress.py",
        "            self.skipped += 1\n            return\n",
        "            self.skipped += 1\n",
        "skipped updates count in the means",
        ("tests/training/test_progress.py::test_a_meter_goes_on_where_another_stopped",),
    ),
    Fault(
        "seqgen/training/optimizers.py",
        'torch._foreach_mul_(trained, 1 - group["lr"] * self.decay)',
        'torch._foreach_mul_(trained, 1 + group["lr"] * self.decay)',
        "the weight decay of NAG lets weights grow",
        ("tests/training/test_optimizers.py::test_nag_is_fairseqs",),
    ),
    Fault(
        "seqgen/training/cross_entropy.py",
        "            if b:\n                z.sub_(b)\n",
        "",
        "the gradient of the fused loss ignores the smoothing of other tokens",
        ("tests/training/test_projected_loss.py::test_equals_one_after_the_other",),
    ),
    Fault(
        "seqgen/training/criteria.py",
        'nll = sums["nll_loss"] / tokens if',
        'nll = sums["nll_loss"] / size if',
        "the perplexity is divided by the sample size instead of the tokens",
        ("tests/training/test_progress.py::test_scores_from_sums",),
    ),
    Fault(
        "seqgen/system/devices.py",
        "    numpy.random.seed(seed & 0xFFFFFFFF)\n",
        "",
        "NumPy's generator is not seeded",
        ("tests/training/test_progress.py::test_randomness_is_a_function_of_its_place",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "        sample_size /= self.group.world_size  # the gradients are means over the ranks\n",
        "",
        "the gradient of several processes is divided by their number once more",
        ("tests/training/test_parallel.py::test_a_small_run_is_that_of_one_process",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "self._backward(spare(), place, weight=0)",
        "self._backward(spare(), place)",
        "the example of a rank that has no batch left counts",
        ("tests/training/test_parallel.py::test_a_small_run_is_that_of_one_process",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip",
        "factor = (clip / (norm + 1e-6)) if clip",
        "small gradients are scaled up to the clip norm",
        ("tests/training/test_loop.py::test_clipping",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "        self.optimizer.zero_grad(set_to_none=True)\n        result",
        "        result",
        "gradients of the update before are not cleared",
        ("tests/training/test_trainer.py::test_each_update_has_its_own_gradient",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "        self.skips = 0\n        self.criterion",
        "        self.criterion",
        "skipped updates are counted although others come between them",
        ("tests/training/test_loop.py::test_a_loss_that_is_not_finite_can_be_skipped",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        'group["lr"] = result.lr * group.get("lr_scale", 1.0)',
        'group["lr"] = result.lr',
        "the learning-rate scale of parameter groups is ignored",
        ("tests/training/test_trainer.py::test_a_parameter_group_can_scale_its_learning_rate",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "            limit = limit or self._limit(completed)\n",
        "",
        "patience ends training one update late",
        ("tests/training/test_loop.py::test_reasons_to_stop",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "return self._after_update(self.iterator.epoch - ended, ended)",
        "return self._after_update(self.iterator.epoch, ended)",
        "a postponed validation belongs to the next epoch",
        ("tests/training/test_loop.py::test_a_postponed_validation_belongs_to_the_epoch_of_its_update",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "on_validation(score if lower_is_better(metric) else -score)",
        "on_validation(score)",
        "a schedule takes a falling accuracy for an improvement",
        ("tests/training/test_loop.py::test_schedules_and_the_best_checkpoint_know_the_direction_of_a_metric",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "                self.trainer.load_initial(model)\n",
        "",
        "fine-tuning begins with an average of random weights",
        ("tests/training/test_loop.py::test_finetune_begins_anew_from_weights",),
    ),
    Fault(
        "seqgen/training/training_loop.py",
        "left.append((total - update) * seconds / max(1, update))",
        "left.append(total * seconds / max(1, update))",
        "the remaining time is that of the whole training",
        ("tests/training/test_trainer.py::test_remaining_time_at_the_mean_speed",),
    ),
    Fault(
        "seqgen/training/validation.py",
        "            total = {key: total.get(key, 0.0) + value for key, value in sums.items()}",
        "            total = sums",
        "the loss of a mixture is that of its last part",
        ("tests/training/test_loop.py::test_the_loss_of_a_mixture_is_that_of_all_parts",),
    ),
    Fault(
        "seqgen/training/validation.py",
        "            hypotheses[mine[translation.id]] = translation.text",
        "            hypotheses[translation.id] = translation.text",
        "with several ranks, outputs are stored under the wrong line",
        ("tests/training/test_loop.py::test_each_rank_decodes_its_share_of_the_validation_sentences",),
    ),
    Fault(
        "seqgen/training/run_log.py",
        "score < best if lower_is_better(metric)",
        "score <= best if lower_is_better(metric)",
        "of two equal scores the later one is the best",
        ("tests/training/test_checkpoints.py::test_of_equal_scores_the_earlier_one_is_the_best",),
    ),
    Fault(
        "seqgen/training/sequence_criterion.py",
        "                search.seed += self.update\n",
        "                search.seed += 1\n",
        "samples are the same in every update",
        ("tests/training/test_sequence_criterion.py::test_samples_depend_on_the_update_and_the_sentence_alone",),
    ),
    Fault(
        "seqgen/training/sequence_criterion.py",
        "[*row, *([] if any(_equal(one, own) for one in row) else [own])]",
        "[*row, own]",
        "a reference is a candidate twice",
        ("tests/training/test_sequence_criterion.py::test_references_are_added_once",),
    ),
    Fault(
        "seqgen/training/sequence_criterion.py",
        "weight * token_loss + (1 - weight) * loss",
        "weight * token_loss + loss",
        "the sequence loss is not weighted",
        ("tests/training/test_sequence_criterion.py::test_the_loss_is_interpolated_with_cross_entropy",),
    ),
    Fault(
        "seqgen/training/sequence_criterion.py",
        "(row.sentence * most + row.place) * longest",
        "(row.sentence + row.place * most) * longest",
        "log-probabilities belong to other hypotheses",
        ("tests/training/test_sequence_criterion.py::test_rescoring_is_a_plain_pass_over_each_hypothesis",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        "        self.criterion.after_update(result.sums)\n",
        "",
        "the state of a criterion does not change",
        ("tests/training/test_sequence_criterion.py::test_training_resumes_bit_by_bit",),
    ),
    Fault(
        "seqgen/training/trainer.py",
        '        self.criterion.load_state_dict(state["criterion"])\n',
        "",
        "the state of a criterion is not restored",
        ("tests/training/test_sequence_criterion.py::test_training_resumes_bit_by_bit",),
    ),
]
