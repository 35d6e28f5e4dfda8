"""What an output must keep of its source (``generation.protect``), and checks of outputs; docs/paragraphs.md."""
