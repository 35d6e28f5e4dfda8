"""Glossaries: source terms whose translations are given (``generation.glossary``); docs/terminology.md."""
