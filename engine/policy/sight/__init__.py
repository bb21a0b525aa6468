"""How a model sees: pictures as its processor makes them, its vision tower, and what its forward pass is given.

`processor` turns pictures and rendered text into tokens and pixels and owns their agreement; `tower` turns pixels into
features, once for equal content; `inputs` says what a forward pass over rows with images is called with.
"""
