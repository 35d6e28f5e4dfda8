"""All invariants of models by name, and a check of a model against each of them."""

from __future__ import annotations

from collections.abc import Iterator

from seqgen.lab.checks import passes, search, stepping, weights
from seqgen.lab.checks.checking import Invariants, Outcome, check_all
from seqgen.lab.checks.subject import Subject

PASSES: Invariants[Subject] = {
    "evaluation is deterministic": passes.evaluation_is_deterministic,
    "every token is read, later ones are not": passes.every_token_is_read,
    "the start token is read": passes.start_token_is_read,
    "alone = in a batch": passes.alone_equals_batched,
    "encoder output is reordered": passes.encoder_output_is_reordered,
    "attention is a distribution": passes.attention_is_a_distribution,
    "probabilities sum to one": passes.probabilities_sum_to_one,
}
STEPPING: Invariants[Subject] = {
    "steps = parallel pass": stepping.stepped_equals_parallel,
    "steps after any order of rows": stepping.stepped_after_any_order,
    "steps after reordering beams": stepping.stepped_after_reordering_beams,
    "steps after rolling back": stepping.stepped_after_rolling_back,
    "batches that join": stepping.batches_that_join,
    "start offsets": stepping.start_offsets,
    "attention in steps": stepping.attention_stepped,
    "two decodes at a time": stepping.states_do_not_mix,
    "copies share no state": stepping.copies_share_no_state,
}
WEIGHTS: Invariants[Subject] = {
    "every parameter is trained": weights.every_parameter_is_trained,
    "saved weights are the model": weights.saved_weights_are_the_model,
    "no stale weight after training": weights.fresh_after_training,
    "no stale weight after a step in eval()": weights.fresh_after_a_step_in_evaluation_mode,
    "no stale weight after loading": weights.fresh_after_loading,
    "no stale weight after moving": weights.fresh_after_moving,
    "no stale weight after a change in place": weights.fresh_after_a_change_in_place,
    "inference mode": weights.inference_mode,
}
SEARCH: Invariants[Subject] = {
    "search: cached = uncached": search.cached_equals_uncached,
    "search: alone = in a batch": search.alone_decoded_equals_batched,
    "search: beams in place = moved": search.indirection_equals_moving,
    "search: beam of one = greedy": search.beam_of_one_is_greedy,
    "search: beam = exhaustive": search.beam_equals_exhaustive,
    "search: scorer = generator": search.scorer_equals_generator,
    "search: [m, m] = m": search.ensemble_of_itself,
}


def check(subject: Subject, peaked: Subject | None = None) -> Iterator[Outcome]:
    """Check all invariants.

    Args:
        subject: the model.
        peaked: the model for the invariants of search, if they need other weights: random ones with clear peaks.

    Yields:
        What was found, for each invariant.
    """
    yield from check_all(PASSES | STEPPING | WEIGHTS, subject)
    yield from check_all(SEARCH, peaked or subject)
