"""A busy machine makes single examples slow; that is no failure."""

from hypothesis import settings

settings.register_profile("online", deadline=None, max_examples=40)
settings.load_profile("online")
