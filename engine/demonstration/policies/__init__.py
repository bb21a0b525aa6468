"""The built-in tiny policy: how it is made (`build`), and its weights."""
