"""The page that shows a trace in a browser; decoding does not import it."""
