"""Reports of a run: one self-contained HTML file, or plain text. Made from the ledger; they decide nothing."""
