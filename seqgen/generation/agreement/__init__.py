"""Ensembles of members with different target vocabularies, which agree on the text (Wicks et al. 2025).

``session.py`` has the search, ``lexicon.py`` the texts of all members' tokens, ``member.py`` a member with a token
history of its own, ``search.py`` the strategy that selects all of this, and which settings it supports.
"""
