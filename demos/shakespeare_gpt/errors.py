"""Errors of the demos: what went wrong and what to do, in one sentence each."""


class DemoError(Exception):
    """Base of the errors that a demo reports to its user without a traceback."""


class ConfigError(DemoError):
    """A size, rate or flag outside its legal range."""


class DataError(DemoError):
    """A text that cannot be read, is not the text it claims to be, or does not fit the model."""
