"""Ensembles of members with different target vocabularies, which agree on the text (Wicks et al. 2025).

``generator.py`` has the generator and the settings that it supports, ``session.py`` the search, ``member.py`` a member
with a token history of its own, ``lexicon.py`` the texts of all tokens.
"""
