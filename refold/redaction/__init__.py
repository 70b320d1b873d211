"""Redaction before anything is written: rules, the redactor, and the size guard."""

import lazy_loader

# Each name is loaded when it is first used: a size guard needs no rules.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
