"""Files of translators: PO and XLIFF are read and filled, TMX is a table of training; docs/terminology.md."""
