"""Cross-vocabulary ensembles: the members have different target vocabularies and agree on the text (Wicks et al. 2025).

``session.py`` has the search, ``member.py`` a member whose rows have different lengths, ``vocabulary_trie.py`` the
texts of all tokens, ``settings.py`` the settings that can be used.
"""
