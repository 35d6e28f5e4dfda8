"""Decoding: from models and sources to ranked hypotheses.

::

    SequenceGenerator.generate            one Decoding per call, which loops over steps:
      Ensemble        score next tokens   one model or several; knows nothing of search
      LogitsProcessor change scores       knows nothing of models or search
      Search          choose candidates   knows nothing of models
      Hypotheses      collect finished    which ones end a sentence, and how they rank
      Decoding        advance             the only place that moves tokens, scores and decoder state
"""
