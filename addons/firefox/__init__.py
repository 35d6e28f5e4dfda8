"""Models of Firefox Translations by their languages, as ``path=firefox:en-pt``; docs/models.md."""
