"""The page of `eflow ui` in a real browser, beside its goals."""
