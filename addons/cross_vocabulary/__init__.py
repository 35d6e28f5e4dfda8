"""Cross-vocabulary ensembles: members with different target vocabularies agree on the text; docs/ensembles.md

After Wicks et al. (2025). ``ensemble.py`` has the settings, ``session.py`` the search, ``member.py`` a member whose
rows have different lengths, ``vocabulary_trie.py`` the texts of all tokens.
"""
