"""The public import path of `RunReader`, for scripts that read a record."""

from .read.reader import RunReader as RunReader
