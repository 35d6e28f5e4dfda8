"""Decoding: from models and sources to ranked hypotheses.

::

    SequenceGenerator.generate     one Session per call, whose step has six parts:
      (1) ensemble/, processors/   members score the next token; a combination merges, processors change the scores
      (2) search/                  a strategy chooses candidates
      (3) stopping                 some candidates end
      (4) finished, rules          some of these become finished hypotheses; of the others, the best continue
      (5) Session.compact          finished sentences leave the batch
      (6) Session.advance          tokens, scores, decoder states and components follow the beams

``rules`` holds every difference between fairseq's and Hugging Face's decoding. ``options`` makes all of this from a
configuration. Strategies, processors, combinations, stopping rules and observers share ``component.Component`` and see
the step through ``context.StepContext``.
"""
