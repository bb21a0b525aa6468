"""Images for a model: its processor, its vision tower, and the arguments of its forward pass.

`processor` turns pictures and rendered text into tokens and pixels and checks that they agree. `tower` turns pixels
into features, once for equal content. `inputs` makes the arguments of a forward pass over rows with images.
"""
